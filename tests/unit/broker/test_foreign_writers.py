"""Other writers change a topic's table: the records that the log serves afterwards, live and after a restart.

tests/spark has Spark's files; delta-rs writes the same here, in less time.
"""

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from logstore.broker.context import INTERNAL
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition
from logstore.broker.topics.problems import ProblemState
from logstore.delta.snapshot import PartitionState
from logstore.errors import CommitRefusedError, LogStoreError, QuarantinedError, UnsupportedTableError
from logstore.inspection.feature_removal import take_back
from logstore.log.topic import Topic
from logstore.protocol.record_batch import encode_batches, read_records
from tests.support import deletion_vectors as vectors
from tests.support import foreign_writers as others
from tests.support import table_features as features
from tests.support.captured_logs import captured_logs
from tests.support.kafka_reading import consume, rows_from
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.table_paths import path_of
from tests.support.topics import joined, rewrite_files
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}
#: Each of three segments has ten records, and the journal has two.
VALUES = [b"%d" % n for n in range(32)]
ALL = list(enumerate(VALUES))


async def three_segments(broker) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, "orders", partitions=2, configs=NEVER)
    for begin in range(0, 30, 10):
        for partition in (0, 1):
            await produce(broker, topic, VALUES[begin : begin + 10], partition=partition)
        await broker.topics.tables.roll(INTERNAL, topic)
    for partition in (0, 1):
        await produce(broker, topic, VALUES[30:], partition=partition)
    return topic


async def read_stored(broker, partition: int) -> list[tuple[int, bytes | None]]:
    """Read like ``read_all``, but by stored record batches, as the consumer reads them."""
    log = broker.topics.served.topic(INTERNAL, "orders").partition(partition)
    at, found = log.log_start_offset, []
    while at < log.high_watermark:
        limits = FetchLimits(10**6, 10**6, min_bytes=1, max_wait_ms=0)
        fetched = await broker.fetch.stored(INTERNAL, [FetchPartition("orders", partition, at)], limits)
        fetched.reservation.release()
        answer = fetched.answers[0]
        if isinstance(answer, LogStoreError):
            raise answer
        content = pa.py_buffer(b"".join(encode_batches(answer.records)))
        for batch in read_records(content, at):
            found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
        assert answer.next_offset > at
        at = answer.next_offset
    return found


def changed(offsets: list[int]) -> list[tuple[int, bytes]]:
    return [(offset, b"new" if offset in offsets else value) for offset, value in ALL]


def without(offsets: range | list[int]) -> list[tuple[int, bytes]]:
    return [(offset, value) for offset, value in ALL if offset not in offsets]


def in_turn(*steps: Callable[[Path], None]) -> Callable[[Path], None]:
    def do(table: Path) -> None:
        for step in steps:
            step(table)

    return do


