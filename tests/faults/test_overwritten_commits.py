"""Rule R7: on a local file system a foreign commit replaces one of the store, which commits the same files again."""

import json
import os
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitConflictError
from logstore.inspection.journal import dump
from logstore.limits import MIB
from logstore.log.topic import Topic
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.data_directory import copy_of_one_moment
from tests.support.eventually import eventually_async
from tests.support.running_broker import produce, quarantined, read_all, running_broker
from tests.support.small_store import TOPIC, small_store, stored
from tests.support.table_paths import path_of, read_row_group
from tests.support.topics import HookedFileSystem, rewrite_files
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}


def overwrite(topic_path: Path, version: int) -> None:
    """Overwrite version N as delta-spark might: it checks before the store's commit and renames after it."""
    entry = topic_path / "_delta_log" / f"{version:020}.json"
    info = {"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES", "operationParameters": {}}}
    entry.write_text(json.dumps(info) + "\n")


def offsets_in_delta(topic_path: Path, partition: int) -> list[int]:
    table = DeltaTable(topic_path).to_pyarrow_dataset().to_table(["partition", "offset"])
    pairs = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    return sorted(offset for p, offset in pairs if p == partition)


async def rolled(broker: Broker, topic: Topic, values: list[bytes | None], partition: int = 0) -> int:
    await produce(broker, topic, values, partition=partition)
    return (await broker.topics.tables.roll(INTERNAL, topic)).version


def test_the_last_roll_is_committed_again_with_the_same_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a", b"b"])
            version = await rolled(broker, topic, [b"c", b"d"])
            files = {s.path for s in topic.partition(0).segments}
            overwrite(path_of(topic.table), version)
            assert offsets_in_delta(path_of(topic.table), 0) == [0, 1]
            await produce(broker, topic, [b"e"])
            await broker._roller.refresh(topic)
            assert offsets_in_delta(path_of(topic.table), 0) == [0, 1, 2, 3]
            assert {s.path for s in topic.partition(0).segments} == files
            await broker.topics.tables.roll(INTERNAL, topic)
            assert await read_all(broker, topic) == list(enumerate([b"a", b"b", b"c", b"d", b"e"]))
        assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [0, 1, 2, 3, 4]

    run(scenario())


def test_a_roll_that_comes_before_the_refresh_does_not_build_on_the_hole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            overwrite(path_of(topic.table), await rolled(broker, topic, [b"a", b"b"]))
            await produce(broker, topic, [b"c"])
            with pytest.raises(Exception, match="sealed up to 0"):
                await broker.topics.tables.roll(INTERNAL, topic)
            await broker.topics.tables.roll(INTERNAL, topic)
        assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [0, 1, 2]

    run(scenario())


def test_a_roll_that_is_overwritten_at_once_is_never_a_gap_for_readers(tmp_path: Path) -> None:
    filesystem = HookedFileSystem()
    values = list(enumerate([b"a", b"b", b"c"]))

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=filesystem) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await produce(broker, topic, [b"a", b"b"])
            # The commit is durable, and gone before the broker looks at the table again.
            filesystem.at("delta.synced", lambda: overwrite(path_of(topic.table), topic.version + 1))
            with pytest.raises(CommitConflictError, match="overwritten by a foreign commit"):
                await broker.topics.tables.roll(INTERNAL, topic)
            await produce(broker, topic, [b"c"])
            assert await read_all(broker, topic) == values
            await broker.topics.tables.roll(INTERNAL, topic)
            assert await read_all(broker, topic) == values
        assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [0, 1, 2]

    run(scenario())


def test_an_older_roll_is_restored_beneath_later_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            first = await rolled(broker, topic, [b"a", b"b"])
            await rolled(broker, topic, [b"c"])
            overwrite(path_of(topic.table), first)
            await broker._roller.refresh(topic)
            assert offsets_in_delta(path_of(topic.table), 0) == [0, 1, 2]

    run(scenario())


@pytest.mark.parametrize("overwritten", [0, 1])
def test_a_start_restores_what_was_overwritten_while_nothing_ran(tmp_path: Path, overwritten: int) -> None:
    versions = []

    async def before() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            versions.append(await rolled(broker, topic, [b"a", b"b"]))
            versions.append(await rolled(broker, topic, [b"c"]))

    async def after() -> None:
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert topic.partition(0).sealed_offset == 3
            assert await read_all(broker, topic) == [(0, b"a"), (1, b"b"), (2, b"c")]

    run(before())
    run(asyncio_start_and_stop(tmp_path))  # the snapshot frames of the new journal file remember the sealed offset
    overwrite(tmp_path / "topics" / "t", versions[overwritten])
    run(after())
    assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [0, 1, 2]


