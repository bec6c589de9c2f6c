"""Derives the columns of values, and ``value_error`` for those that do not fit.

Invariant: a row is a function of the schema and the bytes of its own value, whatever way it is converted and whichever
values stand beside it. No value raises, and none costs more than a fixed time for each of its bytes.
"""

import functools
import logging
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.limits import MIB
from logstore.native_library import loaded
from logstore.records.columns.field_tree import FieldNode, columns_of, field_tree
from logstore.records.columns.framed import FramedConverter, positions
from logstore.records.columns.native import UNSURE, Kernel, KernelConverter
from logstore.records.columns.one_value import Misfit, value_converter
from logstore.records.columns.schema import ColumnSchema

#: These bound the memory of one step: its rows, its rows times its columns (beyond a few rows), and bytes of values.
CHUNK_ROWS_MAX: Final = 64 * 1024
CHUNK_CELLS_MAX: Final = 2 * 1024 * 1024
CHUNK_BYTES_MAX: Final = 8 * MIB
#: A reason that begins so is a fault of this program, and none of the value.
NOT_DERIVED: Final = "$: not derived because of an error"

_FEW_ROWS: Final = 1024
#: Fewer values are converted one by one, which takes less time than pyarrow.json needs for one call.
FRAMED_ROWS_MIN: Final = 32

KERNEL: Final = loaded(Kernel)

#: It is the standard library's, because workers of Spark import this without structlog.
log = logging.getLogger(__name__)


def derive(schema: ColumnSchema, values: pa.Array | pa.ChunkedArray) -> pa.RecordBatch:
    """Return a row of ``schema.arrow_fields`` for each of the binary values. A null value, which is a tombstone, has
    null columns; one that does not fit has null columns and a reason in ``value_error``. An error of the derivation is
    logged, and is the reason of every value.
    """
    try:
        return _derived(schema, values)
    except Exception as error:  # noqa: BLE001 - no value may stop a roll, whatever is wrong here
        log.error("columns.not_derived rows=%d error=%r", len(values), error)
        return _not_derived(schema, values, f"the columns could not be derived ({type(error).__name__})")


def _not_derived(schema: ColumnSchema, values: pa.Array | pa.ChunkedArray, reason: str) -> pa.RecordBatch:
    """Return null columns and a reason for every value that is not null."""
    *columns, _ = schema.arrow_fields
    is_valid = pa.array(np.asarray(values.is_valid()))
    reasons = pc.if_else(is_valid, pa.scalar(reason), pa.scalar(None, pa.string()))
    nulls = (pa.nulls(len(values), column.type) for column in columns)
    return pa.RecordBatch.from_arrays([*nulls, reasons], schema=pa.schema(schema.arrow_fields))


def _derived(schema: ColumnSchema, values: pa.Array | pa.ChunkedArray) -> pa.RecordBatch:
    deriver = _deriver(schema)
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    if isinstance(values, pa.ChunkedArray):
        # Small chunks are joined, because a step has a fixed cost; large ones may be more than one array can have.
        chunks = values.chunks if values.nbytes > CHUNK_BYTES_MAX else [values.combine_chunks()]
    else:
        chunks = [values]
    batches = [deriver.derive(part) for chunk in chunks for part in _parts(chunk, deriver.rows_max)]
    if len(batches) == 1:
        return batches[0]
    columns = zip(*(batch.columns for batch in batches), strict=True)
    arrays = [pa.concat_arrays(parts) for parts in columns] or [
        pa.nulls(0, field.type) for field in deriver.arrow_schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=deriver.arrow_schema)


def _parts(values: pa.Array, rows_max: int) -> Iterator[pa.Array]:
    """Yield slices of at most the rows and bytes of one step; a larger value is alone in its slice."""
    if not len(values):
        return
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    begin = 0
    while begin < len(values):
        end = int(np.searchsorted(ends, ends[begin] + np.int64(CHUNK_BYTES_MAX), "right")) - 1
        end = min(max(end, begin + 1), begin + rows_max, len(values))
        yield values.slice(begin, end - begin)
        begin = end


@functools.lru_cache(256)
def _deriver(schema: ColumnSchema) -> "Deriver":
    return Deriver(schema, KERNEL)