#: Each statement's action, and the records of partition 0 after it; partition 1 keeps all.
STATEMENTS: dict[str, tuple[Callable[[Path], None], list[tuple[int, bytes]]]] = {
    "optimize": (others.optimize, ALL),
    "z-order": (others.z_order, ALL),
    "z-order into many files": (lambda table: others.z_order(table, target_size=1000), ALL),
    "delete rows": (
        lambda table: others.delete(table, 'partition = 0 AND "offset" % 3 = 1 AND "offset" < 15'),
        without([1, 4, 7, 10, 13]),
    ),
    "delete rows of the first and the last": (
        lambda table: others.delete(table, 'partition = 0 AND "offset" IN (0, 3, 29)'),
        without([0, 3, 29]),
    ),
    "delete a segment": (
        lambda table: others.delete(table, 'partition = 0 AND "offset" >= 10 AND "offset" < 20'),
        without(range(10, 20)),
    ),
    "delete everything": (lambda table: others.delete(table, 'partition = 0 AND "offset" < 30'), without(range(30))),
    "update": (lambda table: others.update(table, 'partition = 0 AND "offset" IN (3, 25)', "new"), changed([3, 25])),
    "delete rows with vectors": (lambda table: vectors.delete(table, [0, 3, 14, 29]), without([0, 3, 14, 29])),
    "delete rows with vectors in the log": (lambda table: vectors.delete(table, [1, 2], kind="i"), without([1, 2])),
    "delete a segment with vectors": (lambda table: vectors.delete(table, list(range(10, 20))), without(range(10, 20))),
    "update with vectors": (lambda table: vectors.update(table, [3, 25], b"new"), changed([3, 25])),
    "delete, update, delete with vectors": (
        in_turn(
            lambda table: vectors.delete(table, [4]),
            lambda table: vectors.update(table, [5, 6, 22], b"new"),
            lambda table: vectors.delete(table, [6, 21]),
        ),
        [record for record in changed([5, 22]) if record[0] not in (4, 6, 21)],
    ),
    "merge": (lambda table: others.merge(table, [29, 2, 17], b"new"), changed([2, 17, 29])),
    "replace where": (
        lambda table: others.overwrite(
            table, _rows(table).filter(pa.compute.greater(_rows(table)["offset"], 4)), predicate="partition = 0"
        ),
        without(range(5)),
    ),
    "overwrite": (others.overwrite, ALL),
    "overwrite with nothing": (lambda table: others.overwrite(table, _rows(table).slice(0, 0)), ALL),
    "restore": (lambda table: others.restore(table, 1), ALL),
    "restore to nothing": (lambda table: others.restore(table, 0), ALL),
    "append": (lambda table: others.append(table, [5]), ALL),
    "append beyond": (lambda table: others.append(table, [30, 31, 32]), ALL),
    "append to a partition that is not there": (lambda table: others.append(table, [5], partition=7), ALL),
    "vacuum": (others.vacuum, ALL),
    "property": (
        lambda table: DeltaTable(str(table)).alter.set_table_properties({"owner": "me"}, raise_if_not_exists=False),
        ALL,
    ),
    "optimize, delete, update, z-order": (
        in_turn(
            others.optimize,
            lambda table: others.delete(table, 'partition = 0 AND "offset" = 8'),
            lambda table: others.update(table, 'partition = 0 AND "offset" = 9', "new"),
            others.z_order,
        ),
        [record for record in changed([9]) if record[0] != 8],
    ),
    "optimize, restore": (in_turn(others.optimize, lambda table: others.restore(table, 2)), ALL),
    "update, restore to before": (
        in_turn(
            lambda table: others.update(table, 'partition = 0 AND "offset" = 25', "new"),
            lambda table: others.restore(table, 2),
        ),
        ALL,
    ),
}
#: Statements that add files to the table which the store does not serve.
REFUSED = {"overwrite", "append", "append beyond", "append to a partition that is not there"}


def _rows(table: Path) -> pa.Table:
    rows = DeltaTable(str(table)).to_pyarrow_table()
    return rows.filter(pa.compute.equal(rows["partition"], 0))


