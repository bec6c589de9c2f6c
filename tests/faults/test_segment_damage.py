"""Flipped bits and worse damage in a segment: refused with the file's name, never served, never spread.

``LOGSTORE_TORTURE=1`` flips every bit; otherwise one bit, by a seed, in a regular sample of the bytes.
"""

import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from compaction_jobs.segment_tasks import scan_keys
from ingest_api.errors import http_error
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.errors import CommitRefusedError, CorruptionError
from logstore.log.topic import Topic
from logstore.records.log_batches import WireBatch, to_log_batch
from logstore.records.offset_record import OFFSETS_TOPIC, OffsetCommit, OffsetKey, encode_offset_records
from logstore.segments import checksums
from logstore.segments.layout import PLAIN_LAYOUT, new_layout
from logstore.segments.merge import Source, WriteTask, write_segment
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import open_table
from tests.support.examples import stride
from tests.support.running_broker import produce, quarantined, read_all, running_broker
from tests.support.table_paths import (
    path_of,
    read_footer,
    read_row_group,
    read_row_group_file,
    row_group_files,
    row_groups,
    segment_from_file,
    verify_segment,
)
from tests.support.topics import TIMESTAMP_MS, log_batch, overwrite_entry
from tests.support.torture import TORTURE
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}
BLOCK = 512


# ---- the reader -----------------------------------------------------------------------------------------------------


class Damaged:
    """A segment of two row groups of a kind, its bytes as they were written, and its records."""

    def __init__(self, table: Path, kind: str) -> None:
        layout = new_layout(OFFSETS_TOPIC if kind == "group offsets" else "t")
        codec = "uncompressed" if kind == "uncompressed" else "zstd"
        table.mkdir(exist_ok=True)
        with SegmentWriter(open_table(table), 0, 5, 19, 3, codec, layout=layout) as writer:
            for base in (5, 12):
                writer.write(_group_offsets(base) if kind == "group offsets" else log_batch(range(base, base + 7)))
                writer._flush()  # this ends a row group
            self.segment = writer.finish(leader_epochs=((1, 0), (3, 12)))
        self.table = table
        self.path = table / self.segment.path
        self.good = self.path.read_bytes()
        self.count = 0
        self.kind = kind
        self.rows = self.read()
        assert len(self.rows) == 2
        self.files = self.read_row_group_files()
        assert self.read_keys() == [batch.select(["offset", "key"]) for batch in self.rows]
        assert segment_from_file(table, self.segment.path) == self.segment

    def read(self) -> list[pa.RecordBatch]:
        return [read_row_group(self.path, group.index) for group in row_groups(self.path)]

    def read_keys(self) -> list[pa.RecordBatch]:
        return [read_row_group(self.path, group.index, ["offset", "key"]) for group in row_groups(self.path)]

    def read_row_group_files(self) -> list[bytes]:
        return [bytes(read_row_group_file(self.path, file)) for file in row_group_files(self.path)]

    def refuses(self, content: bytes, what: object) -> None:
        """Require that reading all of it is refused, and that reading less is refused or gives the same as before."""
        if content == self.good:
            return
        self.path.write_bytes(content)
        assert self._refused(lambda: verify_segment(self.path)), f"{what} was not noticed"
        # Columns beside the log's own are not read.
        assert self._refused(self.read) or (self.kind == "group offsets" and self.read() == self.rows), what
        self.count += 1
        if self.count % 7 and not TORTURE:
            return
        for read, expected in (
            (lambda: read_footer(self.path).leader_epochs, ((1, 0), (3, 12))),
            (lambda: segment_from_file(self.table, self.segment.path), self.segment),
            (self.read_keys, [batch.select(["offset", "key"]) for batch in self.rows]),
            (self.read_row_group_files, self.files),
        ):
            assert self._refused(read) or read() == expected, what

    def _refused(self, read: Callable[[], object]) -> bool:
        try:
            read()
        except CorruptionError as error:
            return str(self.path) in str(error)
        return False