class Deriver:
    """Derives the columns of one schema, with the kernel where it is compiled."""

    def __init__(self, schema: ColumnSchema, kernel: Kernel | None) -> None:
        self._schema = schema
        self._root = field_tree(schema)
        self._type = self._root.conversion.type
        self._convert_one = value_converter(self._root)
        self._framed = FramedConverter(self._root)
        self._kernel = _kernel_converter(kernel, self._root)
        self.arrow_schema = pa.schema(schema.arrow_fields)
        self.rows_max = min(CHUNK_ROWS_MAX, max(_FEW_ROWS, CHUNK_CELLS_MAX // len(self.arrow_schema)))

    def derive(self, values: pa.Array) -> pa.RecordBatch:
        try:
            return self.batch(*self.convert(values))
        except Exception:  # noqa: BLE001 - no value may stop a roll, whatever is wrong here
            return self.batch(*self._convert_what_can_be(values))

    def batch(self, rows: pa.StructArray, reasons: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*columns_of(self._schema, rows), reasons], schema=self.arrow_schema)

    def convert(self, values: pa.Array) -> tuple[pa.StructArray, pa.Array]:
        """Return rows of the root's type, whose fields are null if the row does not fit, and the reasons."""
        if self._kernel is not None:
            return self._convert_with_kernel(self._kernel, values)
        if not values.null_count:
            return self._convert_without_kernel(values)
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        rows, reasons = self._convert_without_kernel(values.take(pa.array(present)))
        places = positions(present, len(values))
        return rows.take(places), reasons.take(places)

    def _convert_with_kernel(self, kernel: KernelConverter, values: pa.Array) -> tuple[pa.StructArray, pa.Array]:
        rows, codes = kernel.convert(values)
        if not codes.any():
            return rows, pa.nulls(len(rows), pa.string())
        misfits = np.flatnonzero(codes > 0)
        found, texts = np.unique(codes[misfits], return_inverse=True)
        places = np.full(len(rows), len(found))
        places[misfits] = texts
        reasons = pa.array([*map(kernel.reason, found.tolist()), None], pa.string()).take(pa.array(places))
        unsure = np.flatnonzero(codes == UNSURE)
        if not len(unsure):
            return rows, reasons
        return _replaced(rows, reasons, unsure, *self._convert_without_kernel(values.take(pa.array(unsure))))

    def _convert_without_kernel(self, values: pa.Array) -> tuple[pa.StructArray, pa.Array]:
        if len(values) < FRAMED_ROWS_MIN:
            return self.convert_each(values)
        rows, left = self._framed.convert(values)
        if rows is None:
            return self.convert_each(values)
        reasons = pa.nulls(len(values), pa.string())
        if not left.any():
            return rows, reasons
        at = np.flatnonzero(left)
        return _replaced(rows, reasons, at, *self.convert_each(values.take(pa.array(at))))

    def _convert_what_can_be(self, values: pa.Array) -> tuple[pa.StructArray, pa.Array]:
        """Convert values one by one, and give those a reason with which that fails."""
        rows, reasons = [pa.nulls(0, self._type)], []
        for value in values.to_pylist():
            row, reason = pa.nulls(1, self._type), None
            if value is not None:
                try:
                    row = pa.array([self._convert_one(value)], self._type)
                except Misfit as misfit:
                    reason = misfit.args[0]
                except Exception as error:  # noqa: BLE001 - as above
                    reason = f"{NOT_DERIVED} ({type(error).__name__})"
            rows.append(row)
            reasons.append(reason)
        return pa.concat_arrays(rows), pa.array(reasons, pa.string())

    def convert_each(self, values: pa.Array) -> tuple[pa.StructArray, pa.Array]:
        """Convert values one by one."""
        rows: list[dict[str, object] | None] = []
        reasons: list[str | None] = []
        for value in values.to_pylist():
            try:
                rows.append(self._convert_one(value))
                reasons.append(None)
            except Misfit as misfit:
                rows.append(None)
                reasons.append(misfit.args[0])
        return pa.array(rows, self._type), pa.array(reasons, pa.string())


def _kernel_converter(kernel: Kernel | None, root: FieldNode) -> KernelConverter | None:
    if kernel is None:
        return None
    try:
        return KernelConverter(kernel, root)
    except ValueError:
        return None


def _replaced(
    rows: pa.StructArray, reasons: pa.Array, at: np.ndarray, other_rows: pa.StructArray, other_reasons: pa.Array
) -> tuple[pa.StructArray, pa.Array]:
    """Return rows and reasons with others in the places ``at``."""
    places = np.arange(len(rows))
    places[at] = len(rows) + np.arange(len(at))
    taken = pa.array(places)
    return pa.concat_arrays([rows, other_rows]).take(taken), pa.concat_arrays([reasons, other_reasons]).take(taken)
