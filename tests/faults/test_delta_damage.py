"""Power cuts and bit flips in ``_delta_log``: commits that were not durable are repeated, damage is refused by name.

``LOGSTORE_TORTURE=1`` tries every length, byte and bit; otherwise a regular sample of them.
"""

import contextlib
import random
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.delta import maintenance
from logstore.delta.log_entries import list_log, read_entry
from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitStateUnknownError, CorruptionError, StorageError
from logstore.filesystem import FileSystem
from logstore.limits import MIB
from logstore.log.topic import Topic
from logstore.table_files import open_table
from tests.support.captured_logs import captured_logs
from tests.support.examples import stride
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.running_broker import produce, quarantined, read_all, running_broker
from tests.support.table_paths import checkpoint_parts, checksum_path, path_of
from tests.support.topics import (
    create_topic,
    log_entry,
    offsets_in_table,
    rewrite_files,
    roll,
    roll_part,
    write_segment,
)
from tests.support.torture import TORTURE
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}
#: This keeps journal files, which are copied with their data directories, at a MiB.
SMALL: dict[str, Any] = {"journal_max_bytes": 32 * MIB}
VALUES: list[bytes | None] = [b"a", b"b", b"c", b"d", b"e", b"f"]


def every(positions: int, otherwise: int) -> Iterator[int]:
    """Yield the positions to damage: the first and the last, and a regular sample between."""
    return iter(sorted({*range(0, positions, 1 if TORTURE else otherwise), positions - 1}))


def flipped(raw: bytes, at: int, bit: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]


def newest(data: Path) -> Path:
    return max((data / "topics" / "t" / "_delta_log").glob("*.json"))


def in_table(data: Path) -> list[tuple[int, bytes | None]]:
    """Return the table's records as Polars reads them."""
    rows = pl.read_delta(str(data / "topics" / "t")).sort("offset")
    return list(zip(rows["offset"], rows["value"], strict=True))


def set_aside(data: Path) -> list[Path]:
    return sorted((data / "topics" / "t" / "_delta_log").glob("*.set-aside*"))


# ---- a power cut before the newest entry was durable ----------------------------------------------------------------


class Camera(FileSystem):
    """A file system that copies the data directory between a commit and its fsync, as a crash there leaves it."""

    def __init__(self, data: Path, image: Path) -> None:
        self._data, self._image, self.armed = data, image, False

    def reached(self, point: str) -> None:
        if point == "delta.committed" and self.armed:
            self.armed = False
            shutil.copytree(self._data, self._image)


async def roll_it(broker: Broker, topic: Topic) -> None:
    await broker.topics.tables.roll(INTERNAL, topic)


async def alter_it(broker: Broker, topic: Topic) -> None:
    await broker.topics.changes.alter_configs(INTERNAL, "t", {"retention.ms": "77"})


async def delete_from_it(broker: Broker, topic: Topic) -> None:
    await broker.topics.tables.delete_records(INTERNAL, topic, 0, 2)


async def retain_it(broker: Broker, topic: Topic) -> None:
    """Commit as a retention job does."""
    first = topic.table.snapshot().segments(0)[0]
    rewrite_files(topic.table, 0, [first.path], [], data_change=True, log_start=first.max_offset + 1)


async def extend_it(broker: Broker, topic: Topic) -> None:
    await broker.topics.changes.add_partitions(INTERNAL, "t", 3)


