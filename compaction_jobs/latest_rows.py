"""Finds the rows of a partition that key compaction keeps, in this process, from keys alone: no value is read.

As in Kafka, the keys of dirty files give a map of each key's last row. A row of a dirty file stays if it is its key's
last. A row of a clean file stays if its key is not in the map, because an earlier compaction left one row of each key
there. So a run with few dirty records costs a map of these and one look at the other keys.

Memory: the map holds each dirty key once, and is bounded (``KeysDoNotFitError``); besides, the keys of a few row groups
and a number for each row that stays.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.limits import MIB
from logstore.segments.joining import Rows, Source, other_count
from logstore.segments.reader import read_row_group, row_groups
from logstore.table_files import TableFiles

#: Bytes of distinct keys, with a row number for each, that the map may hold.
KEY_BYTES_MAX = 512 * MIB
_ROW_BYTES = 16
#: Rows whose keys are merged into the map, or looked up in it, at once: the cost of each time grows with the map.
_FOLD_ROWS_MIN = 1 << 19
_UNITS_IN_FLIGHT = 8

T = TypeVar("T")


class KeysDoNotFitError(Exception):
    """Raised if the dirty keys of a partition take more than ``KEY_BYTES_MAX``."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows that stay of each source of a partition, rising, and numbered as in ``Source.first_row``."""

    of_source: list[Rows]

    @property
    def counts(self) -> list[int]:
        return [len(rows) for rows in self.of_source]


def find_kept(
    files: TableFiles,
    clean: Sequence[Source],
    dirty: Sequence[Source],
    log_start: int,
    pool: Executor,
) -> KeptRows:
    """Find the rows that stay of ``clean`` sources, then of ``dirty`` ones, which come after them.

    Raises KeysDoNotFitError, CorruptionError, OSError.
    """
    last = _LastRows(KEY_BYTES_MAX)
    for keys, rows in _map(pool, lambda unit: _last_of_unit(files, unit, log_start), _units(files, dirty, 1)):
        last.add(keys, rows)
    table = last.folded()
    winners = np.sort(table.column("row").to_numpy())
    keys = table.column("key")
    rows_at_once = max(_FOLD_ROWS_MIN, len(winners))
    looked_up = _map(pool, lambda unit: _not_in(files, unit, log_start, keys), _units(files, clean, rows_at_once))
    of_source = _by_source(clean, np.concatenate([_no_rows(), *looked_up]))
    return KeptRows(of_source + _by_source(dirty, winners))


def _by_source(sources: Sequence[Source], rows: Rows) -> list[Rows]:
    bounds = [np.searchsorted(rows, [source.first_row, source.first_row + source.num_records]) for source in sources]
    return [rows[low:high] for low, high in bounds]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Row groups that are processed together: source, index and first row of each."""

    groups: tuple[tuple[Source, int, int], ...]


def _units(files: TableFiles, sources: Sequence[Source], rows_min: int) -> Iterator[_Unit]:
    groups: list[tuple[Source, int, int]] = []
    held = 0
    for source in sources:
        row = source.first_row
        for group in row_groups(files, source.path):
            groups.append((source, group.index, row))
            row += group.num_rows
            held += group.num_rows
            if held >= rows_min:
                yield _Unit(tuple(groups))
                groups, held = [], 0
        if row - source.first_row != source.num_records:
            raise other_count(files, source, row - source.first_row)
    if groups:
        yield _Unit(tuple(groups))


def _map(pool: Executor, function: Callable[[_Unit], T], units: Iterator[_Unit]) -> Iterator[T]:
    """Yield results as ``pool.map`` does, with few units in flight, which bounds memory."""
    flying: deque[Future[T]] = deque()
    try:
        for unit in units:
            flying.append(pool.submit(function, unit))
            if len(flying) > _UNITS_IN_FLIGHT:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()
    finally:
        for future in flying:
            future.cancel()


def _keys_of(files: TableFiles, source: Source, index: int, row: int, log_start: int) -> tuple[pa.BinaryArray, Rows]:
    """Return the keys of a row group, and their rows, from the log start offset on."""
    batch = read_row_group(files, source.path, index, ["offset", "key"])
    keys = batch.column("key")
    rows = np.arange(row, row + batch.num_rows, dtype=np.int64)
    keep = batch.column("offset").to_numpy() >= log_start
    if keys.null_count:
        keep &= keys.is_valid().to_numpy(zero_copy_only=False)
    return (keys, rows) if keep.all() else (keys.filter(pa.array(keep)), rows[keep])


def _last_of_unit(files: TableFiles, unit: _Unit, log_start: int) -> tuple[pa.BinaryArray, Rows]:
    """Return the distinct keys of a unit of one row group, and the last row of each."""
    ((source, index, row),) = unit.groups
    keys, rows = _keys_of(files, source, index, row, log_start)
    encoded = keys.dictionary_encode()
    last = np.empty(len(encoded.dictionary), dtype=np.int64)
    # If a key has several rows, the last one is written last.
    last[encoded.indices.to_numpy()] = rows
    return encoded.dictionary, last


def _not_in(files: TableFiles, unit: _Unit, log_start: int, keys: pa.ChunkedArray) -> Rows:
    """Return the rows of a unit whose key is not in ``keys``."""
    found = [_keys_of(files, *group, log_start) for group in unit.groups]
    overwritten = pc.is_in(pa.chunked_array([chunk for chunk, _ in found], pa.binary()), value_set=keys)
    rows = np.concatenate([rows for _, rows in found])
    stay: Rows = rows[~overwritten.to_numpy()]
    return stay


class _LastRows:
    """The last row of each key that was added."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[pa.Table] = []
        self._folded_rows = self._added_rows = 0

    def add(self, keys: pa.BinaryArray, rows: Rows) -> None:
        """Add ``keys``, each once, with their rows. Raises KeysDoNotFitError."""
        self._parts.append(pa.table({"key": keys, "row": rows}))
        self._added_rows += len(rows)
        if self._added_rows >= max(self._folded_rows, _FOLD_ROWS_MIN):
            self._fold()

    def folded(self) -> pa.Table:
        """Return the columns ``key`` and ``row``. Raises KeysDoNotFitError."""
        if self._added_rows:
            self._fold()
        return self._parts[0] if self._parts else pa.table({"key": pa.array([], pa.binary()), "row": _no_rows()})

    def _fold(self) -> None:
        table = self._parts[0]
        if len(self._parts) > 1:
            # One thread is faster than several, as long as the map more or less fits into the processor's caches.
            folded = pa.concat_tables(self._parts).group_by("key", use_threads=False).aggregate([("row", "max")])
            table = folded.rename_columns(["key", "row"])
            self._parts = [table]
        self._folded_rows, self._added_rows = len(table), 0
        if table.nbytes + _ROW_BYTES * len(table) > self._bytes_max:
            raise KeysDoNotFitError


def _no_rows() -> Rows:
    return np.empty(0, dtype=np.int64)
