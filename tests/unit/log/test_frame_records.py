"""Frames of Arrow's and of Kafka's batches become records of the log."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptionError
from logstore.journal.frame import Frame, FrameFlags
from logstore.kafka_batches.header import Compression
from logstore.log.frame_records import frame_records, stored_batches
from logstore.protocol.record_batch import LOG_APPEND_TIME, encode_batches, read_records
from logstore.records.log_batches import GATHERED_BYTES
from logstore.records.payload import encode_payload
from tests.support.journals import control_frame, data_frame, kafka_frame
from tests.support.kafka_batches import client_batch
from tests.support.records import Row, wire_batch, wire_rows

#: Kafka's batches have no empty list of headers.
rows = st.lists(
    st.builds(Row, st.none() | st.integers(0, 9), st.none() | st.binary(max_size=3), st.binary(max_size=3), st.none()),
    min_size=1,
    max_size=3,
)
frames = st.lists(
    st.tuples(st.sampled_from(["arrow", "control", *Compression]), rows, st.booleans(), st.booleans()), max_size=12
)


def frame_of(kind, records, base_offset, *, log_append_time=False) -> Frame:
    if kind == "control":
        return control_frame(base_offset)
    if kind == "arrow":
        frame = data_frame(base_offset, encode_payload(wire_batch(records)).to_pybytes(), count=len(records))
    else:
        frame = kafka_frame(base_offset, client_batch(records, compression=kind))
    header = frame.header._replace(
        record_count=len(records),
        append_time_ms=1_000 + base_offset,
        flags=FrameFlags.LOG_APPEND_TIME if log_append_time else FrameFlags(0),
    )
    return frame._replace(header=header)


@given(frames)
def test_frames_of_all_kinds_are_the_records_that_were_put_into_them(given_frames):
    """Leave gaps as well: a frame of another partition, or a marker, was between the frames."""
    found, expected, offset = [], [], 0
    for kind, records, log_append_time, gap in given_frames:
        offset += 5 * gap
        found.append(frame_of(kind, records, offset, log_append_time=log_append_time))
        if kind == "control":
            offset += 1
            continue
        append_time = 1_000 + offset
        for row in records:
            stands = row.timestamp is not None and not log_append_time
            expected.append((offset, row.timestamp if stands else append_time, row.key, row.value))
            offset += 1
    batches = list(frame_records(found))
    assert flat(batches) == expected
    stored = stored_batches([frame for frame in found if frame.header.has_records])
    content = b"".join(bytes(piece) for piece in encode_batches(stored))
    assert flat(list(read_records(pa.py_buffer(content), 0))) == expected


def flat(batches):
    return [
        (offset, row.timestamp, row.key, row.value)
        for batch in batches
        for offset, row in zip(batch.column("offset").to_pylist(), wire_rows(batch), strict=True)
    ]


def test_batches_of_arrow_are_given_as_they_are_and_those_of_kafka_together():
    one = [Row(1, None, b"v", None)]
    found = [frame_of("arrow", one, 0, log_append_time=True), frame_of("arrow", one, 1)]
    found += [frame_of(kind, one, 2 + kind) for kind in Compression]
    first, second, third = stored_batches(found)
    assert (first.payload, first.flags, first.append_time_ms) == (found[0].payload, LOG_APPEND_TIME, 1_000)
    assert (second.payload, second.flags, second.base_offset) == (found[1].payload, 0, 1)
    assert (third.base_offset, third.record_count, third.flags) == (2, 5, 0)


def test_large_batches_of_kafka_are_not_joined():
    large = [Row(1, None, bytes(GATHERED_BYTES), None)]
    found = [frame_of(Compression.ZSTD, large, at) for at in range(3)]
    found = [frame._replace(header=frame.header._replace(inflated_bytes=GATHERED_BYTES)) for frame in found]
    assert [(batch.base_offset, batch.record_count) for batch in stored_batches(found)] == [(0, 1), (1, 1), (2, 1)]


def test_a_roll_has_batches_of_kafka_joined_up_to_its_bound_and_those_of_arrow_as_ever():
    one = [Row(1, None, b"v", None)]
    found = [frame_of(Compression.NONE, one, at) for at in range(3)] + [frame_of("arrow", one, at) for at in (3, 4)]
    found = [frame._replace(header=frame.header._replace(inflated_bytes=GATHERED_BYTES)) for frame in found]
    joined = list(frame_records(found, kafkas_bytes=2 * GATHERED_BYTES))
    assert [batch.column("offset").to_pylist() for batch in joined] == [[0, 1], [2], [3], [4]]


def test_a_payload_that_is_no_record_batch_any_more_is_reported():
    with pytest.raises(CorruptionError, match="not the record batch that was stored"):
        list(frame_records([kafka_frame(0, b"a record batch")]))
    two = frame_of(Compression.NONE, [Row(1, None, b"v", None)] * 2, 7)
    with pytest.raises(CorruptionError, match="from offset 7 on hold 2 records, and their headers say 1"):
        list(frame_records([two._replace(header=two.header._replace(record_count=1))]))
