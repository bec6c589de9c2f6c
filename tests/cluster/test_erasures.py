"""An erasure covers all brokers: each rewrites its journal, and a stopped broker does so before it serves again."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.records.erasure_record import Erasure
from tests.support.cluster_states import Brokers
from tests.support.cluster_stores import ClusterStores
from tests.support.eventually import eventually_async
from tests.support.running_broker import CLIENT, read_all, records

pytestmark = [pytest.mark.anyio, pytest.mark.system]

BROKERS = (1, 2, 3)
#: Only an erasure rolls anything.
CONFIGS = {"segment.ms": "100000000", "min.insync.replicas": "2"}
SECRET = b"secret words of ada"


@pytest.fixture
async def stores(brokers: Brokers, tmp_path: Path) -> AsyncIterator[ClusterStores]:
    found = ClusterStores(brokers, tmp_path / "data", replicated=True, offsets_topic_replication_factor=3)
    yield found
    await found.stop()


def files_with(data: Path, text: bytes) -> list[str]:
    files = (file for file in data.rglob("*") if file.is_file())
    return [str(file.relative_to(data)) for file in files if text in file.read_bytes()]


async def put(stores: ClusterStores, partition: int, *keys: bytes) -> None:
    values = [SECRET if key == b"ada" else b"plain words" for key in keys]
    leader = stores.leader("t", partition)
    topic = leader.topics.served.topic(INTERNAL, "t")
    result = await leader.produce.records.produce(
        INTERNAL, topic, records(values, keys=list(keys)), partition=partition
    )
    result.require_stored()


def report(broker: Broker, erasure: str) -> Erasure:
    return broker.erasing.report(broker.topics.served.topic(INTERNAL, "t"), erasure)[0]


async def test_every_broker_erases_and_one_that_is_down_before_it_serves(stores: ClusterStores, tmp_path: Path) -> None:
    data = stores.data
    await stores.start(*BROKERS)
    making = await stores.making()
    await making.topics.changes.create(INTERNAL, "t", partitions=3, replication_factor=3, configs=CONFIGS)
    await making.topics.changes.create(INTERNAL, "idle", partitions=1, replication_factor=3, configs=CONFIGS)
    topics = await stores.everywhere("t", 3)
    await stores.everywhere("idle", 1)
    leader_of_idle = stores.leader("idle", 0)
    idle = leader_of_idle.topics.served.topic(INTERNAL, "idle")
    (await leader_of_idle.produce.records.produce(INTERNAL, idle, records([b"kept"]), partition=0)).require_stored()
    for partition in range(3):
        await put(stores, partition, b"ada", b"bob", b"ada")

    def replicated() -> bool:
        return all(log.log_end_offset == 3 for topic in topics for log in topic.partitions)

    await eventually_async(replicated, "not replicated")
    assert len([f for f in files_with(data, SECRET) if "journal" in f]) == 3

    # The erasure begins on a broker that is not the controller, although the controller creates the topic of erasures.
    broker = stores.leader("t", 0)
    erasure = await broker.erasing.begin(CLIENT, broker.topics.served.topic(INTERNAL, "t"), [b"ada"])
    await eventually_async(
        lambda: report(broker, erasure).state == "erased",
        str(broker.erasing.report(broker.topics.served.topic(INTERNAL, "t"), erasure)),
    )
    found = report(broker, erasure)
    assert (found.records, [one.broker for one in found.brokers], found.pending) == (6, [1, 2, 3], ())
    assert files_with(data, SECRET) == []
    for partition in range(3):
        leader = stores.leader("t", partition)
        assert await read_all(leader, leader.topics.served.topic(INTERNAL, "t"), partition) == [(1, b"plain words")]

    for partition in range(3):
        await put(stores, partition, b"ada", b"cy")
    await eventually_async(lambda: all(log.log_end_offset == 5 for t in topics for log in t.partitions), "not there")
    kept = broker, await stores.making()
    down = next(one for one in BROKERS if stores.stores[one].broker not in kept)
    await stores.kill(down)
    await eventually_async(lambda: down not in broker.brokers_by_id, "the session has not ended")
    for partition in range(3):
        await eventually_async(
            lambda partition=partition: any(t.partitions[partition].is_settled for t in topics), "no leader"
        )
    broker = stores.leader("t", 0)
    again = await broker.erasing.begin(CLIENT, broker.topics.served.topic(INTERNAL, "t"), [b"ada"])
    await eventually_async(lambda: report(broker, again).pending == (down,), "it does not say who is missing")
    assert report(broker, again).state == "pending"
    assert [f for f in files_with(data, SECRET) if f"brokers/{down}/" not in f] == []
    assert files_with(data, SECRET)

    (back,) = await stores.start(down)
    assert files_with(data, SECRET) == [], "it serves before it has erased"
    await eventually_async(lambda: report(broker, again).state == "erased", "not erased")
    await eventually_async(lambda: back.topics.served.topic(INTERNAL, "t").partitions[0].sealed_offset == 5, "it lags")
    assert [value for _, value in await read_all(broker, broker.topics.served.topic(INTERNAL, "t"), 0)] == [
        b"plain words"
    ] * 2
    assert (
        len(await read_all(stores.leader("idle", 0), stores.leader("idle", 0).topics.served.topic(INTERNAL, "idle")))
        == 1
    )
