"""A journal frame as records of the log."""

import pyarrow as pa

from logstore.journal.frame import Frame, FrameFlags
from logstore.records.payload import decode_payload, to_log_batch


def frame_records(frame: Frame) -> pa.RecordBatch:
    """LOG_SCHEMA: offsets from the header, timestamps filled in as the topic's timestamp type was at append time."""
    header = frame.header
    log_append_time = FrameFlags.LOG_APPEND_TIME in header.flags
    return to_log_batch(decode_payload(frame.payload), header.base_offset, header.append_time_ms, log_append_time)
