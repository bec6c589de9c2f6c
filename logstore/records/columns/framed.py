"""Converts a chunk of JSON values with ``pyarrow.json``, each value in a frame.

pyarrow.json is not made for values that are no objects, takes two documents on a line for two rows and a blank line for
none. So it is never given a bare value: each one is the only field of an object, under a random name that no value can
know, and the number of rows proves that each value made one. It refuses a chunk as a whole. It takes some values that
are none by the rule of ``one_value``; the steps around it name these.
"""

from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from logstore.entropy import random_bytes
from logstore.records.columns.field_tree import VALUE_LEVELS_MAX, FieldNode
from logstore.records.columns.schema import Conversion
from logstore.records.columns.times import (
    EPOCH_MICROS,
    MICROS_MAX,
    MICROS_MIN,
    TIMESTAMP,
    read_dates,
    read_timestamps,
)

_TEXT_WORDS: Final = frozenset({"timestamp", "date"})


class FramedConverter:
    """Converts chunks of values for one tree of fields."""

    def __init__(self, root: FieldNode) -> None:
        self._conversion = root.conversion
        self._read_type = _read_type(root.conversion)
        try:
            self._lax: msgspec.json.Decoder[Any] | None = msgspec.json.Decoder(_lax_type(root.conversion))
        except (TypeError, ValueError):
            # msgspec refuses some names of fields; then all values of a chunk with a bad one are converted one by one.
            self._lax = None

    def convert(self, values: pa.Array) -> tuple[pa.StructArray | None, np.ndarray]:
        """Return rows of the root's type for values without nulls, and which of them have to be converted one by one;
        their rows mean nothing. The rows are None if that is all of them.
        """
        suspects = _suspects(values)
        for is_second in (False, True):
            if is_second:
                suspects = self._refused_by_msgspec(values, suspects)
            if suspects.all():
                break
            kept = values.filter(pa.array(~suspects)) if suspects.any() else values
            rows = self._read(kept)
            if rows is not None:
                rows, bad = _converted(rows, self._conversion)
                at = np.flatnonzero(~suspects)
                suspects[at[bad]] = True
                return (rows if len(at) == len(values) else rows.take(positions(at, len(values)))), suspects
        return None, np.ones(len(values), np.bool_)

    def _read(self, values: pa.Array) -> pa.StructArray | None:
        name = f"r{random_bytes(8).hex()}"
        frames = pc.binary_join_element_wise(pa.scalar(f'{{"{name}":'.encode()), values, pa.scalar(b"}"), b"")
        text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(frames)], pa.int32()), frames), b"\n")[0]
        data = text.as_buffer()
        try:
            table = pa.json.read_json(
                pa.BufferReader(data),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=pa.schema([(name, self._read_type)]),
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
            column = table.column(name)
            if len(column) != len(values) or column.null_count or column.type != self._read_type:
                return None
            return pa.concat_arrays(column.chunks)
        except (pa.ArrowException, UnicodeDecodeError):
            return None

    def _refused_by_msgspec(self, values: pa.Array, suspects: np.ndarray) -> np.ndarray:
        if self._lax is None:
            return np.ones(len(values), np.bool_)
        decode = self._lax.decode
        found = suspects.copy()
        for at, value in enumerate(values.to_pylist()):
            if not found[at]:
                try:
                    decode(value)
                except (msgspec.MsgspecError, RecursionError, ValueError):
                    found[at] = True
        return found


def _suspects(values: pa.Array) -> np.ndarray:
    """Return the values that pyarrow.json takes and the rule may refuse: they are no UTF-8, have constants like NaN, or
    are nested deeply.
    """
    found = np.zeros(len(values), np.bool_)
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        found |= [not _is_utf8(value) for value in values.to_pylist()]
    found |= pc.match_substring_regex(values, "NaN|Inf").to_numpy(zero_copy_only=False)
    openers = pc.add(pc.count_substring(values, b"{"), pc.count_substring(values, b"["))
    found |= pc.greater(openers, VALUE_LEVELS_MAX).to_numpy(zero_copy_only=False)
    return found


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def positions(at: np.ndarray, rows: int) -> pa.Array:
    """Return for each of ``rows`` its place in ``at``, or null."""
    places = np.full(rows, -1, np.int32)
    places[at] = np.arange(len(at), dtype=np.int32)
    return pa.array(places, mask=places < 0)


def _read_type(conversion: Conversion) -> pa.DataType:
    """Return the type that pyarrow.json reads: times are texts or numbers then, so that a bad one refuses no chunk."""
    if conversion.word == "struct":
        return pa.struct([pa.field(name, _read_type(inner)) for name, inner in conversion.fields])
    if conversion.element is not None:
        return pa.list_(pa.field("element", _read_type(conversion.element)))
    if conversion.word in _TEXT_WORDS:
        return pa.string()
    return pa.int64() if conversion.word in EPOCH_MICROS else conversion.type


def _lax_type(conversion: Conversion) -> Any:
    """Return a type of msgspec that refuses most values that do not fit, and none that do."""
    word = conversion.word
    if word == "struct":
        names = {f"f{number}": name for number, (name, _) in enumerate(conversion.fields)}
        fields = [
            (field, _lax_type(inner) | None, None) for field, (_, inner) in zip(names, conversion.fields, strict=True)
        ]
        return msgspec.defstruct("Fields", fields, rename=names, gc=False)
    if conversion.element is not None:
        return list[_lax_type(conversion.element) | None]  # type: ignore[misc]
    if word == "bigint" or word in EPOCH_MICROS:
        return int
    if word == "decimal":
        return int | float | str
    return {"boolean": bool, "double": float}.get(word, str)


# ---- from what was read to the types of columns ---------------------------------------------------------------------


def _converted(array: pa.Array, conversion: Conversion) -> tuple[pa.Array, np.ndarray]:
    """Return the array in the type of the conversion, and which of its elements do not fit."""
    word = conversion.word
    if word == "struct":
        return _converted_struct(array, conversion)
    if conversion.element is not None:
        return _converted_list(array, conversion)
    if word == "timestamp":
        return read_timestamps(array)
    if word == "date":
        return read_dates(array)
    if word in EPOCH_MICROS:
        return _converted_epoch(array, EPOCH_MICROS[word])
    if word == "double":
        return array, _mask(pc.is_inf(array))
    if word == "decimal":
        return array, _beyond_digits(array, conversion)
    return array, np.zeros(len(array), np.bool_)


def _converted_struct(array: pa.StructArray, conversion: Conversion) -> tuple[pa.Array, np.ndarray]:
    children = []
    bad = np.zeros(len(array), np.bool_)
    for number, (_, inner) in enumerate(conversion.fields):
        child, bad_children = _converted(array.field(number), inner)
        children.append(child)
        bad |= bad_children
    missing = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(conversion.type), mask=missing), bad


