"""One bad topic never takes the store down: the store reports what is wrong with it and serves all others."""

import asyncio
import json
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from logstore.broker.authorizer import Operation
from logstore.broker.context import INTERNAL
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition
from logstore.broker.topics.problems import ProblemState, TopicProblem
from logstore.delta.topic_table import TopicTable
from logstore.errors import CorruptionError, InvalidTopicError, MissingRecordsError, QuarantinedError, TopicExistsError
from logstore.log import table_follower
from logstore.log.history import removed_ranges
from logstore.log.log_reader import FetchResult
from logstore.log.topic import Topic
from logstore.records.schema import TABLE_SCHEMA
from logstore.table_files import open_table
from tests.support.captured_logs import captured_logs
from tests.support.data_directory import copy_of_one_moment
from tests.support.running_broker import produce, read_all, records, running_broker
from tests.support.table_paths import create_table, path_of
from tests.support.topics import foreign_commit, log_batch, rewrite_files
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}


async def orders(broker, *, partitions: int = 1) -> Topic:
    """Create ``orders`` with three sealed records in every partition, and two that only the journal has."""
    topic = await broker.topics.changes.create(INTERNAL, "orders", partitions=partitions, configs=NEVER)
    for partition in range(partitions):
        await produce(broker, topic, [b"a", b"b", b"c"], partition=partition)
    await broker.topics.tables.roll(INTERNAL, topic)
    for partition in range(partitions):
        await produce(broker, topic, [b"d", b"e"], partition=partition)
    return topic


async def killed(data: Path, *, partitions: int = 1) -> Path:
    """Return a data directory as a kill leaves it, with ``orders`` and another topic that stays whole."""
    async with running_broker(data) as broker:
        await orders(broker, partitions=partitions)
        other = await broker.topics.changes.create(INTERNAL, "other", configs=NEVER)
        await produce(broker, other, [b"x"])
        copy_of_one_moment(data, data.with_name("after"))
    return data.with_name("after")


async def fetch_stored(broker, offset: int):
    """Return the answer to a reader of orders-0's record batches."""
    limits = FetchLimits(10**6, 10**6, min_bytes=1, max_wait_ms=0)
    fetched = await broker.fetch.stored(INTERNAL, [FetchPartition("orders", 0, offset)], limits)
    fetched.reservation.release()
    return fetched.answers[0]


async def assert_the_other_is_served(broker) -> None:
    other = broker.topics.served.topic(INTERNAL, "other")
    offset = await produce(broker, other, [b"y"])
    assert (offset, b"y") in await read_all(broker, other)
    await broker.topics.tables.roll(INTERNAL, other)


ALL = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (4, b"e")]


def foreign_append(table: Path, offsets: list[int], partition: int = 0) -> None:
    rows = pa.Table.from_batches([log_batch(offsets)]).append_column(
        "partition", pa.array([partition] * len(offsets), pa.int32())
    )
    timestamps = rows.column("timestamp").cast(pa.timestamp("us", "UTC"))
    rows = rows.set_column(rows.column_names.index("timestamp"), "timestamp", timestamps)
    write_deltalake(str(table), rows.select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA), mode="append")


RIVAL = "f" * 32


def add_a_rival(table: Path) -> None:
    """Commit a copy of the first segment of partition 0 under another name."""
    add = min(pa.table(DeltaTable(str(table)).get_add_actions()).to_pylist(), key=lambda add: add["path"])
    rival = f"{add['path'][: -len('.parquet') - 32]}{RIVAL}.parquet"
    shutil.copy(table / add["path"], table / rival)
    bounds = [{"offset": add[side]["offset"], "timestamp": "2023-11-14T22:13:20.000000Z"} for side in ("min", "max")]
    stats = {"numRecords": add["num_records"], "minValues": bounds[0], "maxValues": bounds[1]}
    foreign_commit(table, [AddAction(rival, add["size_bytes"], {"partition": "0"}, 1, True, json.dumps(stats))])


