"""A store joins its small segments by itself: readers and producers notice nothing, and no race or crash does harm."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from logstore.broker import upkeep
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.upkeep import MERGE_AT
from logstore.delta.topic_table import TopicTable
from logstore.errors import StorageError
from logstore.log.history import history_gaps
from logstore.log.log_reader import FetchResult
from logstore.log.roller import Roller
from logstore.log.slice_reader import SliceReader
from logstore.log.topic import Topic
from logstore.protocol.record_batch import RecordBatch, encode_batches, read_records
from logstore.table_files import open_table
from tests.faults.test_overwritten_commits import overwrite
from tests.support.eventually import eventually_async
from tests.support.kafka_reading import read_batches, rows_from
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.table_paths import path_of, read_footer
from tests.support.topics import HookedFileSystem, joined, rewrite_files
from tests.support.virtual_time import run

CONFIGS = {"segment.ms": "100000000"}


@pytest.fixture(autouse=True)
def _asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable all merges except those that a test asks for, however slow the machine is."""
    monkeypatch.setattr(upkeep, "_LOOK_S", 3600)


async def topic_of_many(broker: Broker, rolls: int = MERGE_AT + 8, **configs: str) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, "t", configs=CONFIGS | configs)
    assert topic
    for at in range(rolls):
        await produce(broker, topic, [b"%d" % at, None])
        await broker.topics.tables.roll(INTERNAL, topic)
    return topic


def on_disk(topic: Topic) -> set[str]:
    return {path.relative_to(path_of(topic.table)).as_posix() for path in path_of(topic.table).glob("*/*.parquet")}


def plain_reader(topic: Topic) -> list[int]:
    table = DeltaTable(path_of(topic.table)).to_pyarrow_table(columns=["offset"])
    return sorted(table["offset"].to_pylist())


def test_many_small_segments_become_few_and_the_records_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker)
            before, last = await read_all(broker, topic), topic.partition(0).segments.files[-1]
            assert await broker._upkeep.merge(topic)
            assert len(topic.partition(0).segments) < 10
            assert await read_all(broker, topic) == before
            assert plain_reader(topic) == list(range(80))
            first = topic.partition(0).segments.files[0]
            assert read_footer(path_of(topic.table) / first.path).operation == "merge"
            assert topic.partition(0).segments.files[-1] == last
            assert not await broker._upkeep.merge(topic)
            (newest,) = DeltaTable(path_of(topic.table)).history(1)
            assert newest["logstore.operation"] == "merge"
            assert await produce(broker, topic, [b"next"]) == 80
            await broker.topics.tables.roll(INTERNAL, topic)
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert await read_all(broker, topic) == [*before, (80, b"next")]

    run(scenario())


