"""Commands at a cluster of real processes: partitions are moved by plans."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from logstore import Admin, Consumer, Producer
from logstore.cli.app import app
from tests.support.cluster_processes import ClusterProcess
from tests.support.eventually import eventually

pytestmark = pytest.mark.system


class Commands:
    def __init__(self, data: Path, url: str) -> None:
        self.data = data
        self.url = url

    def __call__(self, *arguments: object, code: int | None = 0, input: str | None = None) -> Result:
        runner = CliRunner(env={"LOGSTORE_URL": self.url})
        found = runner.invoke(app, [str(argument) for argument in arguments], input=input, prog_name="logstore")
        assert code in (None, found.exit_code), found.output
        return found

    def json(self, *arguments: object, code: int | None = 0, input: str | None = None) -> Any:
        return json.loads(self(*arguments, "--json", code=code, input=input).stdout)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A cluster of three brokers."""
    directory = tmp_path_factory.mktemp("commands")
    data = directory / "data"
    with ClusterProcess(directory, "cluster", "start", "--brokers", 3, "--data", data, "--json") as cluster:
        yield Commands(data, ",".join(broker["url"] for broker in cluster.entry["brokers"]))
        assert cluster.stop() == 0


def replicas(commands: Commands, topic: str) -> list[set[int]]:
    with Admin(commands.url) as admin:
        return [set(one.replicas) for one in admin.partition_replicas() if one.topic == topic]


def test_a_broker_is_emptied_by_a_plan_and_filled_again_by_the_way_back(commands: Commands, tmp_path: Path):
    commands("topic", "create", "moved", "-p", 6, "-r", 2)
    with Producer(commands.url) as producer:
        for number in range(60):
            producer.send("moved", b"%d" % number)
        producer.flush()
    before = replicas(commands, "moved")
    assert any(3 in one for one in before)

    plan = tmp_path / "plan.json"
    plan.write_text(commands("topic", "reassign", "generate", "--broker-list", "1,2", "--topic", "moved").stdout)
    planned = json.loads(plan.read_text())["partitions"]
    assert {one["partition"] for one in planned} >= {at for at, one in enumerate(before) if 3 in one}
    assert commands.json("topic", "reassign", "verify", plan, code=1)[0]["state"] == "not on its way"
    begun = commands.json("topic", "reassign", "execute", plan)
    assert begun["begun"] == len(planned) == len(begun["former"]["partitions"])
    eventually(
        lambda: all(
            one["state"] == "complete" for one in commands.json("topic", "reassign", "verify", plan, code=None)
        ),
        "the moves do not end",
    )
    assert "6 of 6" in commands("topic", "reassign", "verify", plan).stdout or len(planned) < 6
    assert replicas(commands, "moved") == [{1, 2}] * 6
    assert commands("topic", "reassign", "list").stdout == "No partition is being moved\n"
    assert "0 partitions" in commands("topic", "reassign", "execute", plan).stdout
    assert "Took 0 moves back" in commands("topic", "reassign", "cancel", plan).stdout
    again = commands("topic", "reassign", "generate", "--broker-list", "1,2", "--topic", "moved")
    assert json.loads(again.stdout)["partitions"] == []
    assert "already" in again.stderr

    way_back = json.dumps(begun["former"])
    commands("topic", "reassign", "execute", "-", input=way_back)
    eventually(lambda: replicas(commands, "moved") == before, "not as it was")
    with Consumer(commands.url, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["moved"])
        values: set[bytes] = set()

        def has_all() -> bool:
            values.update(record.value for record in consumer.poll(timeout_s=0.2))
            return len(values) == 60

        eventually(has_all, "records are missing")


@pytest.mark.parametrize(
    ("arguments", "plan", "told", "code"),
    [
        (("generate", "--broker-list", "1,2,9"), None, "brokers [9] are not there, only [1, 2, 3]", 1),
        (("generate", "--broker-list", "1;2"), None, "'1;2' is no list of ids, as 1,2,3", 2),
        (("generate", "--broker-list", "1", "--topic", "u"), None, "Topic 'u' not found", 1),
        (
            ("generate", "--broker-list", "1", "-r", "2", "--topic", "s"),
            None,
            "2 replicas, and the plan has 1 brokers",
            1,
        ),
        (("generate", "--broker-list", "1", "-r", "0"), None, "replication-factor", 2),
        (("execute", "no-such-file"), None, "no-such-file: No such file or directory", 1),
        (("execute", "-"), "{", "The plan is not", 1),
        (("execute", "-"), [["s", 7, [1]]], "s-7, and there is no such partition. Nothing is moved", 1),
        (("execute", "-"), [["s", 0, [2]], ["s", 1, [9]]], "s-1 to brokers [9], and there are [1, 2, 3]", 1),
        (("execute", "-"), [["s", 0, [2, 2]]], "distinct ids of brokers", 1),
        (("verify", "-"), [["s", 0, [2]], ["s", 0, [1]]], "s-0 twice", 1),
    ],
)
def test_bad_plans_move_nothing_and_say_why_in_a_line(commands: Commands, arguments, plan, told, code):
    commands("topic", "create", "s", "-p", 2, "-r", 1, "--if-not-exists")
    before = replicas(commands, "s")
    text = plan
    if isinstance(plan, list):
        names = ("topic", "partition", "replicas")
        text = json.dumps({"version": 1, "partitions": [dict(zip(names, one, strict=True)) for one in plan]})
    found = commands("topic", "reassign", *arguments, code=code, input=text)
    assert told in found.stderr
    assert code == 2 or found.stderr.count("\n") == 1
    assert replicas(commands, "s") == before