def remove_the_rival(table: Path) -> None:
    (path,) = [path for path in DeltaTable(str(table)).file_uris() if RIVAL in path]
    size, name = Path(path).stat().st_size, str(Path(path).relative_to(table))
    foreign_commit(table, [RemoveAction(name, True, 1, size, {"partition": "0"})])


@pytest.mark.parametrize("how", ["copy", "link"])
@pytest.mark.parametrize("name", ["orders.bak", "a-copy"])
def test_a_copy_of_a_topics_directory_is_refused_by_name_and_the_topic_is_served(
    tmp_path: Path, how: str, name: str
) -> None:
    async def scenario() -> None:
        data = await killed(tmp_path / "data")
        copy = data / "topics" / name
        if how == "copy":
            shutil.copytree(data / "topics" / "orders", copy)
        else:
            copy.symlink_to("orders")
        async with running_broker(data) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders")) == ALL
            assert await produce(broker, broker.topics.served.topic(INTERNAL, "orders"), [b"f"]) == 5
            await broker.topics.tables.roll(INTERNAL, broker.topics.served.topic(INTERNAL, "orders"))
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.topic, problem.partition, problem.state) == (name, None, ProblemState.QUARANTINED)
            if how == "copy":
                assert "is the table of topic 'orders', or a copy of it" in problem.reason
                assert "move it out of" in problem.remedy
            else:
                assert "is a link to topic 'orders'" in problem.reason
            with pytest.raises(QuarantinedError, match="topic 'orders'"):
                broker.topics.served.topic(INTERNAL, name)
            with pytest.raises(QuarantinedError):
                await broker.topics.changes.delete(INTERNAL, name)  # this would give up the records of the original
            with pytest.raises(TopicExistsError):
                await broker.topics.changes.create(INTERNAL, name)
            await assert_the_other_is_served(broker)

    run(scenario())


def test_a_table_without_its_topics_name_gets_it_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        data = await killed(tmp_path / "data")
        table = data / "topics" / "orders"
        DeltaTable(str(table)).alter.set_table_properties({"logstore.topic": ""}, raise_if_not_exists=False)
        async with running_broker(data) as broker:
            assert broker.topics.problems.all(INTERNAL) == []
        assert TopicTable.open(open_table(table)).snapshot().topic_name == "orders"

    run(scenario())


def test_two_tables_that_both_say_to_be_the_original_are_both_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        data = await killed(tmp_path / "data")
        shutil.copytree(data / "topics" / "orders", data / "topics" / "orders2")
        DeltaTable(str(data / "topics" / "orders2")).alter.set_table_properties(
            {"logstore.topic": "orders2"}, raise_if_not_exists=False
        )
        async with running_broker(data) as broker:
            assert [p.topic for p in broker.topics.problems.all(INTERNAL) if "have the same id" in p.reason] == [
                "orders",
                "orders2",
            ]
            await assert_the_other_is_served(broker)
        shutil.rmtree(data / "topics" / "orders2")
        async with running_broker(data) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders")) == ALL

    run(scenario())


@pytest.mark.parametrize(
    "name", ["_delta_log", "_change_data", "_symlink_format_manifest", "_Delta_Log", "_delta_index", "_sidecars"]
)
def test_names_of_delta_lakes_own_files_are_refused_and_leave_nothing_behind(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, auto_create_topics_enable=True) as broker:
            with pytest.raises(InvalidTopicError, match="Delta Lake has files of its own"):
                await broker.topics.changes.create(INTERNAL, name)
            with pytest.raises(InvalidTopicError, match="Delta Lake has files of its own"):
                await broker.topics.changes.find_or_create(INTERNAL, name, Operation.WRITE)
            assert not list((tmp_path / "topics").iterdir())

    run(scenario())


def test_a_creation_that_fails_after_the_table_is_there_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            with monkeypatch.context() as patched:
                patched.setattr(TopicTable, "snapshot", lambda _: (_ for _ in ()).throw(OSError("no")))
                with pytest.raises(OSError, match="no"):
                    await broker.topics.changes.create(INTERNAL, "t")
            assert not list((tmp_path / "topics").iterdir())
            assert await broker.topics.changes.create(INTERNAL, "t")

    run(scenario())