KINDS: dict[str, Callable[[Broker, Topic], Awaitable[None]]] = {
    "roll": roll_it,
    "alter-config": alter_it,
    "delete-records": delete_from_it,
    "retention": retain_it,
    "add-partitions": extend_it,
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return data directories by kind of the newest entry; their journals have the last two of six acknowledged
    records.
    """
    found = {}

    async def take(name: str) -> None:
        home = tmp_path_factory.mktemp(name)
        camera = Camera(home / "data", home / "image")
        async with running_broker(home / "data", filesystem=camera, **SMALL) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            for values in (VALUES[:2], VALUES[2:4]):
                await produce(broker, topic, values)
                await broker.topics.tables.roll(INTERNAL, topic)
            await produce(broker, topic, VALUES[4:])
            camera.armed = True
            await KINDS[name](broker, topic)
        found[name] = home / "image"

    for name in KINDS:
        run(take(name))
    return found


def check_all_is_there(data: Path) -> None:
    """Start on ``data``: every acknowledged record is at its offset, in the log and, once rolled, in the table."""

    async def scenario() -> None:
        async with running_broker(data, **SMALL) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert "retention.ms" not in topic.config_overrides
            assert len(topic.partitions) == 1
            assert await read_all(broker, topic) == list(enumerate(VALUES))
            await broker.topics.tables.roll(INTERNAL, topic)
            assert await read_all(broker, topic) == list(enumerate(VALUES))
        assert in_table(data) == list(enumerate(VALUES))

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_a_newest_entry_cut_at_any_byte_is_set_aside_and_nothing_acknowledged_is_lost(
    images: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    entry = newest(images[kind])
    whole = entry.read_bytes()
    lines = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    lengths = {*every(len(whole), len(whole) // 3), *(at + n for at in lines[:1] for n in (0, 1))}
    torn = [whole[:length] for length in sorted(lengths)]
    torn += [bytes(len(whole)), whole[:300] + bytes(len(whole) - 300), bytes(200) + whole[200:]]
    for n, content in enumerate(torn):
        data = tmp_path / str(n)
        shutil.copytree(images[kind], data)
        newest(data).write_bytes(content)
        with pytest.raises(CorruptionError, match=rf"{entry.name} is torn.*start the store"):
            TopicTable(open_table(data / "topics" / "t", FileSystem())).snapshot()
        assert not set_aside(data)
        with captured_logs() as logs:
            check_all_is_there(data)
        assert [(path.name, path.read_bytes()) for path in set_aside(data)] == [(entry.name + ".set-aside", content)]
        assert [log["file"] for log in logs if log["event"] == "delta.set_aside"] == [
            str(newest(data).with_name(entry.name))
        ]
        shutil.rmtree(data)


def test_a_whole_newest_entry_that_was_not_synced_counts(images: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(images["roll"], tmp_path / "data")
    check_all_is_there(tmp_path / "data")
    assert not set_aside(tmp_path / "data")


def test_the_files_of_a_torn_roll_are_committed_again_where_the_journal_is_freed(tmp_path: Path) -> None:
    """Check a disk that lied about an fsync: the journal remembers the sealed offset."""

    async def before() -> set[str]:
        async with running_broker(tmp_path, **SMALL) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await produce(broker, topic, VALUES)
            await broker.topics.tables.roll(INTERNAL, topic)
            return {segment.path for segment in topic.partition(0).segments}

    async def start_and_stop() -> set[str]:
        async with running_broker(tmp_path, **SMALL) as broker:
            return {segment.path for segment in broker.topics.served.topic(INTERNAL, "t").partition(0).segments}

    files = run(before())
    run(start_and_stop())
    newest(tmp_path).write_bytes(newest(tmp_path).read_bytes()[:-3])
    assert run(start_and_stop()) == files
    check_all_is_there(tmp_path)


def test_all_torn_entries_at_the_end_are_set_aside(tmp_path: Path) -> None:
    """Check two torn entries, as when a writer that does not sync commits on top of another's commit."""
    table = create_topic(tmp_path)
    parts = [roll(table, 0, base, base + 10) for base in (0, 10, 20)]
    for version in (2, 3):
        entry = log_entry(table, version)
        # Spark's checksum file beside such an entry would condemn the next entry with that name.
        for name in (f".{entry.name}.crc", f"{entry.stem}.crc", f".{entry.stem}.crc.crc"):
            entry.with_name(name).write_bytes(b"checksum of what was there")
        entry.write_bytes(entry.read_bytes()[:-30])
    log_entry(table, 4).with_suffix(".crc").write_bytes(b"of an entry whose name did not reach the disk")
    recovered = TopicTable.recover(open_table(path_of(table), FileSystem()))
    assert recovered.snapshot().partitions[0].sealed == 10
    assert not list((path_of(table) / "_delta_log").glob("*.crc"))
    for part in parts[1:]:
        recovered.commit_roll([part])
    assert offsets_in_table(recovered) == list(range(30))
    log_entry(table, 3).write_bytes(b"")
    TopicTable.recover(open_table(path_of(table), FileSystem()))
    names = sorted(path.name.lstrip("0") for path in (path_of(table) / "_delta_log").glob("*.set-aside*"))
    assert names == ["2.json.set-aside", "3.json.set-aside", "3.json.set-aside1"]


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_torn_entry_below_a_whole_one_is_refused(tmp_path: Path, torn: int) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, **SMALL) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            for value in VALUES[:3]:
                await produce(broker, topic, [value])
                await broker.topics.tables.roll(INTERNAL, topic)
        entry = log_entry(topic.table, torn)
        entry.write_bytes(entry.read_bytes()[:-1])
        assert re.search(rf"{entry.name} is torn.*restore it from a backup", await quarantined(tmp_path, **SMALL))
        assert not set_aside(tmp_path)

    run(scenario())


