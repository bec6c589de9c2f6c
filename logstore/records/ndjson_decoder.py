"""Decodes NDJSON and plain lines (``application/x-ndjson``): one record per line; its value is the line's bytes.

A line ends at LF, the last one also at the end of the body. One CR before the LF belongs to the line end. Lines that
are empty, or have only spaces, tabs and CRs, are skipped (https://github.com/ndjson/ndjson-spec). The lines are not
parsed but stored as they are: ``null`` is four bytes and not a tombstone, and any text is accepted.
"""

import numpy as np
import pyarrow as pa

from logstore.errors import RequestTooLargeError
from logstore.limits import REQUEST_RECORDS_MAX
from logstore.records.batch import DecodedRecords, check_records
from logstore.records.schema import WIRE_SCHEMA, null_headers

_CR, _LF = 0x0D, 0x0A
_IS_BLANK = np.isin(np.arange(256), list(b" \t\r"))


def decode_ndjson(body: bytes, *, max_message_bytes: int) -> DecodedRecords:
    """Decode one value per line; there are no keys, timestamps or headers. Raises InvalidRequestError (no line has a
    byte), RecordTooLargeError, RequestTooLargeError.
    """
    # This is checked before any position is stored: that takes 8 bytes a line, and a body can consist of line ends
    # only.
    if body.count(b"\n") > REQUEST_RECORDS_MAX:
        raise RequestTooLargeError(
            f"The request has more than {REQUEST_RECORDS_MAX} lines: send them in several requests"
        )
    data = np.frombuffer(body, np.uint8)
    line_feeds = np.flatnonzero(data == _LF)
    starts = np.concatenate(([0], line_feeds + 1))
    ends = np.concatenate((line_feeds, [len(data)]))
    # The last line has no LF, so a CR at the very end is part of the line. Before the LF of an empty line is another
    # LF, or for the first one nothing: then it may end before it starts.
    ends[:-1] -= data[line_feeds - 1] == _CR
    filled = ends > starts
    starts, ends = starts[filled], ends[filled]
    begins_blank = _IS_BLANK[data[starts]]
    if begins_blank.any():
        filled = ~begins_blank
        filled[begins_blank] = _have_text(data, starts[begins_blank], ends[begins_blank])
        starts, ends = starts[filled], ends[filled]
    values = _slices(data, starts, ends)
    rows = len(values)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.nulls(rows, WIRE_SCHEMA.field("timestamp").type),
            pa.nulls(rows, pa.binary()),
            values,
            null_headers(rows),
        ],
        schema=WIRE_SCHEMA,
    )
    check_records(batch, max_message_bytes)
    return DecodedRecords(batch, None)


def _have_text(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return whether each slice, of at least one byte, has a byte that is not blank."""
    # The appended byte serves as the end of a slice at the end of the data.
    is_text = np.append(~_IS_BLANK[data], False)
    return np.logical_or.reduceat(is_text, np.column_stack((starts, ends)).ravel())[::2]


def _slices(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Return ``data[start:end]`` of each pair (rising, not overlapping) as a binary column, copied once."""
    # It has +1 where a slice begins and -1 where it ends: the running sum is 1 inside.
    edges = np.zeros(len(data) + 1, np.int8)
    edges[starts] += 1
    edges[ends] -= 1
    inside = np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(ends - starts, dtype=np.int32)))
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data[inside])])
