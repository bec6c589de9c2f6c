import json
from collections.abc import Iterator
from uuid import uuid4

import pytest

pytestmark = pytest.mark.system


@pytest.fixture
def group(run) -> Iterator[str]:
    name = f"g-{uuid4().hex[:12]}"
    yield name
    run("group", "delete", name, "--yes", code=None)


@pytest.fixture
def filled(run, topic) -> str:
    """Append offsets 0 to 3 to partition 0, and offsets 0 to 1 to partition 1."""
    run("produce", topic, "--partition", 0, input="a\nb\nc\nd\n")
    run("produce", topic, "--partition", 1, input="e\nf\n")
    return topic


def test_a_group_from_its_first_reset_to_its_deletion(run, run_json, filled, group):
    assert run_json("group", "reset", group, "--topic", filled, "--to-earliest") == {
        "group": group,
        "dry_run": False,
        "offsets": [
            {"topic": filled, "partition": 0, "offset": 0, "previous_offset": None},
            {"topic": filled, "partition": 1, "offset": 0, "previous_offset": None},
        ],
    }
    listed = {each["group"]: each for each in run_json("group", "list")}
    assert listed[group] == {
        "group": group,
        "kind": "",
        "state": "Empty",
        "protocol_type": None,
        "protocol": None,
        "generation": -1,
        "members": 0,
        "partitions": 2,
        "total_lag": 6,
        "max_lag": 4,
    }
    assert [group, "-", "Empty", "0", "2", "6", "4"] in [
        line.split() for line in run("group", "list", "--state", "empty").stdout.splitlines()
    ]
    assert group not in run("group", "list", "--state", "Stable").stdout

    found = run_json("group", "describe", group)
    assert (found["group"], found["total_lag"], found["max_lag"]) == (group, 6, 4)
    first = found["partitions"][0]
    assert first.pop("timestamp") > 1_700_000_000_000
    assert 0 <= first.pop("lag_ms") < 600_000
    assert first == {
        "topic": filled,
        "partition": 0,
        "committed_offset": 0,
        "log_start_offset": 0,
        "high_watermark": 4,
        "lag": 4,
        "records_behind": 4,
        "leader_epoch": -1,
        "metadata": "",
        "member_id": None,
    }
    assert run_json("group", "delete", group, "--yes") == [{"group": group, "deleted": True, "error": None}]
    assert {"group": group} not in run_json("group", "list")
    assert "group list shows" in run("group", "describe", group, code=1).stderr


@pytest.mark.parametrize(
    ("target", "offsets"),
    [
        (["--to-latest"], [4, 2]),
        (["--to-offset", 2], [2, 2]),
        (["--to-timestamp", 0], [1, 0]),
        (["--to-timestamp", 99_999_999_999_999], [4, 2]),
        (["--to-timestamp", "yesterday"], [1, 0]),
        (["--to-timestamp", "-1h"], [1, 0]),
        (["--to-timestamp", "2200-01-01T00:00:00Z"], [4, 2]),
        (["--to-offset", -1], [3, 1]),
        (["--to-offset", -10], [1, 0]),
        (["--to-latest", "--partition", 1], [1, 2]),
        (["--to-offset", 3, "--partition", 0, "--partition", 0], [3, 0]),
    ],
    ids=str,
)
def test_the_offsets_of_a_reset(run, run_json, filled, group, target, offsets):
    run("topic", "delete-records", filled, "--partition", 0, "--before-offset", 1)
    run("group", "reset", group, "--topic", filled, "--to-earliest")
    asked = ["group", "reset", group, "--topic", filled, *target]
    planned = run_json(*asked, "--dry-run")
    assert planned["dry_run"] is True
    assert [found["committed_offset"] for found in run_json("group", "describe", group)["partitions"]] == [1, 0]
    done = run_json(*asked)
    assert done["offsets"] == planned["offsets"]
    assert all(found["previous_offset"] == (1, 0)[found["partition"]] for found in done["offsets"])
    assert [found["committed_offset"] for found in run_json("group", "describe", group)["partitions"]] == offsets


