"""CRC-32C (Castagnoli), under which everything lies that the store writes (RFC 3720, appendix B.4)."""

import google_crc32c
import pyarrow as pa

from logstore.filesystem import Buffer


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of ``data``, or of what ``crc`` is of and then ``data``; without a copy."""
    if isinstance(data, (memoryview, bytearray)):  # noqa: UP038 - a union is made anew at each call
        data = pa.py_buffer(data)  # themselves they are not taken
    extended: int = google_crc32c.extend(crc, data)
    return extended
