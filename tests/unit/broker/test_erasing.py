"""Records that are erased leave the table, its old files and the journal, and do not come back."""

import asyncio
import random
import shutil
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from logstore.broker import erasing
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.errors import InvalidRequestError, InvalidTopicError, UnknownErasureError
from logstore.log.erasures import TableErasure, hidden_literals
from logstore.log.table_erasure import ErasureProgress, ErasureWaitsError, find_offsets
from logstore.log.topic import Topic
from logstore.records.erasure_record import ERASURES_TOPIC, Erasure, new_salt
from logstore.records.where.parser import parse_where
from tests.faults.bench.schedule import ERASING
from tests.support.data_directory import copy_of_one_moment
from tests.support.eventually import eventually_async
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.running_broker import CLIENT, read_all, records, running_broker
from tests.support.virtual_time import run

ADA, BOB = b"key-of-ada", b"key-of-bob"
#: This is so long that no codec hides it.
SECRET = b"secret words of ada"


async def put(broker: Broker, topic: Topic, *keys: bytes, partition: int = 0) -> None:
    values = [b"%s: %s" % (key, SECRET if key == ADA else b"plain words of bob") for key in keys]
    result = await broker.produce.records.produce(
        INTERNAL, topic, records(values, keys=list(keys)), partition=partition
    )
    result.require_stored()


async def erase(broker: Broker, topic: Topic, *keys: bytes) -> Erasure:
    """Erase the keys, wait until the erasure is done, and return its report."""
    return await erased(broker, topic, await broker.erasing.begin(CLIENT, topic, keys))


async def erased(broker: Broker, topic: Topic, erasure: str) -> Erasure:
    def is_over() -> bool:
        return broker.erasing.report(topic, erasure)[0].state == "erased"

    await eventually_async(is_over, "not erased")
    return broker.erasing.report(topic, erasure)[0]


def files_with(data: Path, text: bytes) -> list[str]:
    """Return the files of the store that contain these bytes."""
    files = (file for file in data.rglob("*") if file.is_file())
    return [str(file.relative_to(data)) for file in files if text in file.read_bytes()]


async def values_of(broker: Broker, topic: Topic) -> list[bytes]:
    return [value for log in topic.partitions for _, value in await read_all(broker, topic, log.partition) if value]


def test_the_bytes_leave_table_journal_and_old_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2)
            other = await broker.topics.changes.create(INTERNAL, "other")
            for partition in (0, 1):
                await put(broker, topic, ADA, BOB, partition=partition)
            await broker.topics.tables.roll(INTERNAL, topic)
            await put(broker, topic, BOB, ADA, BOB)
            await put(broker, other, b"idle")
            assert files_with(tmp_path, SECRET)
            report = await erase(broker, topic, ADA, b"nobody")
            assert files_with(tmp_path, SECRET) == files_with(tmp_path, ADA) == []
            assert (report.records, report.rewritten_count, report.pending) == (3, 3, ())
            assert [one.broker for one in report.brokers] == [broker.broker_id]
            assert report.deleted_count == 3
            assert await read_all(broker, topic, 0) == [(o, b"key-of-bob: plain words of bob") for o in (1, 2, 4)]
            assert len(await read_all(broker, other)) == 1
            await put(broker, topic, ADA)
            assert (await read_all(broker, topic, 0))[-1] == (5, ADA + b": " + SECRET)
        assert files_with(tmp_path, b"key-of-bob")
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert len(await read_all(broker, topic, 0)) == 4
            assert len(await read_all(broker, broker.topics.served.topic(INTERNAL, "other"))) == 1
            assert [one.state for one in broker.erasing.reports(topic)] == ["erased"]

    run(scenario())


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2)
            await put(broker, topic, ADA, BOB, ADA)
            count = broker.erasing.count(topic, await broker.erasing.begin(CLIENT, topic, [ADA], dry_run=True))
            assert count is not None
            await eventually_async(lambda: count.is_done, "no count")
            assert (count.erasure.records, count.files, count.failure) == (2, 1, None)
            assert len(await read_all(broker, topic, 0)) == 3
            assert broker.erasing.reports(topic) == []

    run(scenario())