def test_a_time_goes_to_the_first_record_of_it(run_json, run, server, topic, group):
    import httpx

    records = [{"value": second, "timestamp": second * 1000} for second in range(10)]
    assert httpx.post(f"{server.url}/topics/{topic}/partitions/1", json={"records": records}).status_code == 200
    asked = ["group", "reset", group, "--topic", topic, "--partition", 1, "--to-timestamp", 4_500]
    assert run_json(*asked)["offsets"][0]["offset"] == 5


def test_tables_for_people(run, run_json, filled, group):
    asked = ["group", "reset", group, "--topic", filled, "-p", 0, "--to-offset", 3]
    assert run(*asked, "--dry-run").stdout.splitlines()[0] == f"Would reset group {group} in 1 partition"
    lines = run(*asked).stdout.splitlines()
    assert lines[0] == f"Reset group {group} in 1 partition"
    assert [line.split() for line in lines[2:]] == [["topic", "partition", "before", "after"], [filled, "0", "-", "3"]]
    lines = run("group", "describe", group).stdout.splitlines()
    assert lines[0].rpartition(", ")[0] == f"Group {group}: Empty, 0 members, 2 partitions, 3 records behind"
    assert lines[0].endswith(" s")
    assert lines[-2].split()[:7] == [filled, "0", "3", "0", "4", "1", "1"]
    # No offset is committed there, so all records are left to read.
    *counts, _, seconds, committed_at, member = lines[-1].split()
    assert (counts, seconds, committed_at, member) == ([filled, "1", "-", "0", "2", "2", "2"], "s", "-", "-")
    last = run_json("group", "describe", group)["partitions"][-1]
    assert (last["committed_offset"], last["lag"], last["timestamp"], last["metadata"]) == (None, 2, None, None)


def test_metadata_of_others_does_not_draw_on_the_terminal(run, run_json, server, filled, group):
    import httpx

    text = "\x1b[31mred\n"
    commit = {"offsets": [{"topic": filled, "partition": 0, "offset": 1, "metadata": text}]}
    assert httpx.post(f"{server.url}/groups/{group}/offsets", json=commit).status_code == 200
    assert r"\x1b[31mred\n" in run("group", "describe", group).stdout
    assert run_json("group", "describe", group)["partitions"][0]["metadata"] == text


def test_refusals_are_one_line_and_change_nothing(run, run_json, filled, group):
    run("topic", "delete-records", filled, "--partition", 0, "--before-offset", 1)
    run("group", "reset", group, "--topic", filled, "--to-latest")
    before = run_json("group", "describe", group)
    for arguments, says in (
        (["reset", group, "--topic", filled, "--to-offset", 3], f"{filled}-1: give 0 to 2"),
        (["reset", group, "--topic", filled, "--partition", 0, "--to-offset", 0], "give 1 to 4"),
        (["reset", group, "--topic", filled, "--partition", 0, "--to-offset", 2**63 - 1], "give 1 to 4"),
        (["reset", group, "--topic", filled, "--partition", 2, "--to-latest"], "Partition 2"),
        (["reset", group, "--topic", "absent", "--to-latest"], "absent"),
        (["reset", group, "--topic", "..", "--to-latest"], "'..'"),
        (["reset", "x" * 32_768, "--topic", filled, "--to-latest"], "32767"),
        (["describe", "absent"], "group list"),
        (["describe", ""], "group list"),
        (["describe", "a/b"], "group list"),
        (["delete", "absent", "--yes"], "group list"),
    ):
        result = run("group", *arguments, code=1)
        assert result.stdout == ""
        assert result.stderr.startswith("logstore: ")
        assert result.stderr.count("\n") == 1
        assert says in result.stderr
    assert run_json("group", "describe", group) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to-latest"],
        ["--topic", "t"],
        ["--topic", "t", "--to-latest", "--to-earliest"],
        ["--topic", "t", "--to-offset", 1, "--to-timestamp", 1],
        ["--topic", "t", "--to-timestamp", "soon"],
        ["--topic", "t", "--to-offset", "x"],
        ["--topic", "t", "--to-timestamp", -1],
        ["--topic", "t", "--partition", -1, "--to-latest"],
        ["--topic", "t", "--all-topics", "--to-latest"],
        ["--topic", "t", "--topic", "t", "--to-latest"],
        ["--topic", "t", "--topic", "u", "--partition", 0, "--to-latest"],
        ["--topic", "t:0", "--partition", 0, "--to-latest"],
        ["--topic", "t:", "--to-latest"],
        ["--topic", "t:0,x", "--to-latest"],
        ["--topic", "t", "--to-latest", "--shift-by", 1],
        ["--topic", "t", "--to-latest", "--export", "--json"],
        ["--topic", "t", "--from-file", "-"],
        ["--from-file", "-"],
        ["--from-file", "absent.csv"],
    ],
    ids=str,
)
def test_wrong_usage(run, arguments):
    assert run("group", "reset", "g", *arguments, code=2).stdout == ""