def test_a_start_restores_a_roll_of_which_the_journal_has_the_last_frames_still(tmp_path: Path) -> None:
    """Check that the start restores the roll: the journal frees whole files, so its oldest frame does not show where it
    ended.
    """
    # Journal files are of 1 MiB, for three records each.
    values: list[bytes | None] = [bytes([n]) * 300_000 for n in range(8)]
    versions = []

    async def before() -> None:
        async with running_broker(tmp_path, journal_max_bytes=32 * MIB) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            for value in values:
                await produce(broker, topic, [value])
            versions.append((await broker.topics.tables.roll(INTERNAL, topic)).version)

    async def after() -> None:
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t"), max_bytes=4 * MIB) == list(
                enumerate(values)
            )
            await produce(broker, broker.topics.served.topic(INTERNAL, "t"), [b"next"])
        assert offsets_in_delta(tmp_path / "topics" / "t", 0) == list(range(9))

    run(before())
    overwrite(tmp_path / "topics" / "t", versions[0])
    run(after())


async def asyncio_start_and_stop(data: Path) -> None:
    async with running_broker(data):
        pass


def test_sealed_records_that_are_nowhere_quarantine_their_partition(tmp_path: Path) -> None:
    versions = []

    async def before() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            versions.append(await rolled(broker, topic, [b"a", b"b"]))

    run(before())
    run(asyncio_start_and_stop(tmp_path))
    overwrite(tmp_path / "topics" / "t", versions[0])
    shutil.rmtree(tmp_path / "topics" / "t" / "partition=0")

    assert "had sealed offsets 0 to 2" in run(quarantined(tmp_path))


# ---- beside jobs and other writers ----------------------------------------------------------------------------------


def cut_first_segment(topic_path: Path) -> None:
    """Commit as a retention job does."""
    table = TopicTable.open(open_table(topic_path))
    first = table.snapshot().segments(0)[0]
    rewrite_files(table, 0, [first.path], [], data_change=True, log_start=first.max_offset + 1, operation="retention")


def join_all_segments(topic_path: Path) -> None:
    """Commit as a compaction does that finds no key twice."""
    table = TopicTable.open(open_table(topic_path))
    segments = table.snapshot().segments(0)
    end = segments[-1].max_offset + 1
    with SegmentWriter(open_table(topic_path), 0, segments[0].base_offset, end, 1) as writer:
        for segment in segments:
            writer.write(read_row_group(topic_path / segment.path, 0))
        joined = writer.finish(leader_epochs=((1, 0),), operation="key-compaction")
    rewrite_files(
        table, 0, [s.path for s in segments], [joined], data_change=False, cleaned=end, operation="key-compaction"
    )


def test_a_roll_is_restored_although_a_job_committed_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a", b"b"])
            version = await rolled(broker, topic, [b"c"])
            await rolled(broker, topic, [b"d"])
            cut_first_segment(path_of(topic.table))
            overwrite(path_of(topic.table), version)
            await broker._roller.refresh(topic)
            assert offsets_in_delta(path_of(topic.table), 0) == [2, 3]
            assert await read_all(broker, topic) == [(2, b"c"), (3, b"d")]

    run(scenario())


def test_a_start_restores_a_roll_of_a_partition_that_jobs_have_worked_on(tmp_path: Path) -> None:
    versions = []

    async def before() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a"])
            await rolled(broker, topic, [b"b"])
            cut_first_segment(path_of(topic.table))
            join_all_segments(path_of(topic.table))
            versions.append(await rolled(broker, topic, [b"c"]))
            await rolled(broker, topic, [b"d"])

    async def after() -> None:
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == [
                (1, b"b"),
                (2, b"c"),
                (3, b"d"),
            ]

    run(before())
    overwrite(tmp_path / "topics" / "t", versions[0])
    run(after())
    assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [1, 2, 3]