@pytest.mark.parametrize("value", ["abc", "0", "3", "", "-1"])
def test_a_strange_number_of_partitions_on_one_table_keeps_only_that_topic_from_being_served(
    tmp_path: Path, value: str
) -> None:
    async def scenario() -> None:
        data = await killed(tmp_path / "data", partitions=2)
        table = DeltaTable(str(data / "topics" / "orders"))
        table.alter.set_table_properties({"logstore.partitions": value}, raise_if_not_exists=False)
        for _ in range(2):  # the journal's records survive a restart, and further journal files
            async with running_broker(data) as broker:
                problems = broker.topics.problems.all(INTERNAL)
                (problem,) = problems  # its records in the journal are no second problem
                assert problem.topic == "orders"
                assert "logstore.partitions" in problem.reason
                assert re.search("The journal holds [1-9][0-9]* records of it", problem.reason)
                with pytest.raises(QuarantinedError, match=r"logstore\.partitions"):
                    broker.topics.served.topic(INTERNAL, "orders")
                await assert_the_other_is_served(broker)
        remedy = next(p.reason for p in problems if "SET TBLPROPERTIES" in p.reason)
        assert "SET TBLPROPERTIES ('logstore.partitions' = '2')" in remedy
        DeltaTable(str(data / "topics" / "orders")).alter.set_table_properties(
            {"logstore.partitions": "2"}, raise_if_not_exists=False
        )
        async with running_broker(data) as broker:
            assert broker.topics.problems.all(INTERNAL) == []
            for partition in (0, 1):
                assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders"), partition) == ALL

    run(scenario())


@pytest.mark.parametrize("while_it_runs", [True, False])
@pytest.mark.parametrize("offsets", [[1], [10], [2, 3]], ids=["over ours", "beyond sealed", "both"])
def test_a_foreign_append_is_never_served_and_named_and_everything_else_is_served(
    tmp_path: Path, offsets: list[int], while_it_runs: bool
) -> None:
    async def scenario() -> None:
        data = await killed(tmp_path / "data", partitions=2)
        table = data / "topics" / "orders"
        if not while_it_runs:
            foreign_append(table, offsets)
        async with running_broker(data) as broker:
            topic = broker.topics.served.topic(INTERNAL, "orders")
            if while_it_runs:
                assert broker.topics.problems.all(INTERNAL) == []
                foreign_append(table, offsets)
                await broker._roller.refresh(topic)
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.topic, problem.partition, problem.state) == ("orders", 0, ProblemState.FOREIGN_FILE)
            assert "part-" in problem.reason
            assert "logstore topic drop-foreign-files orders" in problem.remedy
            assert await read_all(broker, topic) == ALL
            assert await produce(broker, topic, [b"z"]) == 5
            await broker.topics.tables.roll(INTERNAL, topic)
            assert await read_all(broker, topic) == [*ALL, (5, b"z")]
            (dropped,) = await broker.topics.tables.drop_foreign_files(INTERNAL, topic)
            assert dropped in problem.reason
            assert broker.topics.problems.all(INTERNAL) == []
            assert await read_all(broker, topic) == [*ALL, (5, b"z")]

    run(scenario())