def _converted_list(array: pa.ListArray, conversion: Conversion) -> tuple[pa.Array, np.ndarray]:
    assert conversion.element is not None
    # The elements are those of the lists that are there, one after the other.
    elements, bad_elements = _converted(array.flatten(), conversion.element)
    bad = np.zeros(len(array), np.bool_)
    bad[pc.list_parent_indices(array).to_numpy()[bad_elements]] = True
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = np.concatenate(([0], np.cumsum(lengths.to_numpy(zero_copy_only=False)))).astype(np.int32)
    missing = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), elements, type=conversion.type, mask=missing), bad


def _converted_epoch(array: pa.Array, micros: int) -> tuple[pa.Array, np.ndarray]:
    least, most = -(-MICROS_MIN // micros), MICROS_MAX // micros
    bad = _mask(pc.or_(pc.less(array, least), pc.greater(array, most)))
    within = pc.if_else(pa.array(bad), pa.scalar(0, pa.int64()), array) if bad.any() else array
    return pc.multiply(within, micros).view(TIMESTAMP), bad


def _beyond_digits(array: pa.Array, conversion: Conversion) -> np.ndarray:
    """Return which decimals have too many digits: pyarrow.json counts digits before it adds zeros for the scale."""
    most = Decimal((0, (9,) * conversion.precision, -conversion.scale))
    greatest, least = pa.scalar(most, array.type), pa.scalar(most.copy_negate(), array.type)
    return _mask(pc.or_(pc.greater(array, greatest), pc.less(array, least)))


def _mask(array: pa.Array) -> np.ndarray:
    """Return where a boolean array is true."""
    return np.asarray(pc.fill_null(array, fill_value=False))