@pytest.mark.parametrize("form", ["read", "read_stored", "read_batches"])
def test_a_merge_in_the_middle_of_a_read_doubles_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Merge while an answer of many segments is read: the merged one begins below the offset at which the read
    continues.
    """

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic, loop = await topic_of_many(broker), asyncio.get_running_loop()
            log, reader = topic.partition(0), broker.fetch._reader
            place, places = SliceReader._place, 0

            def merged_before_the_third(slices: SliceReader, *asked: Any) -> Any:
                nonlocal places
                places += 1
                if places == 3:
                    asyncio.run_coroutine_threadsafe(broker._upkeep.merge(topic), loop).result(60)
                return place(slices, *asked)

            monkeypatch.setattr(SliceReader, "_place", merged_before_the_third)
            at, found = 0, []
            while at < log.high_watermark:
                read = await getattr(reader, form)(topic, log, at, max_bytes=1 << 20, min_bytes=1 << 20)
                found += offsets_of(read, at)
                at = read.next_offset
            assert found == list(range(80))
            assert len(log.segments) < 10

    run(scenario())


def offsets_of(read: FetchResult[Any], at: int) -> list[int]:
    """Return the offsets that a reader takes from an answer, whose first batch may begin below ``at``."""
    if isinstance(read.records, pa.Table):
        offsets = read.records["offset"].to_pylist()
    elif all(isinstance(batch, RecordBatch) for batch in read.records):
        content = pa.py_buffer(b"".join(encode_batches(read.records)))
        offsets = [offset for part in read_records(content, at) for offset in part.column("offset").to_pylist()]
    else:
        offsets = [*rows_from(read_batches(read.records), at)]
    return offsets


def test_it_merges_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_LOOK_S", 0.05)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker, 2 * MERGE_AT)
            await eventually_async(lambda: len(topic.partition(0).segments) <= MERGE_AT)
            assert len(await read_all(broker, topic)) == 4 * MERGE_AT

    run(scenario())


def test_a_target_of_nothing_joins_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker, **{"merge.target.bytes": "0"})
            assert not await broker._upkeep.merge(topic)

    run(scenario())


def test_a_reader_in_flight_keeps_the_old_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker)
            old = topic.partition(0).segments.files
            fetching = asyncio.create_task(read_all(broker, topic, max_bytes=1))
            await asyncio.sleep(0)
            await broker._upkeep.merge(topic)
            assert len(await fetching) == 80
            assert {file.path for file in old} <= on_disk(topic)
            assert not (await broker._upkeep.delete_files(topic)).names, "the delay is not over"

    run(scenario())


def test_replaced_files_are_deleted_after_the_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "OVERWRITES_NOTICED_MS", 0)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker, **{"file.delete.delay.ms": "0"})
            old = {file.path for file in topic.partition(0).segments.files}
            await broker._upkeep.merge(topic)
            active = {file.path for file in topic.partition(0).segments.files}
            await asyncio.sleep(0.01)  # the file system's clock counts here, not the loop's
            deleted = await broker._upkeep.delete_files(topic)
            assert set(deleted.names) == old - active
            assert on_disk(topic) == active
            assert len(await read_all(broker, topic)) == 80

    asyncio.run(scenario())


def test_files_that_a_restore_has_put_back_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete files after a RESTORE that the store has not noticed yet."""
    monkeypatch.setattr(upkeep, "OVERWRITES_NOTICED_MS", 0)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker, **{"file.delete.delay.ms": "0"})
            before = topic.version
            await broker._upkeep.merge(topic)
            await asyncio.sleep(0.01)
            DeltaTable(path_of(topic.table)).restore(before)
            await broker._upkeep.delete_files(topic)
            await broker._roller.refresh(topic)
            assert len(await read_all(broker, topic)) == 80
            assert plain_reader(topic) == list(range(80))

    run(scenario())


def test_files_stay_for_as_long_as_a_commit_may_be_overwritten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker, **{"file.delete.delay.ms": "0"})
            await broker._upkeep.merge(topic)
            assert not (await broker._upkeep.delete_files(topic)).names

    run(scenario())


@pytest.mark.parametrize("other", ["retention", "merge"])
def test_a_merge_that_loses_a_race_is_refused_and_leaves_no_file(tmp_path: Path, other: str) -> None:
    filesystem = HookedFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=filesystem) as broker:
            topic = await topic_of_many(broker)

            def race() -> None:
                table = TopicTable(open_table(path_of(topic.table)))
                first, second = table.snapshot().segments(0)[:2]
                if other == "retention":
                    rewrite_files(table, 0, [first.path], [], data_change=True, log_start=first.end_offset)
                else:
                    rewrite_files(
                        table, 0, [first.path, second.path], [joined(table, [first, second])], data_change=False
                    )

            filesystem.at("segment.finished", race)
            await broker._upkeep.merge(topic)
            snapshot = topic.table.snapshot()
            assert history_gaps(snapshot, 0) == []
            named = {file.path for file in snapshot.segments(0)} | snapshot.log.removals().keys()
            assert on_disk(topic) == named, "the file of the merge was deleted"
            await broker._roller.refresh(topic)
            assert len(await read_all(broker, topic)) == (78 if other == "retention" else 80)
            assert await broker._upkeep.merge(topic)

    run(scenario())


@pytest.mark.parametrize("deleted", [False, True], ids=["old files there", "old files deleted"])
def test_after_an_overwritten_merge_the_records_are_there(tmp_path: Path, deleted: bool) -> None:
    """Check that the old files count again; if one is gone, the merge is committed again with its file."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker)
            before, old = await read_all(broker, topic), topic.partition(0).segments.files
            await broker._upkeep.merge(topic)
            merged = topic.partition(0).segments.files
            if deleted:
                (path_of(topic.table) / old[3].path).unlink()
            overwrite(path_of(topic.table), topic.version)
            await broker._roller.refresh(topic)
            assert topic.partition(0).segments.files == (merged if deleted else old)
            assert await read_all(broker, topic) == before
            assert not topic.partition(0).missing

    run(scenario())


def test_an_overwritten_merge_of_several_groups_is_committed_again_whole(tmp_path: Path) -> None:
    """Delete old files of each group."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker, 2 * MERGE_AT)
            before, old = await read_all(broker, topic), topic.partition(0).segments.files
            groups = [old[at : at + 16] for at in (0, 16)]
            segments = [joined(topic.table, group) for group in groups]
            rewrite_files(topic.table, 0, [file.path for file in old[:32]], segments, data_change=False)
            await broker._roller.refresh(topic)
            for group in groups:
                (path_of(topic.table) / group[3].path).unlink()
            overwrite(path_of(topic.table), topic.version)
            await broker._roller.refresh(topic)
            assert [file.path for file in topic.partition(0).segments.files[:2]] == [s.path for s in segments]
            assert await read_all(broker, topic) == before

    run(scenario())