@pytest.mark.parametrize("while_it_runs", [True, False])
def test_two_segments_of_one_range_keep_only_their_partition_from_being_served(
    tmp_path: Path, while_it_runs: bool
) -> None:
    async def scenario() -> None:
        data = await killed(tmp_path / "data", partitions=2)
        table = data / "topics" / "orders"
        if not while_it_runs:
            add_a_rival(table)
        async with running_broker(data) as broker:
            topic = broker.topics.served.topic(INTERNAL, "orders")
            if while_it_runs:
                add_a_rival(table)
                await broker._roller.refresh(topic)
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.topic, problem.partition, problem.state) == ("orders", 0, ProblemState.QUARANTINED)
            with pytest.raises(QuarantinedError):
                await produce(broker, topic, [b"no"])
            with pytest.raises(QuarantinedError):
                await broker.fetch.partition(INTERNAL, topic, 0, 0, max_bytes=1, min_bytes=1, max_wait_ms=0)
            with pytest.raises(QuarantinedError):
                await broker.topics.tables.delete_records(INTERNAL, topic, 0, 1)
            assert await produce(broker, topic, [b"f"], partition=1) == 5
            assert (5, b"f") in await read_all(broker, topic, 1)
            # Records without a partition go to the one that is served.
            left_open = await broker.produce.records.produce(INTERNAL, topic, records([b"g"]))
            assert left_open.partitions[0].partition == 1
            await assert_the_other_is_served(broker)

            remove_the_rival(table)
            await broker._roller.refresh(topic)
            assert broker.topics.problems.all(INTERNAL) == []
            assert await read_all(broker, topic) == ALL
            assert await produce(broker, topic, [b"z"]) == 5
            await broker.topics.tables.roll(INTERNAL, topic)

    run(scenario())


@pytest.mark.parametrize("while_it_runs", [True, False])
def test_no_reader_of_a_quarantined_partition_gets_out_of_range(tmp_path: Path, while_it_runs: bool) -> None:
    """Expect another error: out of range would make a consumer reset its position, and skip or repeat records later."""

    async def scenario() -> None:
        data = tmp_path / "data"
        async with running_broker(data) as broker:
            topic = await two_rolls(broker)
            await broker.topics.tables.delete_records(INTERNAL, topic, 0, 2)
        if not while_it_runs:
            add_a_rival(data / "topics" / "orders")
        async with running_broker(data) as broker:
            topic = broker.topics.served.topic(INTERNAL, "orders")
            if while_it_runs:
                add_a_rival(path_of(topic.table))
                await broker._roller.refresh(topic)
            for offset in (0, 2, 5, 1_000):
                assert isinstance(await fetch_stored(broker, offset), QuarantinedError)
                with pytest.raises(QuarantinedError):
                    await broker.fetch.partition(INTERNAL, topic, 0, offset, max_bytes=1, min_bytes=1, max_wait_ms=0)

    run(scenario())


def test_a_stray_table_among_the_topics_harms_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        data = await killed(tmp_path / "data")
        write_deltalake(str(data / "topics" / "stray"), pa.table({"x": [1]}))
        shutil.copytree(data / "topics" / "orders", data / "topics" / "_delta_log")
        (data / "topics" / "half" / "_delta_log").mkdir(parents=True)
        (data / "topics" / "dangling").symlink_to("nowhere")
        async with running_broker(data) as broker:
            assert {p.topic for p in broker.topics.problems.all(INTERNAL)} == {"_delta_log", "half", "stray"}
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders")) == ALL
            await assert_the_other_is_served(broker)

    run(scenario())


def test_journal_records_of_a_quarantined_topic_outlive_many_journal_files(tmp_path: Path) -> None:
    """Keep the producers' state as well: a repetition is known as one once the topic is repaired."""

    async def scenario() -> None:
        data = await killed(tmp_path / "data")
        table = DeltaTable(str(data / "topics" / "orders"))
        table.alter.set_table_properties({"logstore.partitions": "abc"}, raise_if_not_exists=False)
        async with running_broker(data, journal_max_bytes=1 << 25) as broker:
            other = broker.topics.served.topic(INTERNAL, "other")
            for _ in range(30):
                await produce(broker, other, [os.urandom(200_000)])
                if len(broker.journal.files) > 4:
                    await broker.topics.tables.roll(INTERNAL, other)
                    await broker._schedule._unpin_journal()
        assert len(list((data / "brokers/0/journal/0").glob("*.log"))) < 8
        DeltaTable(str(data / "topics" / "orders")).alter.set_table_properties(
            {"logstore.partitions": "1"}, raise_if_not_exists=False
        )
        async with running_broker(data) as broker:
            assert broker.topics.problems.all(INTERNAL) == []
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders")) == ALL

    run(scenario())