def _group_offsets(base: int) -> pa.RecordBatch:
    commits = [
        (OffsetKey(f"g{n}", "t", n), OffsetCommit(n, 1, "é", -1, str(UUID(int=n)), 5) if n % 3 else None)
        for n in range(7)
    ]
    return to_log_batch([WireBatch(encode_offset_records(commits), base, TIMESTAMP_MS, False)])


def flips(good: bytes, step: int) -> Iterator[tuple[int, int]]:
    if TORTURE:
        yield from ((at, bit) for at in range(len(good)) for bit in range(8))
    else:
        chosen = random.Random(5)
        yield from ((at, chosen.randrange(8)) for at in range(0, len(good), stride(step)))


@pytest.mark.parametrize(("kind", "step"), [("zstd", 1), ("uncompressed", 7), ("group offsets", 11)])
def test_a_flipped_bit_is_refused_wherever_it_is(tmp_path: Path, kind: str, step: int) -> None:
    damaged = Damaged(tmp_path, kind)
    for at, bit in flips(damaged.good, step):
        content = bytearray(damaged.good)
        content[at] ^= 1 << bit
        damaged.refuses(bytes(content), f"bit {bit} of byte {at}")


def test_a_file_cut_at_any_length_is_refused(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, "zstd")
    for length in range(0, len(damaged.good), stride(5)):
        damaged.refuses(damaged.good[:length], f"cut to {length} bytes")
    damaged.refuses(damaged.good + b"\0", "a byte more")
    damaged.refuses(damaged.good + damaged.good[-BLOCK:], "an end twice")


def test_a_zeroed_end_is_refused(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, "zstd")
    for length in range(1, len(damaged.good) + 1, 1 if TORTURE else 40):
        damaged.refuses(damaged.good[:-length] + bytes(length), f"the last {length} bytes are zero")


def test_blocks_that_are_lost_or_swapped_are_refused(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, "uncompressed")
    good = damaged.good
    places = range(0, len(good) - BLOCK, BLOCK)
    for first in places:
        for second in places:
            content = bytearray(good)
            content[first : first + BLOCK] = good[second : second + BLOCK]
            damaged.refuses(bytes(content), f"block {first} is that of {second}")
            content[second : second + BLOCK] = good[first : first + BLOCK]
            damaged.refuses(bytes(content), f"blocks {first} and {second} are swapped")
    for at in range(0, len(good) - BLOCK, stride(61)):
        damaged.refuses(good[:at] + bytes(BLOCK) + good[at + BLOCK :], f"{BLOCK} bytes from {at} are zero")


def test_the_bytes_of_an_older_file_in_a_newer_one_are_refused(tmp_path: Path) -> None:
    """Insert stale blocks, which were written long ago at the same place, and are whole and well-formed."""
    damaged, stale = Damaged(tmp_path / "a", "uncompressed"), Damaged(tmp_path / "b", "group offsets")
    for at in range(0, len(damaged.good), BLOCK):
        content = damaged.good[:at] + stale.good[at : at + BLOCK] + damaged.good[at + BLOCK :]
        damaged.refuses(content[: len(damaged.good)], f"a stale block at {at}")


def test_the_checksums_cannot_be_lost_unnoticed(tmp_path: Path) -> None:
    """Check that none of the store's files can look like one without checksums, which is another writer's."""
    damaged = Damaged(tmp_path, "zstd")
    key = checksums.KEY.encode()
    assert damaged.good.count(key) == 1
    at = damaged.good.index(key)
    for name in (b"logstore.crc32x", b"\0" * len(key), b"logstore.format"):
        damaged.refuses(damaged.good[:at] + name + damaged.good[at + len(key) :], f"the key is {name!r}")
    damaged.refuses(damaged.good.replace(b"logstore.", b"logst0re."), "all our keys are others")
    # A footer whose chain cannot be found is not parsed, because it may be one that ends the process.
    damaged.path.write_bytes(damaged.good.replace(key + b"\x18", key + b"\x19"))
    with pytest.raises(CorruptionError, match="its checksums are not as they were written"):
        damaged.read()


