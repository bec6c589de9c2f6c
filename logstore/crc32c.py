"""CRC-32C (Castagnoli), the checksum of everything that the store writes (RFC 3720, appendix B.4)."""

import google_crc32c
import pyarrow as pa

from logstore.filesystem import Buffer

# google_crc32c accepts neither. It is a tuple, because a union would be made again at each call.
_NOT_TAKEN = (memoryview, bytearray)


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of ``data``, or of earlier bytes with the CRC ``crc`` and ``data``. Nothing is copied."""
    if isinstance(data, _NOT_TAKEN):
        data = pa.py_buffer(data)
    extended: int = google_crc32c.extend(crc, data)
    return extended
