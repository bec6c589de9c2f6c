"""Memory for columns in Arrow's layout, which C fills: ``struct target`` of ``json_scan.c`` and ``record_codec.c``."""

import pyarrow as pa

from logstore.records.schema import HEADERS_TYPE

# The source of memory; a test puts memory with guarded ends here.
allocate = pa.allocate_buffer


def bits(rows: int, null_count: int) -> pa.Buffer | None:
    """Return room for a validity bitmap, which a column without nulls does not have."""
    return allocate((rows + 7) // 8) if null_count else None


def address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


class ByteColumn:
    """Memory for a binary or text column."""

    def __init__(self, rows: int, data_bytes: int, null_count: int) -> None:
        self._rows, self._null_count = rows, null_count
        self._valid, self._offsets, self._data = bits(rows, null_count), allocate(4 * (rows + 1)), allocate(data_bytes)

    @property
    def target(self) -> tuple[int, int, int, int]:
        """The fields of ``struct target``."""
        return address(self._valid), self._offsets.address, self._data.address, self._data.size

    def array(self, kind: pa.DataType) -> pa.Array:
        buffers = [self._valid, self._offsets, self._data]
        return pa.Array.from_buffers(kind, self._rows, buffers, null_count=self._null_count)


class HeaderColumns:
    """Memory for the column of headers. ``bare`` rows have none, which is null."""

    def __init__(
        self, rows: int, bare: int, headers: int, *, key_bytes: int, value_bytes: int, null_values: int
    ) -> None:
        self._rows, self._bare, self._headers = rows, bare, headers
        self._valid, self._offsets = bits(rows, bare), allocate(4 * (rows + 1))
        self._key = ByteColumn(headers, key_bytes, 0)
        self._value = ByteColumn(headers, value_bytes, null_values)

    @property
    def targets(self) -> tuple[int, ...]:
        """Validity and offsets of the lists, and the targets of their keys and values."""
        return address(self._valid), self._offsets.address, *self._key.target, *self._value.target

    def array(self) -> pa.Array:
        children = [self._key.array(pa.string()), self._value.array(pa.binary())]
        elements = pa.StructArray.from_buffers(
            HEADERS_TYPE.value_type, self._headers, [None], null_count=0, children=children
        )
        buffers = [self._valid, self._offsets]
        return pa.Array.from_buffers(HEADERS_TYPE, self._rows, buffers, null_count=self._bare, children=[elements])
