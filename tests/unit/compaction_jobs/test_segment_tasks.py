"""The work of executors, and the writer of segments that all jobs share."""

from dataclasses import replace

import pytest

from compaction_jobs.segment_tasks import scan_keys
from logstore.errors import CorruptionError
from logstore.records.batch_identity import RememberedBatch
from logstore.records.transactions import Marker, OpenTransaction
from logstore.segments.layout import PLAIN_LAYOUT
from logstore.segments.merge import Source, WriteTask, write_segment
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.keyed_topics import KeyedTopic, Record, batch
from tests.support.local_jobs import numbers
from tests.support.table_paths import path_of, read_footer


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
        layout=PLAIN_LAYOUT,
    )


def test_a_file_that_is_not_what_the_log_says_stops_the_job(tmp_path):
    topic, path = one_segment(tmp_path)
    source = Source(0, path, 11, 0)
    with pytest.raises(CorruptionError, match="holds 10 records; the Delta log says 11"):
        list(scan_keys(str(path_of(topic.table)), [source], {0: 0})(iter([numbers([0])])))
    with pytest.raises(CorruptionError, match="holds 10 records; the Delta log says 11"):
        write_segment(0, task_of(topic, source, 3), None)
    assert len(list(path_of(topic.table).glob("*/*.parquet"))) == 1


def test_a_cut_segment_begins_at_the_log_start(tmp_path):
    topic, path = one_segment(tmp_path)
    segment = write_segment(0, task_of(topic, Source(0, path, 10, 0), 7), None).segment
    assert (segment.base_offset, segment.min_offset, segment.end_offset, segment.num_records) == (7, 7, 10, 3)
    assert segment.operation == read_footer(path_of(topic.table) / segment.path).operation == "retention-boundary"


def test_a_topic_that_was_deleted_does_not_come_back(tmp_path):
    topic, path = one_segment(tmp_path)
    path_of(topic.table).rename(tmp_path / "trash")
    with pytest.raises(FileNotFoundError):
        write_segment(0, task_of(topic, Source(0, path, 10, 0), 7), None)
    assert not path_of(topic.table).exists()


def test_a_segment_made_of_several_remembers_what_they_did(tmp_path):
    """Merge files: the newest has all producers, and each has only its keys, of which those in their window count."""
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
    # The window ends at the job's clock: the last append may be later than that, or long ago.
    for now_ms, window_ms, kept in (
        (2_000, 600_000, keys),
        (2_000, 1_001, keys[1:]),
        (2_000, 1_000, keys[2:]),
        (1_000, 1_000, keys[1:]),
        (602_000, 600_000, []),
    ):
        task = replace(
            task_of(topic, sources[0], 0), sources=tuple(sources), idempotency_window_ms=window_ms, now_ms=now_ms
        )
        written = write_segment(0, task, None).segment
        footer = read_footer(path_of(topic.table) / written.path)
        assert footer.producers == tuple(producers)
        assert footer.idempotency_keys == tuple(kept)
        assert (footer.open_transactions, footer.markers) == (
            (OpenTransaction(7, 2, 14, 2),),
            (Marker(8, 2, 0, 10, 2),),
        )
