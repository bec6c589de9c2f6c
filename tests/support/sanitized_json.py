"""Runs in a separate process, with the scanner that was compiled with sanitizers: ``tests/unit/test_sanitized.py``.

    python -m tests.support.sanitized_json LIBRARY fuzz     # prints how many bodies were taken and not
    python -m tests.support.sanitized_json LIBRARY read     # reads behind the end of a body
    python -m tests.support.sanitized_json LIBRARY write    # writes behind the end of a column

All memory that the scanner writes, and each body, comes from malloc, each buffer alone and of its exact size: an access
one byte too far is detected.
"""

import sys
from pathlib import Path
from random import Random

import numpy as np

from logstore.records import column_memory, native
from logstore.records.column_memory import ByteColumn
from logstore.records.murmur2 import murmur2_column
from logstore.records.native import ANY_PARTITION, Native, Spans
from logstore.records.scanned import scan_json, scan_small, small_columns
from tests.support.json_bodies import body
from tests.support.sanitized_codec import copied, exact

_BODIES = 20_000


class _Body:
    """A body as ctypes takes it, with guarded ends: one more byte of Python's bytes may be read, a zero."""

    def __init__(self, data: bytes) -> None:
        self._copy = copied(data)
        self._as_parameter_ = int(self._copy.address)

    def __len__(self) -> int:
        return len(self._copy)


def fuzz(library: Native) -> tuple[int, int]:
    random = Random(3)
    taken = other = 0
    for _ in range(_BODIES):
        whole = body(random)
        string_keys = random.random() < 0.5
        found = scan_json(_Body(whole), string_keys=string_keys)  # type: ignore[arg-type]
        spans = Spans(random.randrange(1, 4), random.randrange(3))
        small = scan_small(_Body(whole), spans, string_keys=string_keys, partitions=ANY_PARTITION)  # type: ignore[arg-type]
        if small is not None:
            small.body = whole
            small_columns([small, small], string_keys=string_keys).batch.validate(full=True)
        if found is None:
            other += 1
            continue
        taken += 1
        found.batch.validate(full=True)
        found.split(random.choice((1, 4, 1000)), 0)
        murmur2_column(found.batch.column("key"))
        rows = found.num_rows
        library.places_text(np.full(rows, 2**31 - 1, np.int32), np.full(rows, 2**63 - 1, np.int64))
    return taken, other


def read_too_far(library: Native) -> None:
    whole = b'{"records":[{"value":"x"}]}'
    cut, spans = copied(whole[:-1]), Spans(1, 0)
    rules = native._RULES.pack(1, 1, 0, 0, *ANY_PARTITION, 0, 0)
    library._keeping.scan(cut.address, len(whole), rules, spans.packed, spans.sums_at)


def write_too_far(library: Native) -> None:
    whole = b'{"records":[{"value":"x"},{}]}'
    spans, key, value = Spans(2, 0), ByteColumn(1, 0, 1), ByteColumn(1, 3, 0)
    assert library.scan(whole, spans, string_keys=False) == 2
    columns = native._COLUMNS.pack(2, 0, *key.target, *value.target, 0, 0, *native._NO_HEADER_COLUMNS)
    library._keeping.write_columns(whole, spans.packed, None, columns)


def main(path: str, what: str) -> None:
    column_memory.allocate = exact
    library = Native(Path(path))
    native.NATIVE = library  # type: ignore[misc]
    if what == "fuzz":
        print(*fuzz(library))
    else:
        {"read": read_too_far, "write": write_too_far}[what](library)


if __name__ == "__main__":
    main(*sys.argv[1:])
