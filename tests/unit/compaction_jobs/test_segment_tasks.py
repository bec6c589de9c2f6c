"""Rounds of compaction on real files, without Spark: its shuffle is a dict here."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction_jobs.segment_tasks import (
    Source,
    WriteTask,
    Written,
    scan_keys,
    write_whole,
)
from logstore.errors import CorruptionError
from logstore.log.history import history_gaps
from logstore.records.batch_identity import RememberedBatch
from logstore.records.transactions import Marker, OpenTransaction
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.examples import examples
from tests.support.keyed_topics import KeyedTopic, Record, batch
from tests.support.local_jobs import compact, numbers
from tests.support.table_paths import path_of, read_footer

KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d"])
VALUES = st.one_of(st.none(), st.binary(max_size=4))
#: A round: segments that are rolled, in which an offset may have no record; time that passes, and how far the records
#: before the log start are deleted.
ROUNDS = st.lists(
    st.tuples(
        st.lists(st.lists(st.none() | st.tuples(KEYS, VALUES), min_size=1, max_size=8), max_size=3),
        st.integers(1, 60),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=4,
)
DELETE_RETENTION_MS = 50


@settings(max_examples=examples(20), deadline=None)
@given(ROUNDS, st.sampled_from([1, 600, 10_000]), st.integers(1, 5))
def test_rounds_of_compaction_leave_the_latest_of_each_key(rounds, segment_bytes, chunk):
    """Against a model: a dict of offsets, and of each offset when it was compacted first."""
    with tempfile.TemporaryDirectory() as directory:
        topic = KeyedTopic.create(
            Path(directory),
            "users",
            cleanup_policy="compact",
            delete_retention_ms=DELETE_RETENTION_MS,
            min_cleanable_dirty_ratio=0,
            segment_bytes=segment_bytes,
        )
        model: dict[int, Record] = {}
        first_cleaned: dict[int, int] = {}
        now = end = log_start = 0
        for rolls, passed, deleted in rounds:
            now += passed
            for roll in rolls:
                records = [None if appended is None else Record(*appended, now) for appended in roll]
                topic.roll({0: records})
                model |= {o: record for o, record in enumerate(records, end) if record is not None}
                end += len(records)
            log_start = min(end, log_start + deleted)
            topic.table.advance_log_start({0: log_start}, {0: 1})
            dirty = any(o >= log_start and o not in first_cleaned for o in model)
            compact(topic, now, chunk)
            if dirty:
                for offset in model:
                    first_cleaned.setdefault(offset, now)
                latest = {record.key: o for o, record in model.items() if record.key is not None and o >= log_start}
                model = {
                    o: record
                    for o, record in model.items()
                    # Retention removes records below the log start, so that compaction meets no whole file of them.
                    if (o < log_start or latest.get(record.key) == o)
                    and not (record.value is None and now - first_cleaned[o] >= DELETE_RETENTION_MS)
                }
            contents = topic.contents()
            assert {o: r for o, r in contents.items() if o >= log_start} == {
                o: r for o, r in model.items() if o >= log_start
            }
            snapshot = topic.table.snapshot()
            assert history_gaps(snapshot, 0) == []
            for file in snapshot.segments(0):
                footer = read_footer(path_of(topic.table) / file.path)
                assert (footer.base_offset, footer.end_offset) == (file.base_offset, file.end_offset)
                assert (footer.leader_epoch, footer.leader_epochs) == (1, ((1, 0),))


def one_segment(tmp_path, records: int = 10) -> tuple[KeyedTopic, str]:
    topic = KeyedTopic.create(tmp_path, "users")
    topic.roll({0: [Record(b"k", b"v", 0)] * records})
    return topic, topic.table.snapshot().segments(0)[0].path


def task_of(topic: KeyedTopic, source: Source, log_start: int) -> WriteTask:
    return WriteTask(
        topic.name,
        str(path_of(topic.table)),
        0,
        (source,),
        log_start,
        None,
        log_start,
        "zstd",
        "retention-boundary",
        600_000,
    )


def test_a_file_that_is_not_what_the_log_says_stops_the_job(tmp_path):
    topic, path = one_segment(tmp_path)
    source = Source(0, path, 11, 0)
    with pytest.raises(CorruptionError, match="holds 10 records; the Delta log says 11"):
        list(scan_keys(str(path_of(topic.table)), [source], {0: 0})(iter([numbers([0])])))
    with pytest.raises(CorruptionError, match="holds 10 records; the Delta log says 11"):
        list(write_whole([task_of(topic, source, 3)])(iter([numbers([0])])))
    assert len(list(path_of(topic.table).glob("*/*.parquet"))) == 1


def test_a_cut_segment_begins_at_the_log_start(tmp_path):
    topic, path = one_segment(tmp_path)
    (answer,) = write_whole([task_of(topic, Source(0, path, 10, 0), 7)])(iter([numbers([0])]))
    segment = Written.from_row(*answer.to_pylist()[0].values()).segment
    assert (segment.base_offset, segment.min_offset, segment.end_offset, segment.num_records) == (7, 7, 10, 3)
    assert segment.operation == read_footer(path_of(topic.table) / segment.path).operation == "retention-boundary"


def test_a_topic_that_was_deleted_does_not_come_back(tmp_path):
    topic, path = one_segment(tmp_path)
    path_of(topic.table).rename(tmp_path / "trash")
    with pytest.raises(FileNotFoundError):
        list(write_whole([task_of(topic, Source(0, path, 10, 0), 7)])(iter([numbers([0])])))
    assert not path_of(topic.table).exists()


def test_a_segment_made_of_several_remembers_what_they_did(tmp_path):
    """The newest file tells of all producers. Each file tells of its own keys, and only of those in their window."""
    topic = KeyedTopic.create(tmp_path, "users")
    producers = [RememberedBatch(7, 0, n, 5, 5 * n, 1000 * n) for n in range(3)]
    keys = [RememberedBatch(100 + n, -1, -n, 5, 5 * n, 1000 * n) for n in range(3)]
    sources = []
    for n in range(3):
        with SegmentWriter(open_table(topic.table.files.uri), 0, 5 * n, 5 * n + 5, 1) as writer:
            writer.write(batch(5 * n, [Record(b"k", b"v", 0)] * 5))
            segment = writer.finish(
                ((1, 0),),
                producers[: n + 1],
                [keys[n]],
                append_time_ms=1000 * n,
                open_transactions=[OpenTransaction(7, n, 5 * n + 4, n)],
                markers=[Marker(8, n, 0, 5 * n, n)],
            )
        sources.append(Source(0, segment.path, 5, 5 * n))
    for window_ms, kept in ((600_000, keys), (1_001, keys[1:]), (1_000, keys[2:])):
        task = replace(task_of(topic, sources[0], 0), sources=tuple(sources), idempotency_window_ms=window_ms)
        (answer,) = write_whole([task])(iter([numbers([0])]))
        written = Written.from_row(*answer.to_pylist()[0].values()).segment
        footer = read_footer(path_of(topic.table) / written.path)
        assert footer.producers == tuple(producers)
        assert footer.idempotency_keys == tuple(kept)
        assert (footer.open_transactions, footer.markers) == (
            (OpenTransaction(7, 2, 14, 2),),
            (Marker(8, 2, 0, 10, 2),),
        )