def test_bad_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            with pytest.raises(InvalidRequestError):
                await broker.erasing.begin(CLIENT, topic, [])
            with pytest.raises(UnknownErasureError):
                broker.erasing.report(topic, "x")
            await erase(broker, topic, ADA)
            with pytest.raises(InvalidTopicError):
                await broker.erasing.begin(CLIENT, broker.topics.served.topic(INTERNAL, ERASURES_TOPIC), [ADA])

    run(scenario())


def test_the_selection_of_an_expression_is_remembered_by_offset(tmp_path: Path) -> None:
    """Erase from a file that the table no longer names; the report has no value of the expression."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            values: list[bytes | None] = [b'{"user":"%s","n":%d}' % (u, n) for n, u in enumerate([b"ada", b"bob"] * 3)]
            (await broker.produce.records.produce(INTERNAL, topic, records(values), partition=0)).require_stored()
            await broker.topics.tables.roll(INTERNAL, topic)
            where = parse_where('$.user == "ada" and $.n < 4')
            count = broker.erasing.count(topic, await broker.erasing.begin(CLIENT, topic, (), where, dry_run=True))
            assert count is not None
            await eventually_async(lambda: count.is_done, "no count")
            assert count.erasure.records == 2
            erasure = await broker.erasing.begin(CLIENT, topic, (), where)
            await eventually_async(lambda: broker.erasing.count(topic, erasure) is None, "not begun")
            report = await erased(broker, topic, erasure)
            assert (report.records, report.partitions[0].offsets) == (2, ((0, 1), (2, 3)))
            assert report.where is not None
            assert report.where.startswith("$.user == #")
            assert '"ada"' not in report.where
            assert [offset for offset, _ in await read_all(broker, topic)] == [1, 3, 4, 5]
            with pytest.raises(InvalidRequestError):
                await broker.erasing.begin(CLIENT, topic, [ADA], where)
        assert files_with(tmp_path, b'"ada","n":0') == []

    run(scenario())


@pytest.mark.parametrize("is_by_key", [True, False], ids=["key", "expression"])
def test_the_change_data_feed_of_another_writer_is_erased(tmp_path: Path, is_by_key: bool) -> None:
    """Erase from a feed, which has changed rows twice (before and after), and rows that the table no longer has."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            await put(broker, topic, ADA, BOB, ADA, BOB, ADA)
            await broker.topics.tables.roll(INTERNAL, topic)
            table = DeltaTable(str(tmp_path / "topics" / "t"))
            table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
            table.update(updates={"value": "key"}, predicate='"offset" IN (0, 1)')
            table.delete('"offset" = 2')
            table.delete('"offset" = 3')
            before = [file for file in files_with(tmp_path, b"PAR1") if "_change_data" in file]
            assert len(before) == 3
            await broker.topics.tables.refresh(INTERNAL, topic)
            if is_by_key:
                report = await erase(broker, topic, ADA)
            else:
                where = parse_where('key == "key-of-ada"')
                erasure = await broker.erasing.begin(CLIENT, topic, (), where)
                await eventually_async(lambda: broker.erasing.count(topic, erasure) is None, "not begun")
                report = await erased(broker, topic, erasure)
                assert report.partitions[0].offsets == ((0, 1), (2, 3), (4, 5))
            assert files_with(tmp_path, ADA) == []
            # The file with only the other key's row stays.
            after = [file for file in files_with(tmp_path, b"PAR1") if "_change_data" in file]
            assert len(after) == 1
            assert {f"topics/t/{name}" for name in report.deleted_files} >= {*before} - {*after}
            assert await values_of(broker, topic) == [BOB]

    run(scenario())


POINTS = ("erase.recorded", *ERASING, "erase.reported")


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_step_is_gone_on_from(tmp_path: Path, point: str) -> None:
    live, killed = tmp_path / "live", tmp_path / "killed"

    async def scenario() -> None:
        filesystem = FaultyFileSystem()
        async with running_broker(live, filesystem=filesystem) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            await put(broker, topic, ADA, BOB)
            await broker.topics.tables.roll(INTERNAL, topic)
            await put(broker, topic, BOB, ADA)
            filesystem.at(point, lambda _: copy_of_one_moment(live, killed))
            erasure = await broker.erasing.begin(CLIENT, topic, [ADA])
            await erased(broker, topic, erasure)
            assert killed.exists(), "the point was not reached"
        async with running_broker(killed) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            await eventually_async(lambda: broker.erasing.reports(topic) != [], "the erasure is forgotten")
            report = await erased(broker, topic, erasure)
            assert (report.records, report.rewritten_count, len(report.versions)) == (2, 2, 1)
            assert files_with(killed, SECRET) == []
            assert await values_of(broker, topic) == [b"key-of-bob: plain words of bob"] * 2

    run(scenario())


