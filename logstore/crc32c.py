"""CRC-32C (Castagnoli), the checksum of everything that the store writes (RFC 3720, appendix B.4)."""

import google_crc32c
import pyarrow as pa

from logstore.filesystem import Buffer

# google_crc32c takes neither. A tuple: a union would be made anew at each call.
_NOT_TAKEN = (memoryview, bytearray)


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of ``data``; with ``crc``, the CRC of earlier bytes, of those bytes and ``data``. Nothing is copied."""
    if isinstance(data, _NOT_TAKEN):
        data = pa.py_buffer(data)
    extended: int = google_crc32c.extend(crc, data)
    return extended