@pytest.mark.parametrize("restarted", [False, pytest.param(True, marks=pytest.mark.long)], ids=["live", "restarted"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_after_a_statement_of_another_writer_the_log_serves(tmp_path: Path, statement: str, restarted: bool) -> None:
    do, expected = STATEMENTS[statement]
    with_more = [(32, b"more")]

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            if not restarted:
                await asyncio.to_thread(do, table)
                await broker._roller.refresh(topic)
                await check(broker)
        if restarted:
            do(table)
            async with running_broker(tmp_path) as broker:
                await check(broker)
        async with running_broker(tmp_path) as broker:
            await serves(broker, with_more, refused=False)

    async def check(broker) -> None:
        topic = broker.topics.served.topic(INTERNAL, "orders")
        await serves(broker, [], refused=statement in REFUSED)
        for partition in (0, 1):
            assert await produce(broker, topic, [b"more"], partition=partition) == 32
        await broker.topics.tables.roll(INTERNAL, topic)
        await serves(broker, with_more, refused=statement in REFUSED)
        await broker.topics.tables.drop_foreign_files(INTERNAL, topic)
        await serves(broker, with_more, refused=False)

    async def serves(broker, more: list[tuple[int, bytes]], *, refused: bool) -> None:
        topic = broker.topics.served.topic(INTERNAL, "orders")
        for partition, has in ((0, [*expected, *more]), (1, [*ALL, *more])):
            assert await read_all(broker, topic, partition) == has
            assert await read_stored(broker, partition) == has
            batches = await consume(broker, topic, 0, partition)
            assert [(offset, row.value) for offset, row in rows_from(batches, 0).items()] == has
            for offset in (0, 14, 29):
                fetched = await broker.fetch.partition(
                    INTERNAL, topic, partition, offset, max_bytes=10**6, min_bytes=1, max_wait_ms=0
                )
                assert (fetched.count == 0 and offset < 30) or fetched.records["offset"][0].as_py() == min(
                    o for o, _ in has if o >= offset
                )
        states = {problem.state for problem in broker.topics.problems.all(INTERNAL)}
        assert states == ({ProblemState.FOREIGN_FILE} if refused else set())

    run(scenario())


@pytest.mark.parametrize("restarted", [False, True], ids=["live", "restarted"])
def test_after_a_restore_to_a_version_before_partitions_were_added_all_of_them_are_served(
    tmp_path: Path, restarted: bool
) -> None:
    """Check that the store sets its property again, and keeps the restored configuration, which is the user's wish."""
    before: dict[int, PartitionState] = {}

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "orders", configs={**NEVER, "retention.ms": "-1"})
            await produce(broker, topic, VALUES[:20])
            await broker.topics.tables.roll(INTERNAL, topic)
            old = topic.version
            await broker.topics.changes.add_partitions(INTERNAL, "orders", 4)
            await broker.topics.changes.alter_configs(INTERNAL, "orders", {"retention.ms": "7000000"})
            # Partition 2 has records, partition 1 also a log start, and partition 3 never had anything.
            for partition in (0, 1, 2):
                await produce(broker, topic, VALUES[:10], partition=partition)
            await broker.topics.tables.roll(INTERNAL, topic)
            await broker.topics.tables.delete_records(INTERNAL, topic, 1, 4)
            await produce(broker, topic, VALUES[10:20], partition=1)
            before.update(topic.table.snapshot().partitions)
            if not restarted:
                await asyncio.to_thread(others.restore, path_of(topic.table), old)
                await broker._roller.refresh(topic)
                await check(broker)
        if restarted:
            others.restore(tmp_path / "topics" / "orders", old)
        for _ in range(2):
            async with running_broker(tmp_path) as broker:
                await check(broker)

    async def check(broker) -> None:
        topic = broker.topics.served.topic(INTERNAL, "orders")
        assert broker.topics.problems.all(INTERNAL) == []
        snapshot = topic.table.snapshot()
        assert (snapshot.properties["logstore.partitions"], len(topic.partitions)) == ("4", 4)
        for partition, state in before.items():
            now = snapshot.partitions[partition]
            assert now.log_start == state.log_start
            assert (now.sealed, now.leader_epoch) >= (state.sealed, state.leader_epoch)
        assert await read_all(broker, topic, 0) == list(enumerate([*VALUES[:20], *VALUES[:10]]))
        assert await read_all(broker, topic, 1) == list(enumerate(VALUES[:20]))[4:]
        assert await read_all(broker, topic, 2) == list(enumerate(VALUES[:10]))
        assert topic.config.retention_ms == -1
        tail = await read_all(broker, topic, 3)
        assert await produce(broker, topic, [b"more"], partition=3) == len(tail)
        await broker.topics.tables.roll(INTERNAL, topic)
        assert len(await read_all(broker, topic, 3)) == len(tail) + 1

    run(scenario())


# ---- table features -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True], ids=["live", "restarted"])
def test_a_renamed_column_keeps_the_topic_from_being_served_until_it_is_named_back(
    tmp_path: Path, restarted: bool
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            await broker.topics.changes.create(INTERNAL, "other")
            if not restarted:
                await asyncio.to_thread(features.turn_on, table, "columnMapping", change=features.rename("value", "v"))
                with pytest.raises(UnsupportedTableError):
                    await broker._roller.refresh(topic)
                check(broker)
                for partition in (0, 1):
                    with pytest.raises(QuarantinedError, match="value was renamed to v"):
                        await broker.fetch.partition(
                            INTERNAL, topic, partition, 0, max_bytes=1, min_bytes=1, max_wait_ms=0
                        )
                    with pytest.raises(QuarantinedError):
                        await produce(broker, topic, [b"no"], partition=partition)
                await asyncio.to_thread(name_back, table)
                await broker._roller.refresh(topic)
                assert broker.topics.problems.all(INTERNAL) == []
                assert await read_all(broker, topic) == ALL
        if restarted:
            features.turn_on(table, "columnMapping", change=features.rename("value", "v"))
            async with running_broker(tmp_path) as broker:
                check(broker)
                assert await produce(broker, broker.topics.served.topic(INTERNAL, "other"), [b"x"]) == 0
            name_back(table)
        async with running_broker(tmp_path) as broker:
            assert broker.topics.problems.all(INTERNAL) == []
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders")) == ALL

    def check(broker) -> None:
        problems = [problem for problem in broker.topics.problems.all(INTERNAL) if problem.topic == "orders"]
        assert {problem.state for problem in problems} == {ProblemState.QUARANTINED}
        for problem in problems:
            assert "column mapping (its column value was renamed to v)" in problem.reason
            assert "rename the column back" in problem.reason + problem.remedy

    def name_back(table: Path) -> None:
        features.turn_on(table, "columnMapping", change=features.rename("v", "value"))

    run(scenario())


def test_a_feature_of_writers_keeps_rolls_back_and_nobody_from_reading(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            await asyncio.to_thread(features.turn_on, path_of(topic.table), "checkConstraints")
            await broker._roller.refresh(topic)
            assert await read_all(broker, topic) == ALL
            with pytest.raises(CommitRefusedError, match=r"check constraints.*logstore topic take-feature-back orders"):
                await broker.topics.tables.roll(INTERNAL, topic)
            taken = await asyncio.to_thread(take_back, topic.table, "orders", None, lambda _: topic.config, 1)
            assert taken.features == ("checkConstraints",)
            await broker.topics.tables.roll(INTERNAL, topic)
            assert await read_all(broker, topic) == ALL
            assert broker.topics.problems.all(INTERNAL) == []

    run(scenario())


def test_features_that_users_have_on_by_default_stop_nothing(tmp_path: Path) -> None:
    on = ("deletionVectors", "columnMapping", "rowTracking", "inCommitTimestamp", "vacuumProtocolCheck", "clustering")

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            await asyncio.to_thread(features.turn_on, path_of(topic.table), *on, "changeDataFeed", "typeWidening")
            await broker.topics.tables.roll(INTERNAL, topic)
            await asyncio.to_thread(vectors.delete, path_of(topic.table), [3, 30])
            await broker.topics.changes.alter_configs(INTERNAL, "orders", {"retention.ms": "7000000"})
            await broker.topics.changes.add_partitions(INTERNAL, "orders", 3)
            await broker._roller.refresh(topic)
            assert await read_all(broker, topic) == without([3, 30])
            assert broker.topics.problems.all(INTERNAL) == []
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders")) == without([3, 30])

    run(scenario())


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_a_damaged_vector_is_a_problem_of_its_topic(tmp_path: Path, gone: bool) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            vectors.delete(table, [13])
            (vector,) = table.glob("deletion_vector_*.bin")
            whole = vector.read_bytes()
            vector.write_bytes(whole[:-1])
            if gone:
                vector.unlink()
            await broker._roller.refresh(topic)
            with pytest.raises(LogStoreError):
                await read_all(broker, topic)
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.topic, problem.partition, problem.state) == ("orders", 0, ProblemState.UNREADABLE)
            assert "deletion_vector" in problem.reason or "deletion vector" in problem.reason
            assert await read_all(broker, topic, 1) == ALL
            await broker.topics.tables.roll(INTERNAL, topic)
            vector.write_bytes(whole)
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "orders")
            assert await read_all(broker, topic) == without([13])
            assert broker.topics.problems.all(INTERNAL) == []

    run(scenario())


def test_an_append_only_table_is_told_of_where_records_would_be_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            await broker.topics.changes.alter_configs(INTERNAL, "orders", {"retention.ms": "7000000"})
            await asyncio.to_thread(features.turn_on, path_of(topic.table), "appendOnly")
            await broker.topics.tables.roll(INTERNAL, topic)
            await broker._roller.refresh(topic)
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.state, problem.partition) == (ProblemState.APPEND_ONLY, None)
            assert "retention removes no record" in problem.reason
            assert "UNSET TBLPROPERTIES ('delta.appendOnly')" in problem.remedy
            await broker.topics.changes.alter_configs(INTERNAL, "orders", {"retention.ms": "-1"})
            assert broker.topics.problems.all(INTERNAL) == []

    run(scenario())