def test_a_deletion_is_durable_before_it_is_reported(tmp_path: Path) -> None:
    """Make durable what an attempt that was cut short has deleted, although the next one no longer finds the file."""
    data = tmp_path / "data"

    async def scenario() -> None:
        filesystem = FaultyFileSystem(data)
        async with running_broker(data, filesystem=filesystem) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            await put(broker, topic, ADA, BOB)
            await broker.topics.tables.roll(INTERNAL, topic)
            filesystem.at("erase.deleted", lambda _: filesystem.fail("segment.sync_directory"))
            await erase(broker, topic, ADA)
            assert any("sync_directory" in fault for fault in filesystem.injected)
        filesystem.power_cut(random.Random(1), strict=True)
        assert files_with(data, SECRET) == []

    run(scenario())


@pytest.mark.parametrize("when", ["running", "stopped"])
def test_a_restore_with_its_files_is_erased_again(tmp_path: Path, when: str) -> None:
    """Put the files of a backup back, and restore the table to a version that names them."""
    data, backup = tmp_path / "data", tmp_path / "backup"

    def put_back() -> None:
        table = data / "topics" / "t"
        for file in backup.rglob("*.parquet"):
            shutil.copy(file, table / file.relative_to(backup))
        DeltaTable(str(table)).restore(version)

    async def scenario() -> None:
        nonlocal version
        async with running_broker(data) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            await put(broker, topic, ADA, BOB)
            version = (await broker.topics.tables.roll(INTERNAL, topic)).version
            shutil.copytree(data / "topics" / "t", backup)
            await erase(broker, topic, ADA)
            await put(broker, topic, ADA)
            await broker.topics.tables.roll(INTERNAL, topic)
            if when == "running":
                put_back()
                await broker.topics.tables.refresh(INTERNAL, topic)
                await check(broker, topic)
        if when == "stopped":
            put_back()
            async with running_broker(data) as broker:
                await check(broker, broker.topics.served.topic(INTERNAL, "t"))

    async def check(broker: Broker, topic: Topic) -> None:
        assert await values_of(broker, topic) == [b"key-of-bob: plain words of bob", ADA + b": " + SECRET]
        (known,) = broker.erasing.reports(topic)
        await eventually_async(lambda: bool(broker.erasing.reports(topic)[0].repeats), "not reported")
        assert [one.records for one in broker.erasing.reports(topic)[0].repeats] == [1]
        first = f"partition=0/{0:020d}"
        await eventually_async(
            lambda: [f for f in files_with(data, SECRET) if first in f] == [], "the files of the backup are there"
        )
        assert known.state == "erased"

    version = 0
    run(scenario())


@pytest.mark.parametrize("is_optimized", [False, True], ids=["own files", "files of an OPTIMIZE"])
@pytest.mark.parametrize("when", ["running", "stopped"])
def test_a_restore_to_files_that_an_erasure_deletes_meanwhile_is_undone_for_these(
    tmp_path: Path, when: str, is_optimized: bool
) -> None:
    """Let a RESTORE look for its version's files before the erasure deletes them, and commit after it."""
    data, kept = tmp_path / "data", tmp_path / "kept"
    table = data / "topics" / "t"

    def restore() -> None:
        old = {file: kept / file.name for file in map(Path, files_before) if not file.exists()}
        assert old, "the erasure has deleted none of the files"
        for file, copy in old.items():
            shutil.copy(copy, file)
        DeltaTable(str(table)).restore(version)
        for file in old:
            file.unlink()

    async def scenario() -> None:
        nonlocal version, files_before
        async with running_broker(data) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2)
            for _ in range(2):
                await put(broker, topic, ADA, BOB)
                await put(broker, topic, BOB, partition=1)
                await broker.topics.tables.roll(INTERNAL, topic)
            if is_optimized:
                DeltaTable(str(table)).optimize.compact()
                await broker.topics.tables.refresh(INTERNAL, topic)
            version = DeltaTable(str(table)).version()
            files_before = [str(table / path) for path in topic.table.snapshot().paths]
            kept.mkdir()
            for file in files_before:
                shutil.copy(file, kept)
            await erase(broker, topic, ADA)
            await put(broker, topic, BOB)
            await broker.topics.tables.roll(INTERNAL, topic)
            if when == "running":
                restore()
                await broker.topics.tables.refresh(INTERNAL, topic)
                await check(broker, topic)
        if when == "stopped":
            restore()
            async with running_broker(data) as broker:
                await check(broker, broker.topics.served.topic(INTERNAL, "t"))

    async def check(broker: Broker, topic: Topic) -> None:
        assert await values_of(broker, topic) == [b"key-of-bob: plain words of bob"] * 5
        assert all(not p.missing for p in topic.partitions)
        assert all((table / path).exists() for path in topic.table.snapshot().paths)
        assert files_with(data, SECRET) == []
        await put(broker, topic, ADA)
        await broker.topics.tables.roll(INTERNAL, topic)
        await erase(broker, topic, ADA)

    version, files_before = 0, list[str]()
    run(scenario())