# ---- records that somebody took away --------------------------------------------------------------------------------


async def two_rolls(broker) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, "orders", configs=NEVER)
    await produce(broker, topic, [b"a", b"b"])
    await broker.topics.tables.roll(INTERNAL, topic)
    await produce(broker, topic, [b"c", b"d"])
    await broker.topics.tables.roll(INTERNAL, topic)
    await produce(broker, topic, [b"e"])
    return topic


def take_away(table: Path, how: str, *, aside: Path | None = None) -> None:
    """Remove records from the table and delete their files, as a vacuum does, or move them to ``aside``.

    The store would commit files again that it finds.
    """
    before = set(DeltaTable(str(table)).file_uris())
    _take_away(table, how)
    for path in before - set(DeltaTable(str(table)).file_uris()):
        if aside is None:
            Path(path).unlink()
        else:
            Path(path).rename(aside / Path(path).name)


def _take_away(table: Path, how: str) -> None:
    if how == "RESTORE":
        DeltaTable(str(table)).restore(1)
    elif how == "DELETE":
        DeltaTable(str(table)).delete('"offset" >= 2 AND "offset" < 4')
    else:
        kept = DeltaTable(str(table)).to_pyarrow_dataset().to_table().slice(0, 0)
        write_deltalake(str(table), kept, mode="overwrite")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("how", "missing"), [("RESTORE", (2, 4)), ("WRITE", (0, 4)), ("DELETE", None)])
def test_records_that_a_restore_or_an_overwrite_removed_are_reported_and_never_skipped(
    tmp_path: Path, how: str, missing: tuple[int, int] | None, restarted: bool
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path / "data") as broker:
            topic = await two_rolls(broker)
            copy_of_one_moment(tmp_path / "data", tmp_path / "after")
            if not restarted:
                take_away(path_of(topic.table), how)
                await broker._roller.refresh(topic)
                await check(broker)
        if restarted:
            take_away(tmp_path / "after" / "topics" / "orders", how)
            async with running_broker(tmp_path / "after") as broker:
                await check(broker)

    async def check(broker) -> None:
        topic = broker.topics.served.topic(INTERNAL, "orders")
        if missing is None:
            assert broker.topics.problems.all(INTERNAL) == []
            assert await read_all(broker, topic) == [(0, b"a"), (1, b"b"), (4, b"e")]
            return
        (problem,) = broker.topics.problems.all(INTERNAL)
        start, end = missing
        assert problem == TopicProblem("orders", 0, ProblemState.RECORDS_MISSING, problem.reason, problem.remedy)
        assert f"Offsets {start} to {end - 1} of orders-0 are missing: {how} in version" in problem.reason
        if start:
            fetched = await broker.fetch.partition(
                INTERNAL, topic, 0, 0, max_bytes=10**6, min_bytes=10**6, max_wait_ms=0
            )
            assert fetched.next_offset == start
            stored = await fetch_stored(broker, 0)
            assert isinstance(stored, FetchResult)
            assert stored.next_offset == start
        for offset in range(start, end):
            with pytest.raises(MissingRecordsError, match="are missing"):
                await broker.fetch.partition(INTERNAL, topic, 0, offset, max_bytes=10**6, min_bytes=1, max_wait_ms=0)
            refused = await fetch_stored(broker, offset)
            assert isinstance(refused, MissingRecordsError)
            assert "are missing" in refused.message
        with pytest.raises(MissingRecordsError):
            await broker.fetch.offset_for_timestamp(INTERNAL, topic, 0, 2**50)
        after = await broker.fetch.partition(INTERNAL, topic, 0, end, max_bytes=10**6, min_bytes=1, max_wait_ms=0)
        assert after.records["value"].to_pylist()[0] == b"e"
        await produce(broker, topic, [b"more"])

    run(scenario())


