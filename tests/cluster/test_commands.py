"""Commands and bad input at a cluster of real processes."""

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from logstore import Admin, Consumer, Producer
from logstore.cli.app import app
from logstore.cluster.zookeeper import Servers, ZooKeeper
from tests.support.cluster_processes import ClusterProcess
from tests.support.eventually import eventually

pytestmark = pytest.mark.system

T = TypeVar("T")


class Commands:
    def __init__(self, data: Path, url: str, zookeeper: str) -> None:
        self.data = data
        self.url = url
        self.zookeeper = zookeeper

    def logs(self) -> list[str]:
        """Return the log of each broker."""
        return [path.read_text() for path in sorted((self.data / "cluster").glob("broker-*.log"))]

    def __call__(self, *arguments: object, code: int | None = 0, input: str | None = None) -> Result:
        runner = CliRunner(env={"LOGSTORE_URL": self.url})
        found = runner.invoke(app, [str(argument) for argument in arguments], input=input, prog_name="logstore")
        assert code in (None, found.exit_code), found.output
        return found

    def json(self, *arguments: object, code: int | None = 0, input: str | None = None) -> Any:
        return json.loads(self(*arguments, "--json", code=code, input=input).stdout)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Start a cluster of three brokers."""
    directory = tmp_path_factory.mktemp("commands")
    data = directory / "data"
    with ClusterProcess(directory, "cluster", "start", "--brokers", 3, "--data", data, "--json") as cluster:
        urls = ",".join(broker["url"] for broker in cluster.entry["brokers"])
        yield Commands(data, urls, cluster.entry["zookeeper"])
        assert cluster.stop() == 0


def replicas(commands: Commands, topic: str) -> list[set[int]]:
    with Admin(commands.url) as admin:
        return [set(one.replicas) for one in admin.partition_replicas() if one.topic == topic]


@pytest.mark.long
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
        (("generate", "--broker-list", "1,2,9"), None, "brokers [9] are not running, only [1, 2, 3]", 1),
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


@pytest.mark.parametrize(("factor", "told"), [(0, "is below 1"), (4, "is larger than the number of brokers (3)")])
def test_a_topic_has_as_many_replicas_as_there_are_brokers_at_most(commands: Commands, factor: int, told: str):
    refused = commands("topic", "create", "many", "-r", factor, code=1).stderr
    assert f"Replication factor {factor} {told}" in refused
    assert refused.count("\n") == 1
    assert "not found" in commands("topic", "describe", "many", code=1).stderr


async def with_zookeeper(commands: Commands, work: Callable[[ZooKeeper], Awaitable[T]]) -> T:
    zookeeper = ZooKeeper(Servers.parse(commands.zookeeper))
    await zookeeper.start()
    try:
        return await work(zookeeper)
    finally:
        await zookeeper.stop()


def test_a_document_that_was_edited_by_hand_changes_nothing_but_its_topic(commands: Commands):
    for name in ("edited", "beside"):
        commands("topic", "create", name, "-p", 1, "-r", 3)
    path = "/brokers/topics/edited"

    async def edit(zookeeper: ZooKeeper, data: bytes | None = None) -> bytes:
        node = await zookeeper.get(path)
        assert node is not None
        await zookeeper.write(path, b'{"leader": 1}' if data is None else data, node.version)
        return node.data

    former = asyncio.run(with_zookeeper(commands, edit))
    eventually(lambda: all(f"{path} in ZooKeeper is not what" in log for log in commands.logs()), "not told")
    (problem,) = eventually(lambda: commands.json("status")["problems"])
    assert (problem["topic"], problem["state"]) == ("edited", "registration_damaged")
    assert f"{path} in ZooKeeper is not what" in commands("doctor", code=None).output.replace("\n", " ")
    with Producer(commands.url) as producer:
        # Leaders and replicas are unchanged.
        assert producer.send("edited", b"a").result(30).offset == 0
        assert producer.send("beside", b"a").result(30).offset == 0
        asyncio.run(with_zookeeper(commands, lambda zookeeper: edit(zookeeper, former)))
        assert producer.send("edited", b"b").result(30).offset == 1
    eventually(lambda: commands.json("status")["problems"] == [], "told when it is mended")
    assert [log.count("cluster.document_damaged") for log in commands.logs()] == [1, 1, 1]
    assert "Traceback" not in "".join(commands.logs())


def test_strangers_at_the_peer_port_are_one_line_each(commands: Commands):
    async def peers(zookeeper: ZooKeeper) -> list[str]:
        found = []
        for broker_id in await zookeeper.children("/brokers/ids"):
            node = await zookeeper.get(f"/brokers/ids/{broker_id}")
            assert node is not None
            found.append(json.loads(node.data)["peer"])
        return found

    said = {
        "garbage": random.Random(7).randbytes(5_000),
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "oversized": (1 << 31).to_bytes(4, "little") + bytes(8),
    }
    commands("topic", "create", "open", "-p", 1, "-r", 3)
    before = sum(log.count("peer.refused") for log in commands.logs())
    addresses = asyncio.run(with_zookeeper(commands, peers))
    assert len(addresses) == 3
    for address in addresses:
        host, _, port = address.rpartition(":")
        for text in said.values():
            with socket.create_connection((host, int(port)), timeout=30) as stranger:
                stranger.sendall(text)
                while stranger.recv(4096):
                    pass
    eventually(lambda: sum(log.count("peer.refused") for log in commands.logs()) >= before + 3, "not told")
    assert "Traceback" not in "".join(commands.logs())
    with Producer(commands.url) as producer:
        assert producer.send("open", b"a").result(30).offset == 0