def test_a_restore_before_an_erasure_is_known_to_be_committed_is_erased_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restore while the table shows the erasure and its record does not: an earlier erasure may not vouch for the
    files.
    """
    path = str(tmp_path / "topics" / "t")

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            await put(broker, topic, ADA, BOB, b"cy")
            await broker.topics.tables.roll(INTERNAL, topic)
            await erase(broker, topic, b"cy")
            erase_from_table = broker.erasing._erase_from_table

            async def and_restore(topic: Topic, record: Erasure, progress: ErasureProgress) -> TableErasure:
                done = await erase_from_table(topic, record, progress)
                DeltaTable(path).restore(topic.version - 1)
                await broker.topics.tables.refresh(INTERNAL, topic)
                return done

            monkeypatch.setattr(broker.erasing, "_erase_from_table", and_restore)
            assert (await erase(broker, topic, ADA)).records == 1
            assert await values_of(broker, topic) == [b"key-of-bob: plain words of bob"]
            assert files_with(tmp_path, SECRET) == []

    run(scenario())


def test_an_erasure_that_waits_before_its_commit_holds_up_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold up later erasures: the table has one number for all that it shows, so a later one would vouch for the
    earlier.
    """
    waits = {"first": True}

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            await put(broker, topic, ADA, BOB, b"cy")
            roll_to_end = broker.erasing._roll_to_end

            async def roll(topic: Topic, record: Erasure) -> None:
                if record.id == first and waits["first"]:
                    raise ErasureWaitsError("not yet")
                await roll_to_end(topic, record)

            monkeypatch.setattr(broker.erasing, "_roll_to_end", roll)
            monkeypatch.setattr(erasing, "_RETRY_S", 0.05)
            first = ""
            first = await broker.erasing.begin(CLIENT, topic, [ADA])
            second = await broker.erasing.begin(CLIENT, topic, [b"cy"])
            await eventually_async(lambda: broker.erasing.report(topic, first)[2] == "not yet", "it does not wait")
            third = await broker.erasing.begin(CLIENT, topic, [b"nobody"])
            assert {one.state for one in broker.erasing.reports(topic)} == {"started"}
            waits["first"] = False
            reports = [await erased(broker, topic, one) for one in (first, second, third)]
            assert [one.records for one in reports] == [1, 1, 0]
            assert files_with(tmp_path, SECRET) == []

    run(scenario())


def test_a_report_hides_values_and_names_that_may_be_data() -> None:
    where = parse_where('$.users["ada@example.org"] != null and not ($.user == "ada" or key < "bob")')
    text = hidden_literals(where, new_salt())
    assert text.startswith('$.users["#')
    assert "$.user == #" in text
    assert not any(name in text for name in ("ada", "example", "bob"))