def test_the_first_entry_of_a_topic_is_never_set_aside(tmp_path: Path) -> None:
    table = create_topic(tmp_path)
    log_entry(table, 0).write_bytes(b"")
    with pytest.raises(CorruptionError, match=log_entry(table, 0).name):
        TopicTable.recover(open_table(path_of(table), FileSystem()))
    assert log_entry(table, 0).exists()


@pytest.mark.parametrize("name", ["{}.json#1", "{}.json.tmp", ".{}.json.0e1f.tmp", "_commit_0e1f.json.tmp"])
def test_leftovers_of_a_killed_writer_harm_nobody(images: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(images["roll"], tmp_path / "data")
    entry = newest(tmp_path / "data")
    for version in (int(entry.stem), int(entry.stem) + 1):
        entry.with_name(name.format(f"{version:020}")).write_bytes(entry.read_bytes()[:100])
    check_all_is_there(tmp_path / "data")


# ---- an fsync that fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["delta.sync_file", "delta.sync_directory"])
def test_records_acknowledged_after_a_failed_fsync_survive_a_power_cut(tmp_path: Path, failing: str) -> None:
    """Check that other pages bring the entry to the disk, because the pages of a failed fsync count as clean."""
    data = tmp_path / "data"
    data.mkdir()
    disk = FaultyFileSystem(data)

    async def before() -> None:
        async with running_broker(data, filesystem=disk, **SMALL) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await produce(broker, topic, VALUES)
            disk.fail(failing)
            with pytest.raises(CommitStateUnknownError, match="fsync failed"):
                await broker.topics.tables.roll(INTERNAL, topic)
            assert topic.partition(0).sealed_offset == 0
            await broker.topics.tables.roll(INTERNAL, topic)
            disk.fail(failing)
            with pytest.raises(CommitStateUnknownError):
                await broker.topics.changes.alter_configs(INTERNAL, "t", {"retention.ms": "77"})
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"retention.ms": "77"})
            disk.power_cut(random.Random(1), strict=True)

    async def after() -> None:
        async with running_broker(data, **SMALL) as broker:
            assert broker.topics.served.topic(INTERNAL, "t").config_overrides["retention.ms"] == "77"
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == list(enumerate(VALUES))

    with contextlib.suppress(OSError, StorageError):  # the dead disk reports an error
        run(before())
    run(after())
    assert not set_aside(data)
    assert in_table(data) == list(enumerate(VALUES))


# ---- flipped bits in entries ----------------------------------------------------------------------------------------


def facts(path: Path) -> tuple[Any, ...]:
    """Return all values that the store and a plain reader take from the log."""
    snapshot = TopicTable(open_table(path, FileSystem())).snapshot()
    table = DeltaTable(str(path))
    return (
        snapshot.version,
        snapshot.topic_id,
        snapshot.partitions,
        snapshot.properties,
        snapshot.table.protocol,
        snapshot.transactions,
        snapshot.log.removals(),
        [snapshot.segments(partition) for partition in snapshot.partitions],
        table.schema().to_json(),
        table.metadata().partition_columns,
        sorted(table.file_uris()),
    )