def test_no_reader_sees_a_table_before_its_missing_records_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, read = threading.Event(), threading.Event()

    def slowly(*args: Any) -> Any:
        looking.set()
        assert read.wait(10)
        return removed_ranges(*args)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_rolls(broker)
            monkeypatch.setattr(table_follower, "removed_ranges", slowly)
            (tmp_path / "aside").mkdir()
            take_away(path_of(topic.table), "RESTORE", aside=tmp_path / "aside")
            (lost,) = (tmp_path / "aside").iterdir()
            here = shutil.copy(lost, path_of(topic.table) / "partition=0")
            monkeypatch.setattr(table_follower, "dropped_segments", lambda *_: [])
            refreshing = asyncio.create_task(broker._roller.refresh(topic))
            assert await asyncio.to_thread(looking.wait, 10)
            fetched = await broker.fetch.partition(INTERNAL, topic, 0, 2, max_bytes=10**6, min_bytes=1, max_wait_ms=0)
            assert fetched.records["offset"].to_pylist()[0] == 2
            await asyncio.to_thread(Path(here).unlink)
            read.set()
            await refreshing
            with pytest.raises(MissingRecordsError):
                await broker.fetch.partition(INTERNAL, topic, 0, 2, max_bytes=10**6, min_bytes=1, max_wait_ms=0)

    run(scenario())


def test_rows_that_were_deleted_do_not_count_as_missing_when_files_of_others_are_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_rolls(broker)
            take_away(path_of(topic.table), "DELETE")
            await broker._roller.refresh(topic)
            foreign_append(path_of(topic.table), [1])
            await broker._roller.refresh(topic)
            assert broker.topics.problems.all(INTERNAL)
            topic.table.drop_foreign_files()
            await broker._roller.refresh(topic)
            assert broker.topics.problems.all(INTERNAL) == []
            assert [value for _, value in await read_all(broker, topic)] == [b"a", b"b", b"e"]

    run(scenario())


def test_records_that_a_restore_took_away_come_back_with_a_second_one_or_are_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_rolls(broker)
            version = topic.version
            aside = tmp_path / "aside"
            aside.mkdir()
            take_away(path_of(topic.table), "RESTORE", aside=aside)
            await broker._roller.refresh(topic)
            assert broker.topics.problems.all(INTERNAL)
            for file in aside.iterdir():
                file.rename(path_of(topic.table) / "partition=0" / file.name)
            DeltaTable(str(path_of(topic.table))).restore(version)
            await broker._roller.refresh(topic)
            assert broker.topics.problems.all(INTERNAL) == []
            assert [value for _, value in await read_all(broker, topic)] == [b"a", b"b", b"c", b"d", b"e"]

            take_away(path_of(topic.table), "RESTORE")
            await broker._roller.refresh(topic)
            assert await broker.topics.tables.delete_records(INTERNAL, topic, 0, 4) == 4
            assert broker.topics.problems.all(INTERNAL) == []
            assert await read_all(broker, topic) == [(4, b"e")]

    run(scenario())


@pytest.mark.parametrize("predicate", ['"offset" < 1', '"offset" >= 3', '"offset" = 2'])
def test_rows_that_somebody_deleted_are_no_missing_records(tmp_path: Path, predicate: str) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "orders", configs=NEVER)
            await produce(broker, topic, [b"a", b"b", b"c", b"d"])
            await broker.topics.tables.roll(INTERNAL, topic)
            DeltaTable(str(path_of(topic.table))).delete(predicate)
            await broker._roller.refresh(topic)
            assert broker.topics.problems.all(INTERNAL) == []

    run(scenario())


async def three_rolls(broker) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, "orders", configs=NEVER)
    for values in ([b"a", b"b"], [b"c", b"d"], [b"e", b"f"]):
        await produce(broker, topic, values)
        await broker.topics.tables.roll(INTERNAL, topic)
    return topic


def missing_in(topic: Topic) -> list[tuple[int, int]]:
    return [(gap.start, gap.end) for gap in topic.partitions[0].missing]