def test_a_job_upholds_what_was_sealed_by_a_roll_whose_commit_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a"])
            version = await rolled(broker, topic, [b"b", b"c"])
            join_all_segments(path_of(topic.table))
            overwrite(path_of(topic.table), version)
            await broker._roller.refresh(topic)
            await rolled(broker, topic, [b"d"])
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == list(
                enumerate([b"a", b"b", b"c", b"d"])
            )

    run(scenario())


def test_deleted_records_stay_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a", b"b", b"c"])
            assert await broker.topics.tables.delete_records(INTERNAL, topic, 0, 2) == 2
            overwrite(path_of(topic.table), topic.version)
            await broker._roller.refresh(topic)
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == [(2, b"c")]

    run(scenario())


def test_rows_deleted_with_sql_stay_deleted_when_their_removal_is_forgotten(tmp_path: Path) -> None:
    async def start_and_stop() -> list[int]:
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            return [offset for offset, _ in await read_all(broker, topic)]

    async def before() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a", b"b"])
            await rolled(broker, topic, [b"c"])

    run(before())
    path = tmp_path / "topics" / "t"
    DeltaTable(path).delete("offset < 2")
    assert run(start_and_stop()) == [2]
    # Eight days later a checkpoint keeps no removals that old, and the entries before it are cleaned up.
    eight_days_ms = 8 * 24 * 3_600_000
    version = DeltaTable(path).version()
    entry = path / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] -= eight_days_ms
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for file in path.glob("*/*.parquet"):
        then = file.stat().st_mtime - eight_days_ms / 1000
        os.utime(file, (then, then))
    DeltaTable(path).create_checkpoint()
    for older in range(version):
        (path / "_delta_log" / f"{older:020}.json").unlink()
    assert not TopicTable.open(open_table(path)).snapshot().log.has_removals
    assert run(start_and_stop()) == [2]


def test_rows_deleted_with_sql_stay_deleted_though_a_killed_roll_left_a_file_of_them(tmp_path: Path) -> None:
    async def before() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a"])
            await rolled(broker, topic, [b"b"])
            # A kill between the file and its commit leaves such a file; the next start rolls the range again.
            segment = path_of(topic.table) / topic.partition(0).segments.files[1].path
            shutil.copy(segment, segment.with_name(segment.name[: -len("0" * 32 + ".parquet")] + "a" * 32 + ".parquet"))
            await rolled(broker, topic, [b"c"])

    async def start_and_stop() -> list[int]:
        async with running_broker(tmp_path) as broker:
            return [offset for offset, _ in await read_all(broker, broker.topics.served.topic(INTERNAL, "t"))]

    run(before())
    DeltaTable(tmp_path / "topics" / "t").delete("offset = 1")
    assert run(start_and_stop()) == [0, 2]
    assert run(start_and_stop()) == [0, 2]
    assert offsets_in_delta(tmp_path / "topics" / "t", 0) == [0, 2]


def test_files_that_a_user_deleted_and_vacuumed_hold_up_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await rolled(broker, topic, [b"a", b"b"])
            await rolled(broker, topic, [b"c"])
            first = topic.partition(0).segments.files[0].path
            DeltaTable(path_of(topic.table)).delete("offset < 2")
            (path_of(topic.table) / first).unlink()
            await broker._roller.refresh(topic)
            await rolled(broker, topic, [b"d"])
            assert offsets_in_delta(path_of(topic.table), 0) == [2, 3]

    run(scenario())


@pytest.mark.parametrize("lost", ["overwritten", "removed"])
def test_the_last_roll_is_known_when_only_the_journals_snapshot_has_it(tmp_path: Path, lost: str) -> None:
    """Check a kill after a start began a journal file and a roll freed the one before: no frame is left."""
    data, killed = tmp_path / "data", tmp_path / "killed"
    whole = small_store(data, rolls=1)

    async def roll_and_kill() -> int:
        async with running_broker(data) as broker:
            rolled = await broker.topics.tables.roll(INTERNAL, broker.topics.served.topic(INTERNAL, TOPIC))
            journal = data / "brokers" / "0" / "journal" / "0"
            await eventually_async(lambda: all(row.type != "DATA" for row in dump(journal)))
            copy_of_one_moment(data, killed)
            return rolled.version

    version = run(roll_and_kill())
    if lost == "overwritten":
        overwrite(killed / "topics" / TOPIC, version)
    else:
        (killed / "topics" / TOPIC / "_delta_log" / f"{version:020}.json").unlink()
    assert stored(killed) == whole
