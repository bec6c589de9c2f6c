"""Derives the columns of values, and ``value_error`` for those that do not fit.

Invariant: a row is a function of the schema and the bytes of its own value, whatever way it is converted and whichever
values stand beside it. No value raises, and none costs more than a fixed time for each of its bytes.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.limits import MIB
from logstore.records.columns.field_tree import columns_of, field_tree
from logstore.records.columns.framed import FramedConverter
from logstore.records.columns.one_value import Misfit, convert
from logstore.records.columns.schema import ColumnSchema

#: These bound the memory of one step.
CHUNK_ROWS_MAX: Final = 64 * 1024
CHUNK_BYTES_MAX: Final = 8 * MIB
#: Fewer values are converted one by one, which takes less time than pyarrow.json needs for one call.
FRAMED_ROWS_MIN: Final = 32


def derive(schema: ColumnSchema, values: pa.Array | pa.ChunkedArray) -> pa.RecordBatch:
    """Return a row of ``schema.arrow_fields`` for each of the binary values. A null value, which is a tombstone, has
    null columns; one that does not fit has null columns and a reason in ``value_error``.
    """
    deriver = _deriver(schema)
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    batches = [deriver.derive(part) for chunk in chunks for part in _parts(chunk)]
    if len(batches) == 1:
        return batches[0]
    columns = zip(*(batch.columns for batch in batches), strict=True)
    arrays = [pa.concat_arrays(parts) for parts in columns] or [
        pa.nulls(0, field.type) for field in deriver.arrow_schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=deriver.arrow_schema)


def _parts(values: pa.Array) -> Iterator[pa.Array]:
    """Yield slices of at most the rows and bytes of one step; a larger value is alone in its slice."""
    if not len(values):
        return
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    begin = 0
    while begin < len(values):
        end = int(np.searchsorted(ends, ends[begin] + np.int64(CHUNK_BYTES_MAX), "right")) - 1
        end = min(max(end, begin + 1), begin + CHUNK_ROWS_MAX, len(values))
        yield values.slice(begin, end - begin)
        begin = end


@functools.lru_cache(256)
def _deriver(schema: ColumnSchema) -> "_Deriver":
    return _Deriver(schema)


class _Deriver:
    """Derives the columns of one schema."""

    def __init__(self, schema: ColumnSchema) -> None:
        self._schema = schema
        self._root = field_tree(schema)
        self._type = self._root.conversion.type
        self._framed = FramedConverter(self._root)
        self.arrow_schema = pa.schema(schema.arrow_fields)

    def derive(self, values: pa.Array) -> pa.RecordBatch:
        return self.batch(*self.convert(values))

    def batch(self, rows: pa.StructArray, reasons: Mapping[int, str]) -> pa.RecordBatch:
        columns = [*columns_of(self._schema, rows), _reason_column(reasons, len(rows))]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def convert(self, values: pa.Array) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return rows of the root's type, and the reasons by row."""
        if not values.null_count:
            return self._convert_present(values)
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        rows, reasons = self._convert_present(values.take(pa.array(present)))
        return rows.take(_places(present, len(values))), {int(present[at]): why for at, why in reasons.items()}

    def _convert_present(self, values: pa.Array) -> tuple[pa.StructArray, Mapping[int, str]]:
        if len(values) < FRAMED_ROWS_MIN:
            return self.convert_each(values)
        rows, left = self._framed.convert(values)
        if rows is None:
            return self.convert_each(values)
        if not left.any():
            return rows, {}
        at = np.flatnonzero(left)
        others, reasons = self.convert_each(values.take(pa.array(at)))
        return replaced(rows, at, others), {int(at[row]): why for row, why in reasons.items()}

    def convert_each(self, values: pa.Array) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Convert values one by one."""
        rows: list[object] = []
        reasons: dict[int, str] = {}
        for at, value in enumerate(values.to_pylist()):
            try:
                rows.append(convert(self._root, value))
            except Misfit as misfit:
                rows.append(None)
                reasons[at] = misfit.args[0]
        return pa.array(rows, self._type), reasons


def replaced(rows: pa.StructArray, at: np.ndarray, others: pa.StructArray) -> pa.StructArray:
    """Return ``rows`` with ``others`` in the places ``at``."""
    places = np.arange(len(rows))
    places[at] = len(rows) + np.arange(len(others))
    return pa.concat_arrays([rows, others]).take(pa.array(places))


def _places(at: np.ndarray, rows: int) -> pa.Array:
    """Return for each of ``rows`` its place in ``at``, or null."""
    places = np.full(rows, -1)
    places[at] = np.arange(len(at))
    return pa.array(places, mask=places < 0)


def _reason_column(reasons: Mapping[int, str], rows: int) -> pa.Array:
    if not reasons:
        return pa.nulls(rows, pa.string())
    return pa.array(list(reasons.values()), pa.string()).take(_places(np.array(list(reasons)), rows))