def test_the_rest_of_a_gap_stays_missing_when_a_part_is_given_up_or_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_rolls(broker)
            aside = tmp_path / "aside"
            aside.mkdir()
            take_away(path_of(topic.table), "WRITE", aside=aside)
            await broker._roller.refresh(topic)
            assert missing_in(topic) == [(0, 6)]
            await broker.topics.tables.delete_records(INTERNAL, topic, 0, 1)
            assert missing_in(topic) == [(1, 6)]
            first = min(aside.iterdir())
            first.rename(path_of(topic.table) / "partition=0" / first.name)
            DeltaTable(str(path_of(topic.table))).restore(1)
            await broker._roller.refresh(topic)
            assert missing_in(topic) == [(2, 6)]

    run(scenario())


def test_below_the_clean_point_taken_records_are_missing_and_compacted_ones_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_rolls(broker)
            first, second = topic.table.snapshot().segments(0)[:2]
            # This is what compaction does if it keeps all of the first segment and nothing of the second.
            rewrite_files(topic.table, 0, [second.path], [], data_change=False, cleaned=4, operation="key-compaction")
            await broker._roller.refresh(topic)
            assert missing_in(topic) == []
            assert first.path in topic.table.snapshot().paths
            take_away(path_of(topic.table), "WRITE")
            await broker._roller.refresh(topic)
            assert missing_in(topic) == [(0, 2), (4, 6)]
        async with running_broker(tmp_path) as broker:
            assert missing_in(broker.topics.served.topic(INTERNAL, "orders")) == [(0, 2), (4, 6)]

    run(scenario())


