"""Only the journal is lost, older or repaired, and ``meta.json`` stays: no acknowledged record is lost."""

import asyncio
import itertools
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from logstore.broker.context import INTERNAL
from logstore.cli.app import app
from logstore.cluster.cluster_state import ElectionType
from logstore.cluster.znodes import NO_LEADER
from logstore.errors import LogStoreError
from logstore.inspection.observed_journal import ObservedJournal
from logstore.journal import journal as journal_module
from logstore.journal.errors import JournalDiffersError
from logstore.log.frame_records import frame_records
from logstore.log.relocation import relocate_oldest
from logstore.log.topic import Topic
from tests.support import lost_journals
from tests.support.cluster_states import Brokers
from tests.support.cluster_stores import ClusterStores
from tests.support.eventually import eventually_async
from tests.support.lost_journals import difference, durable_end, found_in, journal_of
from tests.support.running_broker import produce, read_all

pytestmark = [pytest.mark.anyio, pytest.mark.system]

BROKERS = (1, 2, 3)
VICTIM = 1
RECORDS = 60
CONFIGS = {"segment.ms": "100000000", "min.insync.replicas": "2"}


@pytest.fixture
async def stores(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClusterStores]:
    monkeypatch.setattr(journal_module, "RECORDING_S", 0.01)
    found = ClusterStores(brokers, tmp_path / "data", replicated=True, offsets_topic_replication_factor=3)
    yield found
    await found.stop()


async def gone(home: Path, _: Path) -> None:
    lost_journals.lose(home)


async def older(home: Path, image: Path) -> None:
    lost_journals.put_in_place(home, image)
    assert found_in(image).end < durable_end(home)


async def repaired(home: Path, _: Path) -> None:
    lost_journals.damage(home, random.Random(7))
    command = ["journal", "repair", str(journal_of(home)), "--yes"]
    ran = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert "now ends at position" in ran.stdout, ran.output


def values_of(topic: str) -> list[bytes]:
    return [b"%s %d" % (topic.encode(), number) for number in range(RECORDS)]