# ---- what remains when files are gone -------------------------------------------------------------------------------


def test_records_that_were_dropped_and_vacuumed_are_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            before = set(DeltaTable(str(table)).file_uris())
            await asyncio.to_thread(others.restore, table, 1)
            for path in sorted(before - set(DeltaTable(str(table)).file_uris()))[:1]:
                await asyncio.to_thread(Path(path).unlink)
            await broker._roller.refresh(topic)
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert problem.state is ProblemState.RECORDS_MISSING
            assert "Offsets 10 to 19 of orders-0 are missing: RESTORE in version 4" in problem.reason
            assert await read_all(broker, topic, 1) == ALL

    run(scenario())


@pytest.mark.parametrize("restarted", [False, True], ids=["live", "restarted"])
@pytest.mark.parametrize("statement", ["delete", "update"])
def test_an_overwrite_does_not_bring_back_records_that_a_statement_changed_after_a_rewrite(
    tmp_path: Path, statement: str, restarted: bool
) -> None:
    """Leave the segments from before the OPTIMIZE on disk, with the deleted rows: no repair may use them."""

    def meddle(table: Path) -> None:
        others.optimize(table)
        if statement == "delete":
            others.delete(table, 'partition = 0 AND "offset" = 3')
        else:
            others.update(table, 'partition = 0 AND "offset" = 3', "new")
        before.append(DeltaTable(str(table)).version())
        others.overwrite(table, _rows(table).slice(0, 0))

    async def check(broker) -> None:
        topic = broker.topics.served.topic(INTERNAL, "orders")
        (problem,) = broker.topics.problems.all(INTERNAL)
        assert problem.state is ProblemState.RECORDS_MISSING
        last = 31 if restarted else 29  # the stop rolled two more
        assert f"Offsets 0 to {last} of orders-0 are missing: WRITE in version {before[0] + 1}" in problem.reason
        assert await read_all(broker, topic, 1) == ALL
        # The remedy is a command that can be pasted.
        program, _, code = shlex.split(problem.remedy.partition(": ")[2].partition("; or give up")[0])
        assert (program, f".restore({before[0]})" in code) == ("python", True)
        await asyncio.to_thread(exec, code)
        await broker._roller.refresh(topic)
        expected = changed([3]) if statement == "update" else without([3])
        assert await read_all(broker, topic, 0) == expected
        assert broker.topics.problems.all(INTERNAL) == []

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            if not restarted:
                await asyncio.to_thread(meddle, table)
                await broker._roller.refresh(topic)
                await check(broker)
        if restarted:
            meddle(table)
            async with running_broker(tmp_path) as broker:
                await check(broker)

    before: list[int] = []
    run(scenario())


