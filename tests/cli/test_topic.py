def test_a_topic_from_creation_to_deletion(run, run_json):
    created = run_json("topic", "create", "life", "--partitions", 2, "-c", "retention.ms=1000")
    assert created.pop("location").endswith("/topics/life")
    assert created == {"topic": "life", "partitions": 2, "created": True}

    altered = run_json("topic", "alter", "life", "-d", "retention.ms", "-c", "segment.ms = 5000", "--partitions", 3)
    assert altered["partitions"] == 3
    assert {(e["name"], e["value"], e["is_default"]) for e in altered["config_entries"]} == {
        ("retention.ms", "-1", True),
        ("segment.ms", "5000", False),
    }
    listed = {entry["topic"]: entry for entry in run_json("topic", "list")}
    assert listed["life"] == {"topic": "life", "partitions": 3, "replication_factor": 1, "is_internal": False}
    assert "life" in run("topic", "list").stdout

    assert run_json("topic", "delete", "life", "--yes") == {"topic": "life", "deleted": True}
    assert "life" not in {entry["topic"] for entry in run_json("topic", "list")}


def test_describe_shows_what_became_of_the_records(run, run_json, topic):
    run("produce", topic, "--partition", 1, input="a\nb\nc\n")
    partition = run_json("topic", "describe", topic)["topic"]["partitions"][1]
    assert partition["unsealed_bytes"] > 0
    assert (partition["high_watermark"], partition["sealed_offset"], partition["segments"]) == (3, 0, 0)

    rolled = run_json("topic", "roll", topic)
    assert {"partition": 1, "sealed_offset": 3} in rolled["sealed_offsets"]
    assert run_json("topic", "delete-records", topic, "--partition", 1, "--before-offset", 2) == {
        "topic": topic,
        "partition": 1,
        "log_start_offset": 2,
    }
    partition = run_json("topic", "describe", topic)["topic"]["partitions"][1]
    assert partition["log_start_offset"] == 2
    assert (partition["sealed_offset"], partition["segments"], partition["unsealed_bytes"]) == (3, 1, 0)
    assert partition["size_bytes"] > 0

    lines = run("topic", "describe", topic).stdout.splitlines()
    assert lines[-3].split() == [
        "partition",
        "start",
        "end",
        "high",
        "watermark",
        "sealed",
        "segments",
        "bytes",
        "unsealed",
    ]
    assert lines[-1].split()[:6] == ["1", "2", "3", "3", "3", "1"]


def test_describe_shows_configuration_that_is_set(run, topic):
    assert "Configuration" not in run("topic", "describe", topic).stdout
    run("topic", "alter", topic, "--config", "cleanup.policy=compact,delete")
    assert "Configuration: cleanup.policy=compact,delete\n" in run("topic", "describe", topic).stdout
    assert "max.message.bytes=" in run("topic", "describe", topic, "--all-configs").stdout


def test_refusals_are_one_line(run, topic):
    for arguments, says in (
        (["create", topic], "already exists"),
        (["create", "bad/name"], "bad/name"),
        (["create", "new", "--partitions", "0"], "partition"),
        (["create", "new", "-c", "retention.mss=1"], "retention.ms"),
        (["alter", topic, "-c", "retention.ms=soon"], "retention.ms"),
        (["alter", topic, "--partitions", "1"], "partition"),
        (["describe", "absent-topic"], "absent-topic"),
        (["delete", "absent-topic", "--yes"], "absent-topic"),
        (["roll", "absent-topic"], "absent-topic"),
        (["describe", ".."], ".."),
    ):
        result = run("topic", *arguments, code=1)
        assert result.stdout == ""
        assert result.stderr.startswith("logstore: ")
        assert result.stderr.count("\n") == 1
        assert says in result.stderr


def test_create_if_not_exists(run_json, topic):
    assert run_json("topic", "create", topic, "--if-not-exists")["created"] is False


def test_delete_without_a_terminal_wants_yes(run, topic):
    assert "--yes" in run("topic", "delete", topic, code=2).stderr
    run("topic", "describe", topic)