def test_the_last_commit_counts_and_files_need_not_be_there_any_more(tmp_path: Path) -> None:
    """Delete some rows, overwrite the remaining ones, then vacuum, all while no store runs."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_rolls(broker)
        table = DeltaTable(str(path_of(topic.table)))
        table.delete('"offset" < 1')
        take_away(path_of(topic.table), "WRITE")
        DeltaTable(str(path_of(topic.table))).vacuum(0, dry_run=False, enforce_retention_duration=False)
        async with running_broker(tmp_path) as broker:
            assert missing_in(broker.topics.served.topic(INTERNAL, "orders")) == [(1, 6)]

    run(scenario())


@pytest.mark.parametrize("sealed", [True, False])
def test_partitions_whose_adding_was_overwritten_are_added_again_and_lose_nothing(tmp_path: Path, sealed: bool) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path / "data") as broker:
            topic = await broker.topics.changes.create(INTERNAL, "orders", configs=NEVER)
            shutil.copytree(path_of(topic.table) / "_delta_log", tmp_path / "before")
            await broker.topics.changes.add_partitions(INTERNAL, "orders", 2)
            assert await produce(broker, topic, [b"a", b"b"], partition=1) == 0
            if sealed:
                await broker.topics.tables.roll(INTERNAL, topic)
            assert await produce(broker, topic, [b"c"], partition=1) == 2
            copy_of_one_moment(tmp_path / "data", tmp_path / "after")
        data = tmp_path / "after"
        shutil.rmtree(data / "topics/orders/_delta_log")
        shutil.copytree(tmp_path / "before", data / "topics/orders/_delta_log")
        async with running_broker(data) as broker:
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.topic, problem.partition, problem.state) == ("orders", 1, ProblemState.QUARANTINED)
            with pytest.raises(QuarantinedError):
                await produce(broker, broker.topics.served.topic(INTERNAL, "orders"), [b"no"], partition=1)
            await produce(broker, broker.topics.served.topic(INTERNAL, "orders"), [b"other"], partition=0)
        async with running_broker(data) as broker:
            assert broker.topics.problems.all(INTERNAL) == []
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders"), 1) == [
                (0, b"a"),
                (1, b"b"),
                (2, b"c"),
            ]
            assert await produce(broker, broker.topics.served.topic(INTERNAL, "orders"), [b"d"], partition=1) == 3

    run(scenario())


def test_partitions_that_a_foreign_commit_takes_away_while_the_store_runs_are_added_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "orders", configs=NEVER)
            await broker.topics.changes.add_partitions(INTERNAL, "orders", 2)
            await produce(broker, topic, [b"a"], partition=1)
            entry = path_of(topic.table) / "_delta_log" / f"{topic.version:020d}.json"
            temporary = entry.with_suffix(".tmp")
            temporary.write_text('{"commitInfo":{"operation":"WRITE"}}\n')
            temporary.rename(entry)
            await broker._roller.refresh(topic)
            await broker.topics.tables.roll(INTERNAL, topic)
            assert topic.table.snapshot().num_partitions == 2
            assert await read_all(broker, topic, 1) == [(0, b"a")]

    run(scenario())


def test_a_topic_whose_directory_is_gone_is_listed_though_all_of_it_was_sealed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await orders(broker)
        async with running_broker(tmp_path):
            pass
        shutil.rmtree(path_of(topic.table) / "_delta_log")
        async with running_broker(tmp_path) as broker:
            assert [problem.topic for problem in broker.topics.problems.all(INTERNAL)] == [str(topic.topic_id)]

    run(scenario())


def test_a_segment_that_readers_cannot_read_is_listed_until_it_can_be_read_or_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_rolls(broker)
            first = path_of(topic.table) / topic.partitions[0].segments.files[0].path
            whole = bytearray(first.read_bytes())
            whole[30] ^= 1
            first.write_bytes(whole)
            with pytest.raises(CorruptionError):
                await broker.fetch.partition(INTERNAL, topic, 0, 0, max_bytes=10**6, min_bytes=1, max_wait_ms=0)
            assert isinstance(await fetch_stored(broker, 0), CorruptionError)
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.partition, problem.state) == (0, ProblemState.UNREADABLE)
            assert first.name in problem.reason
            assert (
                await broker.fetch.partition(INTERNAL, topic, 0, 2, max_bytes=1, min_bytes=1, max_wait_ms=0)
            ).count == 1
            whole[30] ^= 1
            first.write_bytes(whole)
            await read_all(broker, topic)
            assert broker.topics.problems.all(INTERNAL) == []

            DeltaTable(str(path_of(topic.table))).optimize.compact()
            await broker._roller.refresh(topic)
            (joined,) = topic.partitions[0].segments.files
            (path_of(topic.table) / joined.path).write_bytes(b"no Parquet file")
            with pytest.raises(CorruptionError):
                await broker.fetch.partition(INTERNAL, topic, 0, 0, max_bytes=10**6, min_bytes=1, max_wait_ms=0)
            assert [problem.state for problem in broker.topics.problems.all(INTERNAL)] == [ProblemState.UNREADABLE]

    run(scenario())


def test_a_partition_that_stays_lost_is_reported_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_rolls(broker)
            shutil.rmtree(path_of(topic.table))
            await asyncio.to_thread(
                create_table, path_of(topic.table), num_partitions=1, config_overrides={"segment.ms": "100000000"}
            )
            with captured_logs() as logs:
                for _ in range(3):
                    await broker._roller.refresh(topic)
            told = [entry["event"] for entry in logs if entry["event"].startswith("partition.")]
            assert told == ["partition.quarantined"]
            assert [problem.state for problem in broker.topics.problems.all(INTERNAL)] == [ProblemState.QUARANTINED]

    run(scenario())


def test_a_segment_whose_commit_and_file_are_gone_is_missing(tmp_path: Path) -> None:
    """Overwrite a roll's entry as another writer (R7), and delete the file, so that it cannot be committed again."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_rolls(broker)
            first = topic.partitions[0].segments.files[0]
            table = path_of(topic.table)
            entry = table / "_delta_log" / f"{1:020d}.json"
            (table / first.path).unlink()
            info = '{"commitInfo":{"operation":"WRITE"}}\n{"txn":{"appId":"logstore/0/sealed","version":2}}\n'
            temporary = entry.with_suffix(".tmp")
            temporary.write_text(info)
            temporary.rename(entry)
            await broker._roller.refresh(topic)
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert "Offsets 0 to 1 of orders-0 are missing" in problem.reason

    run(scenario())
