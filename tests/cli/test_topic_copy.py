"""``logstore topic copy``."""

import json
import signal

import pytest

from tests.support.eventually import eventually
from tests.support.posting import post

pytestmark = pytest.mark.system


@pytest.fixture
def filled(run, server, topic) -> str:
    """Append ten records to each of two partitions; every third has no key, every fifth is a tombstone."""
    for partition in (0, 1):
        post(
            server.url,
            topic,
            partition,
            [None if n % 5 == 4 else json.dumps({"n": n, "from": partition}).encode() for n in range(10)],
            keys=[None if n % 3 == 2 else b"k%d" % n for n in range(10)],
            timestamps_ms=[1_000 * n for n in range(10)],
            headers=[[("h", b"\xff"), ("h", None)] if n % 2 else None for n in range(10)],
        )
    return topic


def records(run, name, *, with_partition=True):
    lines = [json.loads(line) for line in run("consume", name, "-f", "base64").stdout.splitlines()]
    for line in lines:
        del line["topic"], line["offset"]
        if not with_partition:
            del line["partition"]
    return sorted(lines, key=json.dumps)


def test_a_topic_that_is_not_there_gets_the_partitions_and_the_configuration_of_the_source(run, run_json, filled):
    run("topic", "alter", filled, "--config", "segment.ms=54321")
    assert "20 records" in run("topic", "copy", filled, f"{filled}-2").stdout
    assert records(run, f"{filled}-2") == records(run, filled)
    described = run_json("topic", "describe", f"{filled}-2")
    assert described["topic"]["configs"]["segment.ms"] == "54321"
    assert len(described["topic"]["partitions"]) == 2


def test_other_partitions_are_chosen_by_key(run, filled):
    run("topic", "create", f"{filled}-5", "--partitions", 5)
    run("topic", "copy", filled, f"{filled}-5", "--progress")
    assert records(run, f"{filled}-5", with_partition=False) == records(run, filled, with_partition=False)
    of_key = [line["partition"] for line in records(run, f"{filled}-5") if line["key"] == "azE="]
    assert len(of_key) == 2
    assert len(set(of_key)) == 1


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--from-timestamp", 7_000], 6),
        (["--where", "$.n >= 7 and $.from == 1"], 2),
        (["--key", "k3"], 2),
        (["--key", "k3", "--where", "timestamp < 3000"], 0),
    ],
)
def test_only_some_of_the_records(run, run_json, filled, options, count):
    copied = run_json("topic", "copy", filled, f"{filled}-some", *options)
    assert copied == {"source": filled, "target": f"{filled}-some", "records": count, "error": None}
    assert len(records(run, f"{filled}-some")) == count


def test_with_a_group_the_next_run_continues_after_the_previous_one(run, run_json, server, filled):
    copy = ["topic", "copy", filled, f"{filled}-g", "--group", f"g-{filled}"]
    assert run_json(*copy)["records"] == 20
    assert run_json(*copy)["records"] == 0
    post(server.url, filled, 1, [b"new"])
    assert run_json(*copy, "--from-timestamp", 0)["records"] == 1
    assert len(records(run, f"{filled}-g")) == 21


def test_a_refused_record_stops_the_copy_and_is_not_skipped(run, run_json, filled):
    run("topic", "create", f"{filled}-c", "--partitions", 2, "--config", "cleanup.policy=compact")
    refused = run("topic", "copy", filled, f"{filled}-c", "--group", f"g-{filled}-c", code=1)
    assert "key" in refused.stderr
    assert "itself" in run("topic", "copy", filled, filled, code=2).stderr
    assert "no-such" in run("topic", "copy", "no-such", filled, code=1).stderr


def test_ctrl_c_counts_what_is_copied_and_the_next_run_copies_the_rest(run, run_json, start, server, topic):
    for _ in range(20):
        post(server.url, topic, 0, [b"x" * 500_000] * 4)
    copying = start("topic", "copy", topic, f"{topic}-2", "--group", f"g-{topic}")
    eventually(lambda: f"{topic}-2" in run("topic", "list").stdout)
    eventually(lambda: run_json("topic", "describe", f"{topic}-2")["topic"]["partitions"][0]["high_watermark"] > 0)
    copying.send_signal(signal.SIGINT)
    output, _ = copying.communicate(timeout=60)
    assert copying.returncode in (0, 130), output
    first = int(output.decode().rpartition("Copied ")[2].split()[0])
    assert run_json("topic", "copy", topic, f"{topic}-2", "--group", f"g-{topic}")["records"] == 80 - first
    assert run_json("topic", "describe", f"{topic}-2")["topic"]["partitions"][0]["high_watermark"] == 80
