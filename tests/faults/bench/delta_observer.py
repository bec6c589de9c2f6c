"""An independent reader of the Delta tables: delta-rs and Polars in turns, and the hash of every log entry.

``python -m tests.faults.bench.delta_observer DATA HISTORY`` follows all topics below DATA, one version after the other,
until its standard input is closed and it has seen them all. Its process shares nothing with the store but the files. It
trusts the Delta protocol alone: it takes the sealed offsets and the log start from the table's transactions.
"""

import argparse
import contextlib
import functools
import hashlib
import select
import sys
from collections.abc import Mapping
from operator import or_
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tests.faults.bench.history import Recorder
from tests.faults.bench.records import rows_of_table

READERS = ("delta-rs", "polars")
_PAUSE_S = 0.1
#: All rows are recorded once in this many versions, otherwise the rows since the last look.
_WHOLE_EVERY = 8
_ATTEMPTS = 20
#: No topic of the bench has this many partitions.
_PARTITIONS_MAX = 100
_COLUMNS = ["partition", "offset", "timestamp", "headers", "key", "value"]


def read_version(
    table_path: Path, version: int | None, *, reader: str, partitions: int, since: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """Read a plain reader's rows of one version (None: the newest), from ``since`` on, by partition and offset."""
    table = DeltaTable(table_path, version=version)
    partitions = max(partitions, _partitions_now(table))
    if since is not None:
        since = {partition: since.get(partition, 0) for partition in range(partitions)}
    rows = _with_polars(table, since) if reader == "polars" else _with_delta_rs(table, since)
    rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
    told: dict[str, Any] = {
        "version": table.version(),
        "sealed": _fact(table, "sealed", partitions),
        "log_start": _fact(table, "start", partitions),
        "cleaned": _fact(table, "cleaned", partitions),
        "bytes": _bytes(table),
    }
    if since is not None:
        told["from"] = {str(partition): offset for partition, offset in since.items()}
    return {**told, "rows": rows_of_table(rows)}


def _with_delta_rs(table: DeltaTable, since: Mapping[int, int] | None) -> pa.Table:
    wanted = [(pc.field("partition") == p) & (pc.field("offset") >= offset) for p, offset in (since or {}).items()]
    return table.to_pyarrow_dataset().to_table(_COLUMNS, filter=functools.reduce(or_, wanted) if wanted else None)


def _with_polars(table: DeltaTable, since: Mapping[int, int] | None) -> pa.Table:
    wanted = [(pl.col("partition") == p) & (pl.col("offset") >= offset) for p, offset in (since or {}).items()]
    frame = pl.scan_delta(table)
    rows = (frame.filter(functools.reduce(or_, wanted)) if wanted else frame).select(_COLUMNS).collect().to_arrow()
    # The types as pyarrow reads them: Polars has large and view types.
    binary = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = [pa.int32(), pa.int64(), rows["timestamp"].type, pa.list_(binary), pa.binary(), pa.binary()]
    return rows.cast(pa.schema(zip(_COLUMNS, types, strict=True)))


def committed_offsets(table_path: Path) -> dict[tuple[str, str], dict[str, int]]:
    """Return committed offsets by group and topic, as readers of storage alone see them: the latest row wins."""
    rows = DeltaTable(table_path).to_pyarrow_dataset().to_table().to_pylist()
    latest = {}
    for row in sorted(rows, key=lambda row: row["offset"]):
        latest[row["group"], row["topic"], row["topic_partition"]] = row["committed_offset"]
    found: dict[tuple[str, str], dict[str, int]] = {}
    for (group, topic, partition), offset in latest.items():
        if offset is not None:
            found.setdefault((group, topic), {})[str(partition)] = offset
    return found


def _fact(table: DeltaTable, name: str, partitions: int) -> dict[str, int]:
    return {str(p): table.transaction_version(f"logstore/{p}/{name}") or 0 for p in range(partitions)}


def _bytes(table: DeltaTable) -> dict[str, int]:
    files = (
        pa.table(table.get_add_actions(flatten=True)).group_by("partition.partition").aggregate([("size_bytes", "sum")])
    )
    return {str(row["partition.partition"]): row["size_bytes_sum"] for row in files.to_pylist()}


def partitions_of(table_path: Path) -> int:
    """Return the number of partitions at the table's creation: other writers may change the property."""
    return int(DeltaTable(table_path, version=0).metadata().configuration["logstore.partitions"])


def _partitions_now(table: DeltaTable) -> int:
    """Return the current number of a topic that has gained some; 0 if another writer has made the property nonsense."""
    text = table.metadata().configuration.get("logstore.partitions", "")
    return int(text) if text.isdecimal() and int(text) < _PARTITIONS_MAX else 0


class TableObserver:
    """One table: looks at each version once, and at each log entry whenever its file has changed."""

    def __init__(self, path: Path, recorder: Recorder) -> None:
        self.path = path
        self._log = path / "_delta_log"
        self._recorder = recorder
        self._next_version = 0
        self._failures = 0
        self._seen: dict[int, tuple[int, int, int]] = {}
        self._hashes: dict[int, str] = {}
        self._ends: dict[int, int] = {}

    def look(self) -> bool:
        """Look at the table; return whether there was something new."""
        versions = self._look_at_entries()
        if not versions or max(versions) < self._next_version:
            return False
        version = self._next_version = max(self._next_version, min(versions))
        reader = READERS[version % len(READERS)]
        before = self._stamps(version)
        try:
            partitions = partitions_of(self.path)
            since = self._ends if version % _WHOLE_EVERY else None
            told = read_version(self.path, version, reader=reader, partitions=partitions, since=since)
        except Exception as error:  # noqa: BLE001 - delta-rs and Polars raise what they like, Rust's panics too
            # After a power cut the log may hold entries that only a start of the store repairs.
            self._failures += 1
            if self._failures >= _ATTEMPTS:
                self._tell("delta", "info", version=version, error=f"{reader}: {error!r}"[:500])
                self._next_version, self._failures = version + 1, 0
            return True
        if self._stamps(version) != before:
            # Delta readers look at the log more than once: with an overwritten entry they would mix two tables.
            return True
        self._tell("delta", "ok", **told)
        self._ends = {int(p): max(end, self._ends.get(int(p), 0)) for p, end in told["sealed"].items()}
        self._next_version, self._failures = version + 1, 0
        return True

    def _stamps(self, version: int) -> list[tuple[str, int, int]]:
        """Return values that change when a log entry up to ``version`` is overwritten."""
        found = []
        for path in sorted(self._log.glob("*.json")):
            if path.stem.isdigit() and int(path.stem) <= version:
                with contextlib.suppress(FileNotFoundError):  # a power cut took it
                    stat = path.stat()
                    found.append((path.name, stat.st_ino, stat.st_mtime_ns))
        return found

    def _look_at_entries(self) -> list[int]:
        found = []
        # The newest come first: an older entry is then seen as the newest one's writer left it, or later.
        for path in sorted(self._log.glob("*.json"), reverse=True):
            if not path.stem.isdigit():
                continue
            version = int(path.stem)
            try:
                status = path.stat()
                key = (status.st_ino, status.st_size, status.st_mtime_ns)
                if self._seen.get(version) != key:
                    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
                    self._seen[version] = key
                    if self._hashes.get(version) != sha256:
                        if version in self._hashes:
                            # Other writers overwrote it: rows seen before may be missing now.
                            self._ends.clear()
                        self._hashes[version] = sha256
                        self._tell("entry", "ok", version=version, sha256=sha256)
            except FileNotFoundError:
                continue
            found.append(version)
        return found

    def _tell(self, op: str, phase: str, **fields: Any) -> None:
        self._recorder.tell("delta-observer", op, phase, topic=self.path.name, **fields)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("history", type=Path)
    given = parser.parse_args()
    observers: dict[str, TableObserver] = {}
    with Recorder(given.history) as recorder:
        news, ending = True, False
        while news or not ending:
            ending = bool(select.select([sys.stdin], [], [], _PAUSE_S)[0])
            # A directory with a dot in its name is a copy, or a topic that is in no history.
            for path in (p for p in (given.data / "topics").glob("[!_]*") if "." not in p.name):
                if path.name not in observers and (path / "_delta_log").is_dir():
                    observers[path.name] = TableObserver(path, recorder)
            news = sum(observer.look() for observer in observers.values()) > 0


if __name__ == "__main__":
    main()
