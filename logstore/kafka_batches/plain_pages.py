"""Pages of a Parquet column of bytes (``plain_pages.c``) as the values of Kafka's record batches, and as pages without
some of their rows. Like ``native``, it calls C through ctypes, which lets other threads run meanwhile.
"""

import ctypes
import functools
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.kafka_batches.codec import CODEC
from logstore.kafka_batches.native import NativeCodec, Source
from logstore.native_library import library_of, load, loaded
from logstore.records import column_memory as memory

SOURCE: Final = Path(__file__).with_name("plain_pages.c")
LIBRARY: Final = library_of(SOURCE)
# A page has its length before each value.
_LENGTH_BYTES: Final = 4
# The levels of a copied page may take more than those of the page.
_LEVELS_BYTES_MAX: Final = 16
_PAGE_BYTES_MAX: Final = 2**31 - 1


class PlainPage(NamedTuple):
    """An inflated page of ``rows`` values. Value i is at ``offsets``[i] + 4 in ``data`` and ends at ``offsets``[i + 1],
    numbers of 32 bits; bit i of ``valid`` says that it is not null.
    """

    data: pa.Buffer
    rows: int
    null_count: int
    valid: pa.Buffer
    offsets: pa.Buffer

    def values_from(self, row: int) -> Source:
        valid = self.valid.address if self.null_count else 0
        return valid, row, self.offsets.address + 4 * row, self.data.address, _LENGTH_BYTES


class PageCodec:
    """Reads and copies pages. ``records`` writes their values into record batches, with the rest of the records."""

    def __init__(self, records: NativeCodec, library: Path = LIBRARY) -> None:
        """Load the library. Raises the errors of ``native_library.load``."""
        self.records = records
        functions = load(SOURCE, library)
        number, address = ctypes.c_int64, ctypes.c_void_p
        for name, arguments in (
            ("index_page", (address, number, number, address, address)),
            ("copy_page", (address, number, address, address, address, address)),
        ):
            function = getattr(functions, name)
            function.argtypes = arguments
            function.restype = number
        self._index_page, self._copy_page = functions.index_page, functions.copy_page

    def read(self, data: pa.Buffer, rows: int) -> PlainPage | None:
        """Find the values of an inflated page; None if it has not exactly ``rows``, or has more than 2 GiB."""
        if data.size > _PAGE_BYTES_MAX:
            return None
        valid, offsets = memory.allocate((rows + 7) // 8), memory.allocate(4 * (rows + 1))
        null_count = self._index_page(data.address, data.size, rows, valid.address, offsets.address)
        return None if null_count < 0 else PlainPage(data, rows, null_count, valid, offsets)

    def copied_size(self, page: PlainPage, kept: np.ndarray) -> int:
        """Return the bytes of the page with only the ``kept`` rows (a boolean for each); ``copied_bytes`` at most."""
        return self._copy(page, kept, None)

    def copy(self, page: PlainPage, kept: np.ndarray, out: pa.Buffer, at: int) -> None:
        """Write the page with only the ``kept`` rows to ``out`` from its byte ``at`` on."""
        assert self._copy(page, kept, None) <= out.size - at
        self._copy(page, kept, out.address + at)

    def _copy(self, page: PlainPage, kept: np.ndarray, address: int | None) -> int:
        assert len(kept) == page.rows
        addresses = page.valid.address, page.offsets.address, kept.ctypes.data, address
        return int(self._copy_page(page.data.address, page.rows, *addresses))


def copied_bytes(size: int, rows: int) -> int:
    """Return the most bytes of a copy of a page that has this size, inflated."""
    return size + rows // 8 + _LEVELS_BYTES_MAX


#: The page codec of this process; None without its library: then Arrow decodes all pages.
PAGE_CODEC: Final = loaded(functools.partial(PageCodec, CODEC)) if isinstance(CODEC, NativeCodec) else None