async def produce_half(stores: ClusterStores, topic: str, half: int) -> None:
    """Produce thirty records to all replicas, and wait until the position file beside each journal includes them."""
    await produce_values(stores, topic, values_of(topic)[half * RECORDS // 2 : (half + 1) * RECORDS // 2])


async def produce_values(stores: ClusterStores, topic: str, values: Sequence[bytes]) -> None:
    """Produce to all replicas, and wait until the position file beside each journal includes the records."""
    leader = stores.leader(topic, 0)
    for begin in range(0, len(values), 10):
        last = await produce(leader, leader.topics.served.topic(INTERNAL, topic), list(values[begin : begin + 10]))
    end = last + len(values[begin:])
    ends = {}
    for broker_id, store in stores.stores.items():
        log = store.broker.topics.served.topic(INTERNAL, topic).partitions[0]
        await eventually_async(lambda log=log: log.log_end_offset == end, "not replicated")
        ends[broker_id] = store.broker.journal.end_position
    for broker_id, end in ends.items():
        home = stores.settings(broker_id).log_directory
        await eventually_async(lambda home=home, end=end: durable_end(home) >= end, "the position is not written down")


async def in_sync(stores: ClusterStores, topic: str) -> None:
    async with asyncio.timeout(60):
        while set((await stores.zookeeper.row(topic)).isr) != set(BROKERS):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def stored_on(home: Path, topic_id: UUID) -> list[bytes]:
    """Return the values of a partition, by offset, in the journal of a stopped broker, without truncated ones."""
    found: dict[int, bytes] = {}
    for frame in ObservedJournal(journal_of(home)).records(lambda header: header.topic_id == topic_id):
        for batch in frame_records([frame]):
            found |= zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return [found[offset] for offset in sorted(found)]


@pytest.mark.parametrize(
    "orders",
    [
        pytest.param([(VICTIM, 2, 3)], id="first"),
        pytest.param([*itertools.permutations(BROKERS)], id="in each order", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("loss", [gone, older, repaired], ids=lambda loss: loss.__name__)
async def test_all_replicas_have_all_records_whichever_broker_starts_first(
    stores: ClusterStores,
    tmp_path: Path,
    loss: Callable[[Path, Path], Awaitable[None]],
    orders: Sequence[Sequence[int]],
) -> None:
    home = stores.settings(VICTIM).log_directory
    made: list[Topic] = []
    await stores.start(*BROKERS)
    for order in orders:
        name = f"t{len(made)}"
        making = await stores.making()
        made.append(
            await making.topics.changes.create(INTERNAL, name, partitions=1, replication_factor=3, configs=CONFIGS)
        )
        await stores.everywhere(name, 1)
        await in_sync(stores, name)
        await produce_half(stores, name, 0)
        image = shutil.copytree(journal_of(home), tmp_path / f"image of {name}")
        await produce_half(stores, name, 1)
        await stores.kill()
        require_stored_everywhere(stores, made)
        assert difference(home) is None
        await loss(home, image)
        assert (await stores.zookeeper.row(name)).isr != (), "the victim alone has lost something"
        await stores.start(*order)
        await stores.everywhere(name, 1)
        await in_sync(stores, name)
        leader = stores.leader(name, 0)
        assert await read_all(leader, leader.topics.served.topic(INTERNAL, name)) == list(enumerate(values_of(name))), (
            order
        )
    await stores.kill()
    require_stored_everywhere(stores, made)


@pytest.mark.long
async def test_a_journal_of_the_time_before_a_restore_costs_no_replica_a_record(
    stores: ClusterStores, tmp_path: Path
) -> None:
    """Restore a log directory, and later put the longer journal of the time before into it."""
    home = stores.settings(VICTIM).log_directory
    image, before = tmp_path / "image", tmp_path / "before"
    await stores.start(*BROKERS)
    topics = (await stores.making()).topics.changes
    made = [
        await topics.create(INTERNAL, name, partitions=1, replication_factor=3, configs=CONFIGS)
        for name in ("t", "long")
    ]
    values = values_of("t")

    async def restarted(order: Sequence[int]) -> None:
        await stores.start(*order)
        for topic in made:
            await stores.everywhere(topic.name, 1)
            await in_sync(stores, topic.name)

    await produce_values(stores, "t", values[:20])
    await stores.kill()
    shutil.copytree(home, image)
    await restarted(BROKERS)
    await produce_values(stores, "t", values[20:30])
    await produce_values(stores, "long", [bytes(1 << 20)])
    # Once they are in the table, the restored broker does not copy them into its journal again.
    leader = stores.leader("long", 0)
    await leader.topics.tables.roll(INTERNAL, leader.topics.served.topic(INTERNAL, "long"))
    await stores.kill()
    (home / "journal").rename(before)
    shutil.rmtree(home)
    image.rename(home)
    await restarted(BROKERS)
    await produce_values(stores, "t", values[30:])
    await stores.kill()
    shutil.rmtree(home / "journal")
    before.rename(home / "journal")
    assert "before the directory was restored" in (difference(home) or "")
    await restarted((VICTIM, 2, 3))
    await stores.kill()
    require_stored_everywhere(stores, made[:1])


@pytest.mark.long
async def test_brokers_whose_journals_are_swapped_do_not_start_and_change_nothing(stores: ClusterStores) -> None:
    await stores.start(*BROKERS)
    made = await (await stores.making()).topics.changes.create(
        INTERNAL, "t", partitions=1, replication_factor=3, configs=CONFIGS
    )
    await stores.everywhere("t", 1)
    await in_sync(stores, "t")
    await produce_half(stores, "t", 0)
    await produce_half(stores, "t", 1)
    await stores.kill()
    homes = [stores.settings(broker_id).log_directory for broker_id in (VICTIM, 2)]

    def swap() -> None:
        one, two = (home / "journal" for home in homes)
        one.rename(one.with_name("aside"))
        two.rename(one)
        one.with_name("aside").rename(two)

    swap()
    before = [lost_journals.content_of(home) for home in homes]
    for broker_id in (VICTIM, 2):
        with pytest.raises(JournalDiffersError, match="another broker may need this journal"):
            await stores.start(broker_id)
    assert [lost_journals.content_of(home) for home in homes] == before
    swap()
    await stores.start(*BROKERS)
    await stores.everywhere("t", 1)
    await in_sync(stores, "t")
    await stores.kill()
    require_stored_everywhere(stores, [made])


async def test_frames_that_were_copied_forward_and_are_lost_come_from_the_leader(stores: ClusterStores) -> None:
    """Lose the earlier frames of a journal, which were never sealed, and keep the later ones."""
    home = stores.settings(VICTIM).log_directory
    await stores.start(*BROKERS)
    made = await (await stores.making()).topics.changes.create(
        INTERNAL, "t", partitions=1, replication_factor=3, configs=CONFIGS
    )
    await stores.everywhere("t", 1)
    await in_sync(stores, "t")
    await produce_half(stores, "t", 0)
    victim = stores.stores[VICTIM].broker
    await victim.journal.rotate()
    await produce_half(stores, "t", 1)
    copies = await relocate_oldest(victim.journal, victim._schedule.keepers(), 1 << 20)
    await victim.journal.freed()
    await eventually_async(lambda: durable_end(home) >= victim.journal.end_position, "the position is not written down")
    await stores.kill()
    newest = max(journal_of(home).glob("*.log"))
    with newest.open("r+b") as file:
        file.truncate(copies[0].position - int(newest.stem))
    assert stored_on(home, made.topic_id) == values_of("t")[RECORDS // 2 :]
    assert difference(home) is not None
    await stores.start(*BROKERS)
    await stores.everywhere("t", 1)
    await in_sync(stores, "t")
    await stores.kill()
    require_stored_everywhere(stores, [made])


def require_stored_everywhere(stores: ClusterStores, topics: Sequence[Topic]) -> None:
    """Check that the journals of the brokers, all stopped, have all records of the topics."""
    for broker_id, topic in itertools.product(BROKERS, topics):
        home = stores.settings(broker_id).log_directory
        assert stored_on(home, topic.topic_id) == values_of(topic.name), f"{topic.name} on broker {broker_id}"


@pytest.mark.parametrize("comes_back", [True, False])
async def test_the_only_replica_leads_again_when_somebody_asks_for_it(
    stores: ClusterStores, tmp_path: Path, comes_back: bool
) -> None:
    """Give its offsets to nobody until then. Once the journal is back, all records are served."""
    home = stores.settings(VICTIM).log_directory
    await stores.start(VICTIM, offsets_topic_replication_factor=1)
    one = await stores.making()
    topic = await one.topics.changes.create(
        INTERNAL, "t", partitions=1, configs={**CONFIGS, "min.insync.replicas": "1"}
    )
    await produce(one, topic, [b"in the table"])
    await one.topics.tables.roll(INTERNAL, topic)
    await produce(one, topic, [b"in the journal"])
    end = one.journal.end_position
    await eventually_async(lambda: durable_end(home) >= end, "the position is not written down")
    await stores.kill()
    aside = tmp_path / "aside"
    (home / "journal").rename(aside)
    for _ in range(2):
        (one,) = await stores.start(VICTIM, offsets_topic_replication_factor=1)
        row = await stores.zookeeper.row("t")
        assert (row.leader, row.isr) == (NO_LEADER, ())
        with pytest.raises(LogStoreError):
            await produce(one, one.topics.served.topic(INTERNAL, "t"), [b"at an offset that was acknowledged"])
        await stores.stop()
    if comes_back:
        shutil.rmtree(home / "journal")
        aside.rename(home / "journal")
    (one,) = await stores.start(VICTIM, offsets_topic_replication_factor=1)
    assert (await stores.zookeeper.row("t")).leader == NO_LEADER
    await stores.making()
    await stores.cluster_state(VICTIM).elect_leaders(ElectionType.UNCLEAN, {"t": [0]})
    topic = one.topics.served.topic(INTERNAL, "t")
    await eventually_async(lambda: topic.partitions[0].is_leader, "no leader")
    kept = [b"in the table", *([b"in the journal"] if comes_back else [])]
    await eventually_async(lambda: topic.partitions[0].high_watermark == len(kept), "not all there")
    assert await read_all(one, topic) == list(enumerate(kept))
    assert await produce(one, topic, [b"next"]) == len(kept)