def test_another_segment_under_this_name_is_refused(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, "zstd")
    for partition, base, epoch in ((1, 5, 3), (0, 4, 3), (0, 5, 2)):
        with SegmentWriter(open_table(tmp_path), partition, base, 19, epoch) as writer:
            writer.write(log_batch(range(5, 19)))
            other = writer.finish()
        damaged.refuses((tmp_path / other.path).read_bytes(), f"segment {other.path}")


def test_the_message_says_where_and_what_to_do(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, "zstd")
    damage(damaged.path)
    with pytest.raises(CorruptionError) as raised:
        damaged.read()
    where = f"{damaged.path}, row group 0 (offsets 5 to 11)"
    assert f"{where} is damaged: the checksum of column offset does not match" in str(raised.value)
    assert "restore the file from a backup" in str(raised.value)


# ---- the store ------------------------------------------------------------------------------------------------------


async def two_segments_and_a_tail(broker: Broker) -> Topic:
    """Write partition 0 with offsets 0 and 1, 2 and 3 in segments, 4 in the journal, and partition 1 with offset 0."""
    topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2, configs=NEVER)
    assert topic
    await produce(broker, topic, [b"other"], partition=1)
    for values in ([b"a", b"b"], [b"c", b"d"]):
        await produce(broker, topic, values)
        await broker.topics.tables.roll(INTERNAL, topic)
    await produce(broker, topic, [b"e"])
    return topic


def as_after_a_restart(broker: Broker) -> None:
    broker.fetch._reader._slices._begun.clear()
    broker.fetch._reader._slices._indices.clear()


async def is_refused(read: Callable[[], Awaitable[object]], path: Path) -> str:
    with pytest.raises(CorruptionError) as raised:
        await read()
    assert str(path) in str(raised.value)
    assert (http_error(raised.value).status, http_error(raised.value).error_code) == (500, 50002)
    return str(raised.value)


def test_a_damaged_row_group_is_not_served_and_all_else_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_segments_and_a_tail(broker)
            path = path_of(topic.table) / topic.partition(0).segments.files[0].path
            good = path.read_bytes()
            size = len(good)

            async def fetch(offset: int) -> list[int]:
                result = await broker.fetch.partition(
                    INTERNAL, topic, 0, offset, max_bytes=1, min_bytes=1, max_wait_ms=0
                )
                offsets: list[int] = result.records["offset"].to_pylist()
                return offsets

            found = await broker.fetch.offset_for_timestamp(INTERNAL, topic, 0, 1)
            for at in [0, *range(4, size, size // 12), size - 9, size - 5, size - 1]:
                content = bytearray(good)
                content[at] ^= 0x10
                path.write_bytes(content)
                as_after_a_restart(broker)
                for offset in (0, 1):
                    await is_refused(lambda o=offset: fetch(o), path)
                # It may miss damage in a column chunk that it does not read.
                with contextlib.suppress(CorruptionError):
                    assert await broker.fetch.offset_for_timestamp(INTERNAL, topic, 0, 1) == found
                assert [await fetch(offset) for offset in (2, 3, 4)] == [[2], [3], [4]]
                assert await read_all(broker, topic, 1) == [(0, b"other")]
            path.write_bytes(good)
            assert await read_all(broker, topic) == list(enumerate([b"a", b"b", b"c", b"d", b"e"]))

    run(scenario())


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_segments_and_a_tail(broker)
            path = path_of(topic.table) / topic.partition(0).segments.files[0].path
            path.unlink()
            await is_refused(
                lambda: broker.fetch.partition(INTERNAL, topic, 0, 0, max_bytes=1, min_bytes=1, max_wait_ms=0), path
            )
            await is_refused(lambda: broker.fetch.offset_for_timestamp(INTERNAL, topic, 0, 1), path)
            assert await read_all(broker, topic, 1) == [(0, b"other")]

    run(scenario())


def test_a_rival_of_the_same_range_is_not_what_the_delta_log_names(tmp_path: Path) -> None:
    """Write a rival that is a whole file with a correct footer; only the add action shows that it is another."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await two_segments_and_a_tail(broker)
            path = path_of(topic.table) / topic.partition(0).segments.files[0].path
            footer = read_footer(path)
            with SegmentWriter(open_table(topic.table.files.uri), 0, 0, 2, footer.leader_epoch) as writer:
                writer.write(log_batch([0]))
                rival = writer.finish()
            (path_of(topic.table) / rival.path).rename(path)
            said = await is_refused(
                lambda: broker.fetch.partition(INTERNAL, topic, 0, 0, max_bytes=1, min_bytes=1, max_wait_ms=0), path
            )
            assert "holds 1 records of offsets 0 to 0, the Delta log says 2 of 0 to 1" in said

    run(scenario())


# ---- rule R7 --------------------------------------------------------------------------------------------------------


def damage(path: Path) -> None:
    """Flip a bit in the first column chunk, so that the file's end stays as it was."""
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_file_is_not_committed_again(tmp_path: Path, which: int) -> None:
    """Overwrite the last roll, or one before it, by a foreign commit: the leader and the next start refuse the file."""
    versions, paths = [], []

    async def before() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            for value in (b"a", b"b"):
                await produce(broker, topic, [value])
                versions.append((await broker.topics.tables.roll(INTERNAL, topic)).version)

    async def leader() -> None:
        # With a new journal the files are the only place of the records.
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            paths.extend(path_of(topic.table) / s.path for s in topic.partition(0).segments)
            overwrite_entry(topic.table, versions[which])
            damage(paths[which])
            await is_refused(lambda: broker._roller.refresh(topic), paths[which])

    async def start() -> None:
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "t")) == [(0, b"a"), (1, b"b")]

    run(before())
    run(leader())
    assert paths[which].name in run(quarantined(tmp_path))
    damage(paths[which])  # flipped twice, the bit is whole again
    run(start())


