"""Journal frames as records of the log."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from logstore.journal.frame import Frame, FrameFlags
from logstore.records.log_batches import WireBatch, log_batches
from logstore.records.payload import decode_payload


def frame_records(frames: Iterable[Frame]) -> Iterator[pa.RecordBatch]:
    """Batches of LOG_SCHEMA, small frames together: offsets from the headers, timestamps filled in as the topic's
    timestamp type was at append time. Frames that hold no record are passed over.
    """
    return log_batches(
        WireBatch(
            decode_payload(payload),
            header.base_offset,
            header.append_time_ms,
            FrameFlags.LOG_APPEND_TIME in header.flags,
        )
        for header, payload in frames
        if header.has_records
    )
