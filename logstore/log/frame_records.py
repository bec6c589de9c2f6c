"""Journal frames as records of the log."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from logstore.errors import CorruptionError
from logstore.journal.frame import Frame, FrameFlags
from logstore.records.log_batches import GATHERED_BYTES, Origin, with_origins
from logstore.records.payload import decode_payloads

_LOG_APPEND_TIME: Final = FrameFlags.LOG_APPEND_TIME


def frame_records(frames: Iterable[Frame]) -> Iterator[pa.RecordBatch]:
    """Batches of LOG_SCHEMA, small frames together: offsets from the headers, timestamps filled in as the topic's
    timestamp type was at append time. Frames that hold no record are passed over.
    """
    gathered: list[Frame] = []
    gathered_bytes = 0
    for frame in frames:
        if not frame.header.has_records:
            continue
        num_bytes = max(frame.header.inflated_bytes, len(frame.payload))
        if gathered and gathered_bytes + num_bytes > GATHERED_BYTES:
            yield _records(gathered)
            gathered, gathered_bytes = [], 0
        gathered.append(frame)
        gathered_bytes += num_bytes
    if gathered:
        yield _records(gathered)


def _records(frames: Sequence[Frame]) -> pa.RecordBatch:
    records = decode_payloads([payload for _, payload in frames])
    origins = [
        Origin(header.record_count, header.base_offset, header.append_time_ms, _LOG_APPEND_TIME in header.flags)
        for header, _ in frames
    ]
    if records.num_rows != (count := sum([origin.record_count for origin in origins])):
        raise CorruptionError(
            f"Journal frames from offset {origins[0].base_offset} on hold {records.num_rows} records, and their "
            f"headers say {count}"
        )
    return with_origins(records, origins)