def test_offsets_go_out_as_csv_and_come_back(run, run_json, filled, group):
    run("group", "reset", group, "--topic", f"{filled}:0", "--to-offset", 3)
    asked = ["group", "reset", group, "--all-topics"]
    exported = run(*asked, "--to-current", "--dry-run", "--export").stdout
    assert exported == f"{filled},0,3\n{filled},1,2\n"
    run("group", "reset", group, "--topic", filled, "--shift-by", -2, code=1)
    run(*asked, "--shift-by", -2)  # partition 1 has no commit to shift
    assert [each["committed_offset"] for each in run_json("group", "describe", group)["partitions"]] == [1, None]
    run("group", "reset", group, "--from-file", "-", input=exported + "\n")
    assert [each["committed_offset"] for each in run_json("group", "describe", group)["partitions"]] == [3, 2]
    for lines, says in (
        (f"{filled},0,3\n{filled},0,1\n", "line 2"),
        (f"{filled},0\n", "line 1"),
        (f"{filled},0,-1\n", "line 1"),
        ("topic,partition,offset\n", "line 1"),
        ("\n", "no line"),
    ):
        assert says in " ".join(run("group", "reset", group, "--from-file", "-", input=lines, code=2).stderr.split())
    beyond = run("group", "reset", group, "--from-file", "-", input=f"{filled},0,1\n{filled},1,3\n", code=1)
    assert "0 to 2" in beyond.stderr
    assert [each["committed_offset"] for each in run_json("group", "describe", group)["partitions"]] == [3, 2]


def test_a_group_with_members_is_shown_and_neither_reset_nor_deleted(run, run_json, server, filled, group):
    import httpx

    joining = {"member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000, "owned": []}
    url = f"{server.url}/groups/{group}/consumer-heartbeat"
    assert httpx.post(url, json={**joining, "subscribed_topics": [filled]}).status_code == 200
    lines = run("group", "describe", group).stdout.splitlines()
    assert lines[0].startswith(f"Group {group}: Stable, 1 member, 2 partitions, 6 records behind")
    assert lines[1] == "Protocol consumer, assignor uniform, epoch 1"
    assert lines[4].split()[0:4:3] == ["m", "127.0.0.1"]
    assert lines[4].split()[-3:] == ["s", "ago", "-"]
    (member,) = run_json("group", "describe", group)["members"]
    assert member["assignment"] == [{"topic": filled, "partition": number} for number in (0, 1)]
    for command in (["reset", group, "--topic", filled, "--to-latest"], ["delete", group, "--yes"]):
        refused = run("group", *command, code=1)
        assert refused.stdout == ""
        assert "member" in refused.stderr
    other = f"{group}-other"
    run("group", "reset", other, "--topic", filled, "--to-latest")
    assert run_json("group", "delete", group, other, "--yes", code=1) == [
        {"group": group, "deleted": False, "error": f"Group {group} has members: stop them first."},
        {"group": other, "deleted": True, "error": None},
    ]
    run("group", "describe", other, code=1)
    assert httpx.post(url, json={"member_id": "m", "member_epoch": -1}).status_code == 200


def test_delete_without_a_terminal_wants_yes(run, filled, group):
    run("group", "reset", group, "--topic", filled, "--to-latest")
    assert "--yes" in run("group", "delete", group, code=2).stderr
    assert json.loads(run("group", "describe", group, "--json").stdout)["total_lag"] == 0
