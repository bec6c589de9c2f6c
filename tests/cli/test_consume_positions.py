"""The first and the last position of consume."""

import json

import pytest

from tests.support.posting import commit, post

pytestmark = pytest.mark.system

HOUR = 3_600_000
DAY = 24 * HOUR
#: 2024-10-04T12:00:00Z
NOON = 20_000 * DAY + DAY // 2


@pytest.fixture
def filled(server, topic) -> str:
    """Append values that name the hour of their time: hours 0 to 4 to partition 0, hours 2 and 6 to partition 1."""
    for partition, hours in ((0, range(5)), (1, (2, 6))):
        values = [f"{partition}:{hour}".encode() for hour in hours]
        post(server.url, topic, partition, values, timestamps_ms=[NOON + hour * HOUR for hour in hours])
    return topic


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--offset", -1], {"0:4", "1:6"}),
        (["--offset", -3], {"0:2", "0:3", "0:4", "1:2", "1:6"}),
        (["-p", 0, "--offset", 1, "--to-offset", 3], {"0:1", "0:2"}),
        (["--to-offset", -1], {"0:0", "0:1", "0:2", "0:3", "1:2"}),
        (["--from-timestamp", "2024-10-04T14:00:00Z"], {"0:2", "0:3", "0:4", "1:2", "1:6"}),
        (["--from-timestamp", "2024-10-04T14:00+02:00", "--to-timestamp", "2024-10-04 14:00"], {"0:0", "0:1"}),
        (["--to-timestamp", NOON + 2 * HOUR], {"0:0", "0:1"}),
        (["--from-timestamp", "2024-10-04", "--to-timestamp", "2024-10-05", "-p", 1], {"1:2", "1:6"}),
        (["--from-timestamp", "-1h"], set()),
        (["--to-timestamp", "yesterday", "-p", 1], {"1:2", "1:6"}),
        (["--from-timestamp", "2024-10-04T17:00", "--to-offset", -1], set()),
        (["--tail", 0], set()),
        (["--tail", 1], {"1:6"}),
        (["--tail", 3], {"1:6", "0:4", "0:3"}),
        (["--tail", 100], {"0:0", "0:1", "0:2", "0:3", "0:4", "1:2", "1:6"}),
        (["--tail", 2, "-p", 0], {"0:3", "0:4"}),
        (["--tail", 2, "--to-timestamp", "2024-10-04T15:00:00Z"], {"0:2", "1:2"}),
    ],
    ids=lambda value: " ".join(map(str, sorted(value) if isinstance(value, set) else value)) or "none",
)
def test_the_first_and_the_last_position(run, filled, arguments, expected):
    lines = run("consume", filled, *arguments).stdout.splitlines()
    assert len(lines) == len(expected)
    assert set(lines) == expected
    for partition in "01":
        assert [line for line in lines if line[0] == partition] == sorted(x for x in expected if x[0] == partition)


def test_the_last_records_follow_offsets_where_times_do_not(run, server, topic):
    post(server.url, topic, 0, [b"late", b"early"], timestamps_ms=[9, 1])
    post(server.url, topic, 1, [b"middle", b"newest"], timestamps_ms=[5, 6])
    # "late" comes before "early" in its partition, so the last records have it only with "early", the oldest of all.
    assert run("consume", topic, "--tail", 1).stdout == "newest\n"
    assert run("consume", topic, "--tail", 2).stdout == "middle\nnewest\n"
    assert sorted(run("consume", topic, "--tail", 3).stdout.split()) == ["early", "middle", "newest"]


def test_ends_that_a_partition_does_not_have(run, filled):
    assert "it has 0 to 5" in run("consume", filled, "-p", 0, "--to-offset", 6, code=1).stderr
    assert "--to-offset: topic" in run("consume", filled, "--to-offset", 1, code=2).stderr
    assert "is no time: give 2026-11-21T08:00:00Z" in run("consume", filled, "--from-timestamp", "-1", code=2).stderr


def test_a_group_commits_what_came_before_the_end(run, run_json, filled):
    run("consume", filled, "--group", f"g-{filled}", "--to-timestamp", "2024-10-04T14:00:00Z")
    run("consume", filled, "--group", f"g-{filled}", "-p", 1, "--to-offset", -1)
    found = run_json("group", "describe", f"g-{filled}")["partitions"]
    assert [row["committed_offset"] for row in found] == [2, 1]
    assert "0:2" in run("consume", filled, "--group", f"g-{filled}").stdout.split()
    run("group", "delete", f"g-{filled}", "--yes")


@pytest.mark.parametrize("options", [[], ["--follow", "--from-beginning", "--max", 5]])
def test_a_commit_beyond_the_end_counts_as_none_and_is_named(run, run_json, server, filled, options):
    """Commit as REST Proxy's clients may. Partition 1 goes on at its commit."""
    group = f"g-{filled}"
    commit(server.url, group, filled, {0: 501, 1: 2})
    reset = ["group", "reset", group, "--all-topics", "--to-current", "--dry-run", "--export"]
    exported = run(*reset)
    assert exported.stdout == f"{filled},0,5\n{filled},1,2\n"
    assert f"the committed offset 501 of {filled}-0 is beyond its end: 5 is taken instead" in exported.stderr
    run("group", "reset", f"{group}-2", "--from-file", "-", input=exported.stdout)
    copied = run("topic", "copy", filled, f"{filled}-2", "--group", group, "--from-timestamp", NOON + HOUR, "--json")
    assert json.loads(copied.stdout)["records"] == 4
    assert "reading from offset 1" in copied.stderr

    commit(server.url, group, filled, {0: 501, 1: 2})
    shown = run("consume", filled, "--group", group, *options)
    assert shown.stdout.split() == [f"0:{hour}" for hour in range(5)]
    warning = f"group {group} has committed offset 501 of {filled}-0, which ends at 5: reading from offset 0"
    assert warning in shown.stderr
    found = run_json("group", "describe", group)["partitions"]
    assert [row["committed_offset"] for row in found] == [5, 2]
    again = run("consume", filled, "--group", group)
    assert (again.stdout, again.stderr) == ("", "")
