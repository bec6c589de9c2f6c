import time

import pytest

from logstore.cli.topic_listing import listing, print_listing
from logstore.protocol.messages.status import InFlightStatus, JournalStatus, StoreStatus, TopicProblem, TopicStatus

pytestmark = pytest.mark.system


def test_a_topic_from_creation_to_deletion(run, run_json):
    created = run_json("topic", "create", "life", "--partitions", 2, "-c", "retention.ms=7d")
    assert created.pop("location").endswith("/topics/life")
    assert created == {"topic": "life", "partitions": 2, "created": True}

    altered = run_json("topic", "alter", "life", "-d", "retention.ms", "-c", "segment.ms = 5000", "--partitions", 3)
    assert altered["partitions"] == 3
    assert {(e["name"], e["value"], e["is_default"]) for e in altered["config_entries"]} == {
        ("retention.ms", "-1", True),
        ("segment.ms", "5000", False),
    }
    listed = {entry["topic"]: entry for entry in run_json("topic", "list")}
    assert listed["life"] == {
        "topic": "life",
        "partitions": 3,
        "replication_factor": 1,
        "is_internal": False,
        "records": 0,
        "size_bytes": 0,
        "unsealed_bytes": 0,
        "newest_timestamp": None,
        "problems": [],
    }
    assert ["life", "3", "0", "0", "B", "-"] in [line.split() for line in run("topic", "list").stdout.splitlines()]

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
        "leader",
        "replicas",
        "isr",
        "start",
        "end",
        "high",
        "watermark",
        "sealed",
        "segments",
        "bytes",
        "unsealed",
    ]
    assert lines[-1].split()[:9] == ["1", "0", "0", "0", "2", "3", "3", "3", "1"]


def test_describe_shows_configuration_that_is_set(run, topic):
    assert "Configuration" not in run("topic", "describe", topic).stdout
    run("topic", "alter", topic, "--config", "cleanup.policy=compact,delete")
    assert "Configuration: cleanup.policy=compact,delete\n" in run("topic", "describe", topic).stdout
    run("topic", "alter", topic, "--config", "retention.ms=12h")
    rows = [line.split() for line in run("topic", "describe", topic, "--all-configs").stdout.splitlines()]
    assert ["key", "value", "default", "source"] in rows
    assert ["retention.ms", "43200000", "-1", "topic"] in rows
    assert ["cleanup.policy", "compact,delete", "delete", "topic"] in rows
    assert ["max.message.bytes", "1048576", "1048576", "default"] in rows


def test_switching_to_compaction_names_the_records_without_keys(run, run_json, server, topic):
    import httpx

    records = [{"value": 1}, {"key": "k", "value": 2}, {"value": 3}]
    httpx.post(f"{server.url}/topics/{topic}/partitions/1", json={"records": records}).raise_for_status()
    told = run("topic", "alter", topic, "--config", "cleanup.policy=compact").stderr
    assert f"Compaction will remove records without a key: 2 records of {topic}-1 from offset 0 on." in told
    altered = run_json("topic", "alter", topic, "--config", "cleanup.policy=compact")
    assert altered["keyless_records"] == [{"partition": 1, "records": 2, "first_offset": 0}]
    assert "Compaction" not in run("topic", "alter", topic, "--config", "cleanup.policy=delete").stderr


def test_the_list_shows_records_bytes_and_age(run, run_json, server, topic):
    import httpx

    hours_ago = int(time.time() * 1000) - 5 * 3_600_000
    records = [{"value": n, "timestamp": hours_ago} for n in range(3)]
    httpx.post(f"{server.url}/topics/{topic}/partitions/1", json={"records": records}).raise_for_status()
    (found,) = [entry for entry in run_json("topic", "list") if entry["topic"] == topic]
    assert (found["records"], found["newest_timestamp"]) == (3, hours_ago)
    assert found["unsealed_bytes"] > 0
    (line,) = [line.split() for line in run("topic", "list").stdout.splitlines() if line.startswith(topic)]
    assert (line[1], line[2], line[-3:]) == ("2", "3", ["5", "h", "ago"])


def test_the_list_names_what_is_not_served_and_why(capsys):
    problems = tuple(
        TopicProblem(name, partition, state, f"because of {name}.", "do this")
        for name, partition, state in (("bad", None, "quarantined"), ("part", 1, "records_missing"))
    )
    part = TopicStatus("part", "id", False, 2, 1, 7, 0, 0, 0, 0)
    journal, in_flight = JournalStatus(0, 0, 1), InFlightStatus(0, 0, 1)
    status = StoreStatus("1", "c", 0, 1_000, 0, None, (part,), problems, journal, in_flight, 1, 1, None)
    assert [(entry["topic"], len(entry["problems"])) for entry in listing(status, internal=False)] == [
        ("part", 1),
        ("bad", 1),
    ]
    print_listing(status, internal=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["bad", "-", "-", "-", "-", "quarantined"]
    assert lines[2].split() == ["part", "2", "7", "0", "B", "1", "s", "ago", "records", "missing"]
    assert lines[-2:] == [
        "bad: quarantined: because of bad. do this",
        "part-1: records missing: because of part. do this",
    ]


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


@pytest.mark.parametrize(
    "command", [("topic", "describe", "none"), ("topic", "reassign", "generate", "--broker-list", 0, "--topic", "none")]
)
def test_a_topic_that_is_not_there_names_the_list_once(run, command):
    assert run(*command, code=1).stderr.count("logstore topic list") == 1


def test_create_if_not_exists(run_json, topic):
    assert run_json("topic", "create", topic, "--if-not-exists")["created"] is False


def test_delete_without_a_terminal_wants_yes(run, topic):
    assert "--yes" in run("topic", "delete", topic, code=2).stderr
    run("topic", "describe", topic)
