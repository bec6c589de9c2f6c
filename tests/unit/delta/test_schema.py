import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from logstore.delta.schema import add_action, timestamp_stat
from logstore.limits import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.table_paths import path_of
from tests.support.topics import create_topic, foreign_commit, log_batch


@pytest.mark.parametrize(
    ("timestamp_us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
        (1_700_000_000_999_999, "2023-11-14T22:13:20.999999Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (TIMESTAMP_MS_MIN * 1000, "0001-01-01T00:00:00.000000Z"),
        (TIMESTAMP_MS_MAX * 1000, "9999-12-31T23:59:59.999000Z"),
        (-55_000_000_000_000_000, "0227-02-13T22:13:20.000000Z"),
    ],
)
def test_timestamps_are_exact_to_the_microsecond(timestamp_us: int, text: str) -> None:
    assert timestamp_stat(timestamp_us) == text


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("timestamp_ms", [TIMESTAMP_MS_MIN, -1, 0, 1_700_000_000_999, TIMESTAMP_MS_MAX])
def test_a_reader_that_skips_by_timestamp_still_finds_the_record(
    tmp_path: Path, timestamp_ms: int, checkpoint: bool
) -> None:
    """Write a timestamp whose maximum may not be cut to milliseconds: readers that compare with it would skip the
    record.
    """
    table = create_topic(tmp_path)
    with SegmentWriter(open_table(table.files.uri), 0, 0, 1, 0) as writer:
        writer.write(log_batch([0], timestamp_ms=timestamp_ms))
        segment = writer.finish()
    foreign_commit(path_of(table), [add_action(segment, 1, data_change=True)], [("logstore/0/sealed", 1)])
    handle = DeltaTable(str(path_of(table)))
    if checkpoint:
        handle.create_checkpoint()
        handle = DeltaTable(str(path_of(table)))
    moment = pa.scalar(timestamp_ms * 1000, pa.timestamp("us", "UTC"))
    field = pa.dataset.field("timestamp")
    for condition in (field == moment, field >= moment, field <= moment):
        assert handle.to_pyarrow_dataset().filter(condition).count_rows() == 1
    (file,) = table.snapshot().segments(0)
    assert (file.min_timestamp_ms, file.max_timestamp_ms) == (timestamp_ms, timestamp_ms)


def test_statistics_of_an_add(tmp_path: Path) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 0, 10, 0) as writer:
        writer.write(log_batch(range(5, 8)))
        segment = writer.finish()
    stats = json.loads(add_action(segment, 1, data_change=True).stats)
    assert stats["numRecords"] == 3
    assert (stats["minValues"]["offset"], stats["maxValues"]["offset"]) == (5, 7)
    assert stats["nullCount"] == {"offset": 0, "timestamp": 0}
