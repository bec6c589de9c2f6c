"""History read from pages has the records, epochs and timestamp types of history that Arrow decodes."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptionError
from logstore.filesystem import Buffer
from logstore.kafka_batches.header import BatchHeader
from logstore.log import paged_history, slice_reader
from logstore.log.kafka_records import Epochs
from logstore.log.slice_reader import SliceReader
from logstore.log.slices import Slice, Wanted
from logstore.protocol.record_batch import encode_batches, read_records
from logstore.segments import reader
from logstore.segments.deletion_vectors import DeletionVector
from logstore.segments.foreign_names import masked_name
from logstore.segments.offset_ranges import OffsetRanges
from logstore.segments.parquet_file import ParquetFile
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support import deletion_vectors as vectors
from tests.support.examples import examples
from tests.support.kafka_batches import kafka_rows, log_batch
from tests.support.kafka_reading import read_batches
from tests.support.records import Row, wire_rows

pytestmark = pytest.mark.skipif(reader.PAGE_CODEC is None, reason="there is no C compiler")

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
Cut = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class History:
    """A segment of [0, ``end``) with two row groups; ``name`` is masked if rows of it are deleted."""

    table: Path
    name: str
    end: int
    times: OffsetRanges = ()

    def segment(self) -> Any:
        groups = reader.row_groups(open_table(self.table), self.name)
        count = sum(group.num_rows for group in groups)
        bounds = (groups[0].first_offset, groups[-1].last_offset) if groups else (-1, -1)
        return SimpleNamespace(path=self.name, num_records=count, min_offset=bounds[0], max_offset=bounds[1])

    def slices(self, start: int, end: int, sizes: Sequence[int], epochs: Epochs) -> Iterator[Slice[Buffer]]:
        files, segment, slices = open_table(self.table), self.segment(), SliceReader(mock.Mock())
        at = start
        for number in range(10_000):
            if at >= end:
                return
            wanted = Wanted(at, end, sizes[number % len(sizes)], may_be_empty=False, log_start=0)
            found = slices.read_segment_batches(files, segment, self.end, wanted, epochs)
            assert at < found.next_offset <= end
            assert found.num_bytes == sum(map(len, found.batches))
            at = found.next_offset
            yield found
        raise AssertionError("no end")


def write(
    table: Path,
    rows: Sequence[Row],
    offsets: Sequence[int],
    codec: str,
    *,
    page_bytes: int = 1 << 20,
    gone: Sequence[int] = (),
    times: OffsetRanges = (),
) -> History:
    small = functools.partial(pq.ParquetWriter, data_page_size=page_bytes, write_batch_size=3)
    end = offsets[-1] + 5
    with (
        mock.patch.object(pq, "ParquetWriter", small),
        SegmentWriter(open_table(table), 0, 0, end, 0, codec) as writer,
    ):
        half = max(1, len(rows) // 2)
        for part in (slice(0, half), slice(half, None)):
            if rows[part]:
                writer.write(log_batch(rows[part], offsets[part]))
                writer._flush()
        name = writer.finish(log_append_times=times).path
    if gone:
        told = vectors.stored_vector(table, gone, "i")
        vector = DeletionVector(*(told[key] for key in ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality")))
        name = masked_name(name, vector)
    return History(table, name, end, times)


def records(slices: Sequence[Slice[Buffer]]) -> list[tuple[int, int, bool, Row]]:
    """Return offset, leader epoch, whether the timestamp is an append time, and the record."""
    found = []
    for batch in read_batches([batch for one in slices for batch in one.batches]):
        header: BatchHeader = batch.header
        assert header.record_count == len(batch.rows) > 0
        assert header.max_timestamp == max(row.timestamp or 0 for row in batch.rows.values())
        assert header.base_offset == min(batch.rows)
        assert header.last_offset >= max(batch.rows)
        found += [(at, header.leader_epoch, header.is_log_append_time, row) for at, row in batch.rows.items()]
    assert sum(one.count for one in slices) == len(found)
    return found


def both_ways(history: History, start: int, end: int, sizes: Sequence[int], epochs: Epochs) -> list[Slice[Buffer]]:
    """Return what is read from pages, compared with what is read through Arrow."""
    with mock.patch.object(slice_reader, "encode_history", side_effect=AssertionError("through Arrow")):
        paged = list(history.slices(start, end, sizes, epochs))
    with mock.patch.object(reader, "PAGE_CODEC", None):
        decoded = list(history.slices(start, end, sizes, epochs))
    assert records(paged) == records(decoded)
    starts = {start for _, start in epochs}
    for number, one in enumerate(paged):
        assert one.count == 1 or one.num_bytes <= sizes[number % len(sizes)]
        for header, _ in read_batches(one.batches):
            assert not any(header.base_offset < start <= header.last_offset for start in starts)
        if one.batches:
            # A consumer continues here; an epoch in which no record is left is not covered.
            covered = read_batches(one.batches)[-1].header.last_offset + 1
            assert covered == one.next_offset or (covered < one.next_offset and covered in starts)
    return paged


@given(st.lists(kafka_rows, min_size=1, max_size=40), st.sampled_from(CODECS), st.integers(0, 2**32))
def test_both_ways_return_the_same_records(rows: list[Row], codec: str, seed: int) -> None:
    chance = Random(seed)
    offsets = sorted(chance.sample(range(3 * len(rows)), len(rows)))
    end = offsets[-1] + 5
    starts = sorted(chance.sample(range(1, end), chance.randint(0, min(3, end - 1))))
    epochs = [(epoch, start) for epoch, start in enumerate([0, *starts], 3)]
    times = ((starts[0], starts[1]),) if len(starts) > 1 and chance.random() < 0.7 else ()
    page_bytes = chance.choice([20, 40, 1 << 20])
    with TemporaryDirectory() as table:
        history = write(
            Path(table), rows, offsets, codec, page_bytes=page_bytes, gone=deleted(len(rows), chance), times=times
        )
        part = sorted(chance.sample(range(end + 1), 2))
        for first, last in ((0, end), part):
            sizes = [chance.choice([1, 70, 200, 1_000, 100_000]) for _ in range(3)]
            both_ways(history, first, last, sizes, epochs)


def deleted(rows: int, chance: Random) -> list[int]:
    """Return the numbers of some rows, and not of all; at times of none, and of a run."""
    share = chance.choice([0, 0.1, 0.5, 0.9])
    run = range(chance.randrange(rows), rows) if chance.random() < 0.3 else ()
    found = [row for row in range(rows) if chance.random() < share or row in run]
    return found[:-1] if len(found) == rows else found


def stored(history: History, start: int, end: int) -> list[tuple[int, Row]]:
    """Return offsets and records as a client of ours reads them: row groups, as files of Parquet."""
    files, segment, slices = open_table(history.table), history.segment(), SliceReader(mock.Mock())
    found: list[tuple[int, Row]] = []
    at = start
    while at < end:
        wanted = Wanted(at, end, 100, may_be_empty=False, log_start=0)
        answer = slices.read_stored_segment(files, segment, history.end, wanted)
        content = pa.py_buffer(b"".join(encode_batches(answer.batches)))
        rows = [
            (offset, row)
            for batch in read_records(content, at)
            for offset, row in zip(batch.column("offset").to_pylist(), wire_rows(batch), strict=True)
        ]
        assert answer.count == len(rows)
        assert at < answer.next_offset <= end
        found += rows
        at = answer.next_offset
    return found


@given(st.lists(kafka_rows, min_size=2, max_size=40), st.sampled_from(CODECS), st.integers(0, 2**32))
def test_rows_that_a_vector_leaves_come_from_page_to_page(rows: list[Row], codec: str, seed: int) -> None:
    chance = Random(seed)
    gone = deleted(len(rows), chance) or [chance.randrange(len(rows))]
    with TemporaryDirectory() as table:
        page_bytes = chance.choice([20, 40, 1 << 20])
        history = write(Path(table), rows, range(len(rows)), codec, page_bytes=page_bytes, gone=gone)
        start = chance.randrange(len(rows))
        for first, end in ((0, history.end), (start, history.end), (start, start + 1)):
            with mock.patch.object(reader, "PAGE_CODEC", None):
                decoded = stored(history, first, end)
            assert stored(history, first, end) == decoded
            assert decoded == [(at, row) for at, row in enumerate(rows) if first <= at < end and at not in gone]
            if end == history.end:
                with mock.patch.object(slice_reader, "write_row_group_file", side_effect=AssertionError("by Arrow")):
                    assert stored(history, first, end) == decoded


def plain_rows(count: int, size: int) -> list[Row]:
    return [Row(1_700_000_000_000 + at, None, bytes([at % 251]) * size, None) for at in range(count)]


def test_a_slice_is_one_batch_of_its_size_that_may_cross_pages(tmp_path: Path) -> None:
    history = write(tmp_path, plain_rows(600, 1_000), range(600), "zstd", page_bytes=9_000)
    slices = both_ways(history, 0, history.end, [100_000], [(0, 0)])
    # Each of the two row groups of 300 records ends with a smaller one.
    assert [len(one.batches) for one in slices] == [1] * 8
    assert [one.count for one in slices] == [98, 98, 98, 6] * 2
    assert [one.is_full for one in slices] == [True, True, True, False] * 2


def test_a_slice_larger_than_a_batch_has_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_history, "_BATCH_BYTES", 50_000)
    history = write(tmp_path, plain_rows(600, 1_000), range(600), "lz4", page_bytes=9_000)
    (first, second) = both_ways(history, 0, history.end, [1 << 20], [(0, 0)])
    assert [len(one.batches) for one in (first, second)] == [7, 7]


def test_a_record_larger_than_the_answer_comes_alone(tmp_path: Path) -> None:
    history = write(tmp_path, plain_rows(4, 5_000), range(4), "zstd")
    assert [one.count for one in both_ways(history, 0, history.end, [100], [(0, 0)])] == [1] * 4
    wanted = Wanted(0, 4, 100, may_be_empty=True, log_start=0)
    found = SliceReader(mock.Mock()).read_segment_batches(
        open_table(tmp_path), history.segment(), history.end, wanted, [(0, 0)]
    )
    assert (found.batches, found.next_offset, found.is_full) == ([], 0, True)


def test_readings_are_continued_and_let_go(tmp_path: Path) -> None:
    """Keep a reading for each of several readers in step, until the row group is read to its end."""
    history = write(tmp_path, plain_rows(600, 1_000), range(600), "zstd", page_bytes=9_000)
    files, segment, slices = open_table(tmp_path), history.segment(), SliceReader(mock.Mock())
    opened = mock.Mock(side_effect=reader.read_paged)
    with mock.patch.object(slice_reader, "read_paged", opened):
        at = 0
        while at < 300:
            wanted = Wanted(at, 600, 50_000, may_be_empty=False, log_start=0)
            ends = {slices.read_segment_batches(files, segment, 600, wanted, [(0, 0)]).next_offset for _ in range(2)}
            (at,) = ends
    assert opened.call_count == 2
    assert slices._begun == []


def test_readings_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = write(tmp_path, plain_rows(600, 1_000), range(600), "uncompressed", page_bytes=9_000)
    files, segment, slices = open_table(tmp_path), history.segment(), SliceReader(mock.Mock())
    monkeypatch.setattr(slice_reader, "READINGS_BYTES_MAX", 1_000_000)
    for start in range(0, 300, 20):
        wanted = Wanted(start, 600, 3_000, may_be_empty=False, log_start=0)
        slices.read_segment_batches(files, segment, 600, wanted, [(0, 0)])
        assert sum(begun.num_bytes for begun in slices._begun) <= 1_000_000
    assert len(slices._begun) == 3  # each holds some 300 KB


def test_dictionary_pages_of_values_go_through_arrow(tmp_path: Path) -> None:
    small = functools.partial(pq.ParquetWriter)

    def with_dictionary(*arguments: Any, **options: Any) -> pq.ParquetWriter:
        return small(*arguments, **(options | {"use_dictionary": ["value"]}))

    rows = [replace(row, value=b"same") for row in plain_rows(20, 1)]
    with mock.patch.object(pq, "ParquetWriter", with_dictionary), SegmentWriter(open_table(tmp_path), 0, 0, 20, 0) as w:
        w.write(log_batch(rows, range(20)))
        history = History(tmp_path, w.finish().path, 20)
    assert [(at, row) for at, _, _, row in records(list(history.slices(0, 20, [1 << 20], [(0, 0)])))] == list(
        enumerate(rows)
    )
    with (
        mock.patch.object(slice_reader, "encode_history", side_effect=AssertionError("through Arrow")),
        pytest.raises(AssertionError, match="through Arrow"),
    ):
        list(history.slices(0, 20, [1 << 20], [(0, 0)]))


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_a_flipped_bit_is_a_corruption(tmp_path: Path, codec: str) -> None:
    history = write(tmp_path, plain_rows(20, 30), range(20), codec)
    path = tmp_path / history.name
    good = path.read_bytes()
    chance = Random(3)
    for at in chance.sample(range(len(good)), examples(200)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :])
        with pytest.raises(CorruptionError, match="segment" if at == -1 else "is damaged|is not"):
            list(history.slices(0, history.end, [1 << 20], [(0, 0)]))
    path.write_bytes(good)
    assert len(records(list(history.slices(0, history.end, [1 << 20], [(0, 0)])))) == 20


def outcome(history: History) -> object:
    try:
        return records(list(history.slices(0, history.end, [300], [(0, 0)])))
    except CorruptionError:
        return CorruptionError


# Arrow does not say how many bytes it has inflated with lz4, if they are fewer than expected.
@given(st.lists(kafka_rows, min_size=2, max_size=20), st.sampled_from([*CODECS[:3], "zstd"]), st.integers(0, 2**32))
def test_damage_under_a_right_checksum_has_the_same_outcome(rows: list[Row], codec: str, seed: int) -> None:
    """Change the bytes of pages after they were compared with their checksum."""
    chance = Random(seed)
    rows = [replace(row, headers=None) for row in rows]
    with TemporaryDirectory() as table:
        history = write(Path(table), rows, range(len(rows)), codec, page_bytes=chance.choice([40, 1 << 20]))
        check = ParquetFile._read_checked

        def damaged(file: ParquetFile, row_group: int, chunks: Sequence[tuple[int, memoryview]]) -> None:
            check(file, row_group, chunks)
            for leaf, chunk in chunks:
                if file._column(leaf) == "value":
                    chunk[int(place * len(chunk))] ^= bit

        with mock.patch.object(ParquetFile, "_read_checked", damaged):
            for _ in range(examples(20)):
                place, bit = chance.random(), 1 << chance.randrange(8)
                paged = outcome(history)
                with mock.patch.object(reader, "PAGE_CODEC", None):
                    decoded = outcome(history)
                assert paged == decoded