def test_each_statement_of_others_that_changes_records_is_told_in_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            with captured_logs() as logs:
                await asyncio.to_thread(others.update, table, '"offset" = 12 AND partition = 1', "new")
                await asyncio.to_thread(others.optimize, table)
                await asyncio.to_thread(others.delete, table, '"offset" = 3 AND partition = 0')
                await broker._roller.refresh(topic)
                await broker._roller.refresh(topic)
            told = [
                (entry["partition"], entry["start"], entry["end"], entry["cause"])
                for entry in logs
                if entry["event"] == "history.changed"
            ]
            assert told == [(1, 10, 20, "UPDATE in version 4"), (0, 0, 30, "DELETE in version 6")]

    run(scenario())


def test_a_restore_to_after_a_delete_deletes_again(tmp_path: Path) -> None:
    """Restore to the DELETE from a version without it, which another RESTORE had brought back."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            others.optimize(table)
            before = others.version(table)
            others.delete(table, 'partition = 0 AND "offset" IN (12, 29)')
            after = others.version(table)
            for back, expected in ((before, ALL), (2, ALL), (after, without([12, 29])), (before, ALL)):
                others.restore(table, back)
                await broker.topics.tables.refresh(INTERNAL, topic)
                assert await read_all(broker, topic) == expected
            others.restore(table, after)
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders")) == without([12, 29])

    run(scenario())


def test_a_restore_to_a_restore_brings_back_what_was_merged_since(tmp_path: Path) -> None:
    """Restore twice: the first drops the last roll, which is committed again and merged; the second drops the merge."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            others.restore(table, 2)
            restored = others.version(table)
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert await read_all(broker, topic) == ALL
            snapshot = topic.table.snapshot()
            files = list(snapshot.segments(0))
            rewrite_files(topic.table, 0, [f.path for f in files], [joined(topic.table, files)], data_change=False)
            others.restore(table, restored)
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert await read_all(broker, topic) == ALL
            assert broker.topics.problems.all(INTERNAL) == []

    run(scenario())


