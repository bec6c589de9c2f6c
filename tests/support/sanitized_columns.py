"""Runs in a separate process, with the kernel that was compiled with sanitizers: ``test_sanitized.py``.

    python -m tests.support.sanitized_columns LIBRARY fuzz COUNT   # prints how many values fit, do not, and are left
    python -m tests.support.sanitized_columns LIBRARY read         # reads behind the end of a value
    python -m tests.support.sanitized_columns LIBRARY write        # writes behind the end of a column

All memory of the kernel comes from malloc, each buffer alone and of its exact size: an access one byte too far is
detected. Some of the values are converted alone, so that they have no neighbour whose bytes could be read.
"""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from logstore.records.columns import native
from logstore.records.columns.field_tree import FieldNode, field_tree
from logstore.records.columns.native import UNSURE, Kernel, KernelConverter
from tests.support.column_values import ODD_SCHEMA, mutated, odd_values, random_schema, random_value, schema_of
from tests.support.sanitized_codec import copied, exact

_ALONE = 500
_TOGETHER = 20_000


def zeros(sizes: Sequence[int]) -> list[pa.Buffer]:
    """Return memory of zeros, each part alone."""
    buffers = [exact(size) for size in sizes]
    for buffer in buffers:
        ctypes.memset(buffer.address, 0, buffer.size)
    return buffers


def array_of(values: Sequence[bytes]) -> pa.Array:
    """Return a binary array in memory of exact sizes."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32).tobytes()
    return pa.Array.from_buffers(pa.binary(), len(values), [None, copied(offsets), copied(b"".join(values))])


def groups(random: Random) -> Iterator[tuple[FieldNode, list[bytes]]]:
    """Yield trees of fields with values for each, without end."""
    odd = field_tree(schema_of(ODD_SCHEMA))
    while True:
        yield odd, list(odd_values(random, _ALONE + _TOGETHER))
        root = field_tree(random_schema(random))
        values = [random_value(random, root.conversion) for _ in range(_ALONE + _TOGETHER // 20)]
        yield root, [mutated(random, value) if random.random() < 0.5 else value for value in values]


def fuzz(kernel: Kernel, count: int) -> tuple[int, int, int]:
    fit = misfit = left = 0
    for root, values in groups(Random(1)):
        converter = KernelConverter(kernel, root)
        for group in (*([value] for value in values[:_ALONE]), values[_ALONE:]):
            rows, codes = converter.convert(array_of(group))
            rows.validate(full=True)
            fit += int(np.sum(codes == 0))
            misfit += int(np.sum(codes > 0))
            left += int(np.sum(codes == UNSURE))
        if fit + misfit + left >= count:
            return fit, misfit, left
    raise AssertionError("the groups have no end")


def read_too_far(kernel: Kernel) -> None:
    good = copied(b'{"s":"')
    lying = pa.foreign_buffer(good.address, good.size + 8, base=good)
    offsets = copied(np.array([0, lying.size], np.int32).tobytes())
    array = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, lying])
    KernelConverter(kernel, field_tree(schema_of("s string"))).convert(array)


def write_too_far(kernel: Kernel) -> None:
    converter = KernelConverter(kernel, field_tree(schema_of("i bigint")))
    native._WIDTHS["bigint"] = 4
    converter.convert(array_of([b'{"i":1}', b'{"i":2}']))


def main(library: str, what: str, count: str = "0") -> None:
    native._zeros = zeros
    kernel = Kernel(Path(library))
    if what == "fuzz":
        print(*fuzz(kernel, int(count)))
    else:
        {"read": read_too_far, "write": write_too_far}[what](kernel)


if __name__ == "__main__":
    main(*sys.argv[1:])