def test_numbers_rise_in_the_order_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look up an expression for longer than a later erasure of keys takes."""
    looked, go_on = threading.Event(), threading.Event()

    def slowly(*arguments: object, **named: object) -> object:
        looked.set()
        assert go_on.wait(30)
        return find_offsets(*arguments, **named)  # type: ignore[arg-type]

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            await put(broker, topic, ADA, BOB, b"cy")
            monkeypatch.setattr(erasing, "find_offsets", slowly)
            by_expression = await broker.erasing.begin(CLIENT, topic, (), parse_where("key == 'key-of-ada'"))
            await asyncio.to_thread(looked.wait)
            by_key = await erase(broker, topic, b"cy")
            go_on.set()
            await eventually_async(lambda: broker.erasing.count(topic, by_expression) is None, "not begun")
            report = await erased(broker, topic, by_expression)
            assert (report.records, report.number > by_key.number) == (1, True)
            assert await values_of(broker, topic) == [b"key-of-bob: plain words of bob"]
            assert files_with(tmp_path, SECRET) == []

    asyncio.run(scenario())  # on real time, which continues while a thread is held


def test_a_file_that_is_not_served_holds_up_an_erasure_and_no_roll(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            await put(broker, topic, ADA, BOB)
            await broker.topics.tables.roll(INTERNAL, topic)
            await erase(broker, topic, ADA)
            path = str(tmp_path / "topics" / "t")
            write_deltalake(path, DeltaTable(path).to_pyarrow_table(), mode="append")  # offset 1 exists already
            await put(broker, topic, b"cy")
            await broker.topics.tables.roll(INTERNAL, topic)
            erasure = await broker.erasing.begin(CLIENT, topic, [b"cy"])
            await eventually_async(
                lambda: "drop-foreign-files" in (broker.erasing.report(topic, erasure)[2] or ""), "it does not wait"
            )
            await put(broker, topic, BOB)
            await broker.topics.tables.roll(INTERNAL, topic)
            assert len(await values_of(broker, topic)) == 2
            await broker.topics.tables.drop_foreign_files(INTERNAL, topic)
            await erased(broker, topic, erasure)

    run(scenario())


def test_a_backup_of_the_whole_store_is_erased_again(tmp_path: Path) -> None:
    """Restore a backup older than the erasure, with a table and a journal of unsealed records; only ``__erasures`` is
    newer.
    """
    data, backup = tmp_path / "data", tmp_path / "backup"

    async def scenario() -> None:
        async with running_broker(data) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs={"segment.ms": "3600000"})
            await put(broker, topic, ADA, BOB)
            await broker.topics.tables.roll(INTERNAL, topic)
            await put(broker, topic, BOB, ADA)
            copy_of_one_moment(data, backup)
            await put(broker, topic, BOB, ADA, BOB)
            await erase(broker, topic, ADA)
        shutil.copytree(data / "topics" / ERASURES_TOPIC, backup / "topics" / ERASURES_TOPIC)
        assert files_with(backup / "brokers", SECRET)
        async with running_broker(backup) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert await values_of(broker, topic) == [b"key-of-bob: plain words of bob"] * 2
            # The offsets are those of the erasure, but a later leader gives them to new records.
            await put(broker, topic, ADA)
            assert files_with(backup / "brokers", SECRET) != []
            await broker.topics.tables.roll(INTERNAL, topic)
            assert len(await values_of(broker, topic)) == 3
            await eventually_async(
                lambda: len(files_with(backup / "topics", SECRET)) == 1, "the files of the backup are there"
            )

    run(scenario())


def test_an_erasure_beside_produce_and_rolls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2)
            stop = asyncio.Event()

            async def load() -> int:
                count = 0
                while not stop.is_set():
                    await put(broker, topic, BOB, partition=count % 2)
                    if count % 7 == 0:
                        await broker.topics.tables.roll(INTERNAL, topic)
                    count += 1
                return count

            await put(broker, topic, ADA, partition=0)
            await put(broker, topic, ADA, partition=1)
            loading = asyncio.create_task(load())
            for _ in range(3):
                await erase(broker, topic, ADA)
            stop.set()
            count = await loading
            assert len(await values_of(broker, topic)) == count
            assert files_with(tmp_path, SECRET) == []

    asyncio.run(scenario())  # on real time, which continues under a load without a pause


def test_deleted_records_leave_the_journal_in_time(tmp_path: Path) -> None:
    """Delete and vacuum as another writer, which leaves the bytes in a journal file that nothing needs."""

    async def scenario() -> None:
        async with running_broker(tmp_path, journal_roll_ms=1_000) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            other = await broker.topics.changes.create(INTERNAL, "other", configs={"segment.ms": "3600000"})
            await put(broker, topic, ADA)
            await put(broker, other, BOB)
            await broker.topics.tables.roll(INTERNAL, topic)
            await eventually_async(lambda: files_with(tmp_path / "brokers", SECRET) == [], "still in the journal")
            assert len(await read_all(broker, other)) == 1
            assert files_with(tmp_path / "brokers", BOB)

    run(scenario())