@pytest.mark.parametrize(("back", "value"), [(2, "as sent"), (4, "new")])
def test_a_restore_as_the_page_on_tables_has_it(tmp_path: Path, back: int, value: str) -> None:
    """Restore a table with rolls in versions 1 to 3, an UPDATE of offset 25 in version 4, a DELETE of 5 and 26 in
    version 5.
    """

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            others.update(table, 'partition = 0 AND "offset" = 25', "new")
            others.delete(table, 'partition = 0 AND "offset" IN (5, 26)')
            assert others.version(table) == 5
            others.restore(table, back)
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert await read_all(broker, topic) == (changed([25]) if value == "new" else ALL)
            assert broker.topics.problems.all(INTERNAL) == []

    run(scenario())


def test_a_restore_to_before_a_merge_whose_first_records_were_deleted(tmp_path: Path) -> None:
    """Restore a segment that is below the log start, as is the beginning of the merged one."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            files = topic.partition(0).segments.files
            rewrite_files(topic.table, 0, [f.path for f in files], [joined(topic.table, files)], data_change=False)
            await broker.topics.tables.delete_records(INTERNAL, topic, 0, 10)
            others.restore(table, 1)
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert await read_all(broker, topic) == ALL[10:]
            await produce(broker, topic, [b"next"])
            await broker.topics.tables.roll(INTERNAL, topic)

    run(scenario())


def test_a_restore_takes_deleted_offsets_within_a_larger_file_for_deleted(tmp_path: Path) -> None:
    """Let an OPTIMIZE make one file of the records on both sides of the gap."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await three_segments(broker)
            table = path_of(topic.table)
            others.delete(table, 'partition = 0 AND "offset" >= 5 AND "offset" < 15')
            back = others.version(table)
            await broker.topics.tables.refresh(INTERNAL, topic)
            others.optimize(table)
            await broker.topics.tables.refresh(INTERNAL, topic)
            await broker.topics.tables.roll(INTERNAL, topic)
            others.restore(table, back)
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert await read_all(broker, topic) == without(range(5, 15))
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "orders")) == without(range(5, 15))

    run(scenario())