def test_a_damaged_segment_that_could_not_be_committed_is_written_again(tmp_path: Path) -> None:
    """Write the segment again from the journal, which still has all of its records."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await produce(broker, topic, [b"a", b"b"])
            forbidden = "delta.setTransactionRetentionDuration"
            from deltalake import DeltaTable

            DeltaTable(path_of(topic.table)).alter.set_table_properties(
                {forbidden: "interval 1 days"}, raise_if_not_exists=False
            )
            with pytest.raises(CommitRefusedError, match=forbidden):
                await broker.topics.tables.roll(INTERNAL, topic)
            (left_over,) = path_of(topic.table).glob("partition=0/*.parquet")
            damage(left_over)
            # delta-rs cannot remove a property, so the commit that set it is removed.
            entry = max((path_of(topic.table) / "_delta_log").glob("*.json"))
            assert forbidden in entry.read_text()
            entry.unlink()
            await broker.topics.tables.roll(INTERNAL, topic)
            assert left_over.name not in topic.partition(0).segments.files[0].path
            as_after_a_restart(broker)
            assert await read_all(broker, topic) == [(0, b"a"), (1, b"b")]

    run(scenario())


# ---- jobs -----------------------------------------------------------------------------------------------------------


def source(segment: Segment) -> Source:
    return Source(0, segment.path, segment.num_records, 0)


def one(number: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int64())})])


def test_a_job_stops_at_a_damaged_file(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, "zstd")
    segment, good = damaged.segment, damaged.good
    task = WriteTask(
        "t", str(tmp_path), 0, (source(segment),), 5, 19, 0, "zstd", "key-compaction", 0, layout=PLAIN_LAYOUT
    )
    scan = scan_keys(str(tmp_path), [source(segment)], {0: 0})
    keys = [key for batch in scan(one(0)) for key in batch.column("key").to_pylist()]
    chosen = random.Random(7)
    for at in range(0, len(good), 1 if TORTURE else 97):
        content = bytearray(good)
        content[at] ^= 1 << chosen.randrange(8)
        damaged.path.write_bytes(content)
        with pytest.raises(CorruptionError, match=damaged.path.name):
            write_segment(0, task, None)
        with contextlib.suppress(CorruptionError):  # the damage may be in the file's end or in the two columns
            assert [key for batch in scan(one(0)) for key in batch.column("key").to_pylist()] == keys
        assert list(tmp_path.glob("partition=0/*.parquet")) == [damaged.path], "nothing is left of an attempt"