def test_after_the_rolls_and_their_merge_were_overwritten_the_merged_file_is_committed_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker)
            before = await read_all(broker, topic)
            await broker._upkeep.merge(topic)
            merged = topic.partition(0).segments.files
            entries = 2 * (merged[0].end_offset // 2)
            for version in [*range(1, entries // 2 + 1), topic.version]:
                overwrite(path_of(topic.table), version)
            await broker._roller.refresh(topic)
            assert topic.partition(0).segments.files[0] == merged[0]
            assert await read_all(broker, topic) == before

    run(scenario())


def test_a_file_that_cannot_be_read_keeps_the_others_from_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2, configs=CONFIGS)
            assert topic
            for at in range(MERGE_AT + 8):
                for partition in (0, 1):
                    await produce(broker, topic, [b"%d" % at], partition=partition)
                await broker.topics.tables.roll(INTERNAL, topic)
            bad = path_of(topic.table) / topic.partition(0).segments.files[5].path
            content = bytearray(bad.read_bytes())
            content[20] ^= 1
            bad.write_bytes(content)
            assert await broker._upkeep.merge(topic)
            assert len(topic.partition(0).segments) == MERGE_AT + 8
            assert len(topic.partition(1).segments) < 10
            assert not await broker._upkeep.merge(topic)
            active = {file.path for p in (0, 1) for file in topic.partition(p).segments}
            assert on_disk(topic) == active | topic.snapshot.log.removals().keys()

    run(scenario())


def test_a_failed_commit_leaves_no_file_and_is_tried_again_later(tmp_path: Path) -> None:
    filesystem = HookedFileSystem()

    async def scenario() -> None:
        clock = ManualClock(1_700_000_000_000)
        async with running_broker(tmp_path, filesystem=filesystem, clock=clock) as broker:
            topic = await topic_of_many(broker)
            before = on_disk(topic)

            def fail() -> None:
                raise StorageError("no")

            filesystem.at("delta.opened", fail)
            assert not await broker._upkeep._round()
            assert on_disk(topic) == before
            assert not await broker._upkeep._round()
            clock.advance(61_000)
            assert await broker._upkeep._round()

    run(scenario())


def test_a_merge_that_was_committed_keeps_its_file_whatever_fails_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the file that the table names: nothing else has the records once the old files are vacuumed."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await topic_of_many(broker)
            before = await read_all(broker, topic)

            async def fail(*_: object, **__: object) -> None:
                raise StorageError("no")

            with monkeypatch.context() as failing:
                failing.setattr(broker._roller._follower, "follow", fail)
                with pytest.raises(StorageError):
                    await broker._upkeep.merge(topic)
            assert topic.table.snapshot().paths <= on_disk(topic)
            assert len(topic.table.snapshot().paths) < 10
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert await read_all(broker, topic) == before

    run(scenario())


def test_a_merge_does_not_rest_while_an_erasure_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_ROLL_WAIT_S", 3600)
    monkeypatch.setattr(Roller, "is_busy", True)
    filesystem = HookedFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=filesystem) as broker:
            topic, loop = await topic_of_many(broker), asyncio.get_running_loop()
            begun = asyncio.Event()
            filesystem.at("segment.opened", lambda: loop.call_soon_threadsafe(begun.set))
            merging = asyncio.create_task(broker._upkeep.merge(topic))
            await begun.wait()
            await broker._upkeep.settled()
            assert await merging

    run(scenario())


def test_a_stop_gives_up_what_is_being_written(tmp_path: Path) -> None:
    filesystem = HookedFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=filesystem) as broker:
            topic = await topic_of_many(broker)
            before = on_disk(topic)
            filesystem.at("segment.opened", broker._upkeep._stopping.set)
            assert not await broker._upkeep._round()
            assert on_disk(topic) == before

    run(scenario())