ENTRIES = {
    "create": 0,
    "roll": 1,
    "roll of two partitions": 2,
    "alter-config": 3,
    "add-partitions": 4,
    "retention": 5,
    "advance-log-start": 6,
    "key-compaction": 7,
    "recommit": 8,
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TopicTable:
    """Create a table with an entry of every kind; tests restore what they damage."""
    table = create_topic(tmp_path_factory.mktemp("flips"), partitions=2)
    roll(table, 0, 0, 10, epoch=1)
    table.commit_roll([roll_part(table, 0, 10, 20, 1), roll_part(table, 1, 0, 10, 1)])
    table.alter_config({"retention.ms": "5"})
    table.add_partitions(3)
    first, second = table.snapshot().segments(0)
    rewrite_files(table, 0, [first.path], [], data_change=True, log_start=10, operation="retention")
    table.advance_log_start({0: 12}, {0: 1})
    joined = write_segment(table, 0, 12, 20, 1)
    rewrite_files(table, 0, [second.path], [joined], data_change=False, cleaned=20, operation="key-compaction")
    table.recommit([write_segment(table, 0, 10, 12, 1)])
    assert read_entry(table.files, 8).added
    return table


def outcome(path: Path, damaged: Path) -> tuple[Any, ...] | None:
    """Return the current facts of the table; None if it is refused with the name of the damaged file."""
    try:
        return facts(path)
    except CorruptionError as error:
        if damaged.name not in str(error):
            raise
        return None


@pytest.mark.parametrize("kind", ENTRIES)
def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(table: TopicTable, kind: str) -> None:
    entry = log_entry(table, ENTRIES[kind])
    whole, said, expected = entry.read_bytes(), read_entry(table.files, ENTRIES[kind]), facts(path_of(table))
    refusals, harmless = [], []
    places = range(0, len(whole), stride(1))
    try:
        for at in places:
            for bit in range(8) if TORTURE else [at % 8]:
                entry.write_bytes(flipped(whole, at, bit))
                try:
                    now = read_entry(table.files, ENTRIES[kind])
                except CorruptionError as error:
                    refusals.append(str(error))
                    continue
                assert (now.transactions, now.added, now.removed) == (said.transactions, said.added, said.removed)
                harmless.append((at, bit))
        for n in every(len(harmless), len(harmless) // 6 + 1):
            entry.write_bytes(flipped(whole, *harmless[n]))
            assert outcome(path_of(table), entry) == expected, harmless[n]
    finally:
        entry.write_bytes(whole)
    assert len(refusals) > len(places) // 2
    torn = [refusal for refusal in refusals if f"{entry.name} is torn" in refusal]
    assert all(f"{entry.name} is damaged" in refusal for refusal in refusals if refusal not in torn)
    # A flip of a quote or a bracket of the last line looks like a cut.
    assert len(torn) < len(refusals) // 10
    assert facts(path_of(table)) == expected


#: Flips of one bit after which an entry still parses, and would be believed.
TREACHEROUS = [
    (0, rb'"id":"(.)', "table id"),
    (0, rb'offse(t)\\",\\"type\\":\\"long', "column name"),
    (0, rb"lo(n)g", "column type"),
    (0, rb'"minReaderVersion":(1)', "protocol"),
    (0, rb'logstore.partitions":"(2)', "partitions"),
    (1, rb'sealed","version":1(0)', "sealed"),
    (1, rb"logstore/(0)/sealed", "partition of a fact"),
    (1, rb'epoch","version":(1)', "epoch"),
    (1, rb'"add":{"path":"partition=0/.{60}(.)', "path"),
    (1, rb'"partitionValues":{"partition":"(0)', "partition of a file"),
    (1, rb'"size":(\d)', "size"),
    (1, rb'numRecords\\":(1)', "number of records"),
    (1, rb'maxValues\\":{\\"offset\\":(9)', "last offset"),
    (1, rb"minValues.*?20(2)3", "first timestamp"),
    (3, rb'"configuration":.*retention.ms":"(5)', "configuration"),
    (3, rb'"configuration":.*(r)etention.ms":"5', "configuration key"),
    (5, rb'"remove":{"path":"partition=0/.{60}(.)', "removed path"),
    (5, rb'"deletionTimestamp":\d(\d)', "deletion time"),
    (6, rb'start","version":1(2)', "log start"),
    (7, rb'"dataChange":(f)alse', "data change"),
    (7, rb'cleaned","version":(2)0', "cleaned"),
    (7, rb'"userMetadata":.*added_records\D+(\d)', "numbers of a job"),
    (8, rb'commit_id":"(.)', "commit id"),
    (2, rb'digest":"(\d)', "number of actions in the digest"),
]


@pytest.mark.parametrize(("version", "place", "what"), TREACHEROUS, ids=[what for _, _, what in TREACHEROUS])
def test_a_flip_that_would_be_believed_quarantines_the_topic(
    table: TopicTable, tmp_path: Path, version: int, place: bytes, what: str
) -> None:
    shutil.copytree(path_of(table), tmp_path / "topics" / "t")
    entry = tmp_path / "topics" / "t" / "_delta_log" / log_entry(table, version).name
    whole = entry.read_bytes()
    in_info = what in {"commit id", "numbers of a job", "number of actions in the digest"}
    found = re.compile(place).search(whole, 0 if in_info else whole.index(b"\n"))
    assert found, whole
    entry.write_bytes(flipped(whole, found.start(1), 0))
    assert f"{entry.name} is damaged" in run(quarantined(tmp_path, **SMALL))
    assert not set_aside(tmp_path)


def test_an_entry_that_is_missing_quarantines_the_topic(table: TopicTable, tmp_path: Path) -> None:
    shutil.copytree(path_of(table), tmp_path / "topics" / "t")
    gone = tmp_path / "topics" / "t" / "_delta_log" / log_entry(table, 3).name
    gone.unlink()
    assert gone.name in run(quarantined(tmp_path, **SMALL))


@pytest.mark.parametrize("version", [3, 8])
def test_an_entry_with_the_content_of_another_quarantines_the_topic(
    table: TopicTable, tmp_path: Path, version: int
) -> None:
    """Replace an entry by another one, like a block from the wrong place of the disk, or a file restored under a wrong
    name.
    """
    shutil.copytree(path_of(table), tmp_path / "topics" / "t")
    entry = tmp_path / "topics" / "t" / "_delta_log" / log_entry(table, version).name
    entry.write_bytes(log_entry(table, version - 1).read_bytes())
    assert f"{entry.name} is damaged" in run(quarantined(tmp_path, **SMALL))


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "DELTA_CHECKPOINT_INTERVAL", 10)
        table = create_topic(tmp_path_factory.mktemp("checkpoints"))
        for base in range(0, 210, 10):
            roll(table, 0, base, base + 10, epoch=1)
            table.maintain()
    assert sorted(list_log(table.files).checkpoints) == [10, 20]
    return path_of(table)


@pytest.fixture
def checkpointed(two_checkpoints: Path, tmp_path: Path) -> TopicTable:
    """Return a table with two checkpoints of the store, at versions 10 and 20, and an entry above them."""
    shutil.copytree(two_checkpoints, tmp_path / "events")
    return TopicTable(open_table(tmp_path / "events", FileSystem()))


def uncover(table: TopicTable) -> None:
    """Remove what clean-up removes after a day: entries before the newest checkpoint."""
    for version in range(20):
        log_entry(table, version).unlink()
    for path in checkpoint_parts(path_of(table), 10):
        path.unlink()
    checksum_path(path_of(table), 10).unlink()


def recover(table: TopicTable) -> TopicTable:
    return TopicTable.recover(open_table(path_of(table), FileSystem()))


@pytest.mark.parametrize("covered", [True, False])
def test_a_damaged_checkpoint_is_set_aside_where_entries_cover_it_and_refused_by_name_where_not(
    checkpointed: TopicTable, covered: bool
) -> None:
    log = path_of(checkpointed) / "_delta_log"
    if not covered:
        uncover(checkpointed)
    expected = facts(path_of(checkpointed))
    kept = {path.name: path.read_bytes() for path in log.iterdir()}
    (part,) = checkpoint_parts(path_of(checkpointed), 20)
    whole = kept[part.name]
    damages = [flipped(whole, at, at % 8) for at in every(len(whole), len(whole) // 7)]
    damages += [b"", whole[:100], whole[:-1], bytes(len(whole)), whole[:4096] + bytes(512) + whole[4608:]]
    for damaged in damages:
        part.write_bytes(damaged)
        assert outcome(path_of(checkpointed), part) is None
        if covered:
            assert facts(path_of(recover(checkpointed))) == expected
            assert part.with_name(part.name + ".set-aside").read_bytes() == damaged
            assert not checksum_path(path_of(checkpointed), 20).exists()
            for path in log.iterdir():
                path.unlink()
            for name, content in kept.items():
                (log / name).write_bytes(content)
        else:
            with pytest.raises(CorruptionError, match=part.name):
                recover(checkpointed)
            part.write_bytes(whole)
    assert facts(path_of(recover(checkpointed))) == expected
    assert not list(log.glob("*.set-aside"))


def test_the_next_checkpoint_takes_the_place_of_one_set_aside(
    checkpointed: TopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "DELTA_CHECKPOINT_INTERVAL", 10)
    (part,) = checkpoint_parts(path_of(checkpointed), 20)
    part.write_bytes(part.read_bytes()[:-1])
    table = recover(checkpointed)
    table.maintain()
    assert sorted(list_log(table.files).checkpoints) == [10, 21]
    uncover_to_21 = [log_entry(table, version) for version in range(21)]
    expected = facts(path_of(table))
    for entry in uncover_to_21:
        entry.unlink()
    assert facts(path_of(recover(table))) == expected


@pytest.mark.parametrize("older", [True, False])
def test_a_healthy_checkpoint_that_nobody_vouches_for_stays_and_is_vouched_for(
    checkpointed: TopicTable, older: bool
) -> None:
    """Write a checkpoint of Spark in another encoding, on top of a checkpoint or of the first entry."""
    (part,) = checkpoint_parts(path_of(checkpointed), 20)
    pq.write_table(pq.read_table(part), part, compression="gzip")
    for version in (20,) if older else (10, 20):
        checksum_path(path_of(checkpointed), version).unlink()
    expected = facts(path_of(checkpointed))
    assert facts(path_of(recover(checkpointed))) == expected
    assert sorted(list_log(checkpointed.files).checkpoints) == [10, 20]
    assert all(checksum_path(path_of(checkpointed), version).exists() for version in (10, 20))
    assert not list((path_of(checkpointed) / "_delta_log").glob("*.set-aside"))
    with captured_logs() as logs:
        recover(checkpointed)
    assert not [log for log in logs if log["event"] == "delta.checkpoint_vouched"]
    uncover(checkpointed)
    assert facts(path_of(recover(checkpointed))) == expected


def without(column: str) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.filter(rows[column].is_null())


def with_other_stats(rows: pa.Table) -> pa.Table:
    values = rows.to_pylist(maps_as_pydicts="strict")
    for value in values:
        if value["add"]:
            value["add"]["stats"] = value["add"]["stats"].replace('"numRecords":10', '"numRecords":11')
    return pa.Table.from_pylist(values, rows.schema)


DIFFERENT: dict[str, Callable[[pa.Table], pa.Table]] = {
    "transactions": without("txn"),
    "files": without("add"),
    "metadata": without("metaData"),
    "protocol": without("protocol"),
    "stats": with_other_stats,
}


@pytest.mark.parametrize("what", [*DIFFERENT, "unreadable"])
def test_a_checkpoint_that_nobody_vouches_for_is_set_aside_if_it_says_something_else(
    checkpointed: TopicTable, what: str
) -> None:
    """Imitate a power cut between checkpoint and checksums: parts of it may be zeros that read as data."""
    checksum_path(path_of(checkpointed), 20).unlink()
    expected = facts(path_of(checkpointed))
    (part,) = checkpoint_parts(path_of(checkpointed), 20)
    if what == "unreadable":
        part.write_bytes(part.read_bytes()[:-9])
    else:
        pq.write_table(DIFFERENT[what](pq.read_table(part)), part)
    assert facts(path_of(recover(checkpointed))) == expected
    assert sorted(list_log(checkpointed.files).checkpoints) == [10]
    assert part.with_name(part.name + ".set-aside").exists()


class CleaningUp(FileSystem):
    """A file system on which another writer removes what a checkpoint covers, right after it was set aside."""

    def __init__(self, entry: Path) -> None:
        self._entry = entry

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._entry.unlink(missing_ok=True)


def test_a_checkpoint_is_put_back_if_the_entries_that_cover_it_were_cleaned_up_meanwhile(
    checkpointed: TopicTable,
) -> None:
    checksum_path(path_of(checkpointed), 20).write_bytes(b"{}")
    (part,) = checkpoint_parts(path_of(checkpointed), 20)
    with pytest.raises(CorruptionError, match=part.name):
        TopicTable.recover(open_table(path_of(checkpointed), CleaningUp(log_entry(checkpointed, 15))))
    assert part.exists()
    assert checksum_path(path_of(checkpointed), 20).exists()


def test_a_checkpoint_of_another_writer_stands_where_nothing_else_does(checkpointed: TopicTable) -> None:
    uncover(checkpointed)
    checksum_path(path_of(checkpointed), 20).unlink()
    expected = facts(path_of(checkpointed))
    assert facts(path_of(recover(checkpointed))) == expected


@pytest.mark.parametrize("covered", [True, False])
def test_a_damaged_checksum_file_is_never_taken_for_none(checkpointed: TopicTable, covered: bool) -> None:
    if not covered:
        uncover(checkpointed)
    expected = facts(path_of(checkpointed))
    path = checksum_path(path_of(checkpointed), 20)
    whole = path.read_bytes()
    (part,) = checkpoint_parts(path_of(checkpointed), 20)
    for content in [*(flipped(whole, at, at % 8) for at in every(len(whole), 7)), b"", whole[:-1], bytes(len(whole))]:
        path.write_bytes(content)
        assert outcome(path_of(checkpointed), part) is None
        if covered:
            assert facts(path_of(recover(checkpointed))) == expected
            part.with_name(part.name + ".set-aside").rename(part)
        else:
            with pytest.raises(CorruptionError, match=part.name):
                recover(checkpointed)


def test_a_damaged_hint_is_only_a_hint(checkpointed: TopicTable) -> None:
    hint = path_of(checkpointed) / "_delta_log" / "_last_checkpoint"
    whole = hint.read_bytes()
    expected = facts(path_of(checkpointed))
    damages = [flipped(whole, at, bit) for at in every(len(whole), 5) for bit in (range(8) if TORTURE else [at % 8])]
    digits = re.search(rb'"version":(\d+)', whole)
    assert digits
    damages += [flipped(whole, at, bit) for at in range(*digits.span(1)) for bit in range(3)]
    damages += [b"", b"junk", b"{}", b"null", whole[:-5], bytes(len(whole)), b'{"version":20,"size":1,"parts":3}']
    damages += [b'{"version":%d,"size":1}' % version for version in (-1, 0, 7, 10, 21, 99, 2**70)]
    for n, content in enumerate(damages):
        hint.write_bytes(content)
        if n % 2 or TORTURE:
            recover(checkpointed)
        assert facts(path_of(checkpointed)) == expected, content
    hint.write_bytes(b'{"version":99,"size":1}')
    with captured_logs() as logs:
        recover(checkpointed)
    assert [log["file"] for log in logs if log["event"] == "delta.hint_removed"] == [str(hint)]
    assert not hint.exists()


@pytest.mark.parametrize("call", ["unlink", "rename", "sync_directory"])
def test_a_start_that_is_killed_while_it_repairs_leaves_the_rest_to_the_next(
    checkpointed: TopicTable, tmp_path: Path, call: str
) -> None:
    roll(checkpointed, 0, 210, 220, epoch=1)
    expected = facts(path_of(checkpointed))[1:-1]
    roll(checkpointed, 0, 220, 230, epoch=1)
    entry = log_entry(checkpointed, 23)
    entry.write_bytes(entry.read_bytes()[:-1])
    entry.with_name(f".{entry.name}.crc").write_bytes(b"of what was there")
    checksum_path(path_of(checkpointed), 20).write_bytes(b"")
    for nth in range(1, 99):
        killed = tmp_path / str(nth)
        shutil.copytree(path_of(checkpointed), killed)
        disk = FaultyFileSystem()
        disk.crash_at(call, nth)
        with contextlib.suppress(StorageError, CommitStateUnknownError):
            TopicTable.recover(open_table(killed, disk))
        assert facts(path_of(TopicTable.recover(open_table(killed, FileSystem()))))[1:-1] == expected
        assert len(list((killed / "_delta_log").glob("*.set-aside"))) == 2
        assert not list((killed / "_delta_log").glob(".*.crc"))
        if not disk.crashed:
            break
    assert nth > 1
