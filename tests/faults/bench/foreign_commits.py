"""Commits of other writers to a topic's table, with delta-rs or by hand, and the commits that undo them.

Blocking; each goes on until it has won against the commits of the store. Versions are those of the table.
"""

import datetime as dt
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from logstore.records.schema import TABLE_SCHEMA

_PATIENCE_S = 30.0
Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Removal:
    """A commit that took files out of the table: the last of them has records of ``partition`` from ``offset`` on."""

    version: int
    partition: int
    offset: int


def newest(table: Path) -> int:
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


def entry_path(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def overwrite_entry(entry: Path) -> None:
    """Version N is now another's: a commit that changes nothing, renamed over ours."""
    info = {"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES", "operationParameters": {}}}
    foreign = entry.with_name(".foreign.tmp")
    foreign.write_text(json.dumps(info) + "\n")
    foreign.rename(entry)


def restore(table: Path, back: int, lowest: int) -> Removal | None:
    """RESTORE to the version ``back`` before the newest, ``lowest`` at least; None if that took nothing away."""
    before = newest(table)
    _insist(lambda: DeltaTable(table).restore(max(lowest, newest(table) - back)))
    return _removal(table, before, "RESTORE")


def empty(table: Path) -> Removal | None:
    """An overwrite with no rows; None if that took nothing away."""
    before = newest(table)
    _insist(lambda: write_deltalake(table, TABLE_SCHEMA.empty_table(), mode="overwrite"))
    return _removal(table, before, "WRITE")


def missing(table: Path, removal: Removal) -> Iterator[tuple[int, int]]:
    """Partition and last offset of each file that a commit took away and no file has records of now."""
    taken = [
        _add_of(table, a["remove"]["path"], removal.version) for a in _actions(table, removal.version) if "remove" in a
    ]
    active = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    for add in taken:
        if not any(_overlap(file, add) for file in active):
            yield int(add["partitionValues"]["partition"]), _stats(add)["maxValues"]["offset"]


def rewrite(table: Path, how: str) -> None:
    optimize = DeltaTable(table).optimize
    _insist(optimize.compact if how == "optimize" else lambda: DeltaTable(table).optimize.z_order(["value"]))


def append(table: Path, partition: int, offset: int) -> None:
    """A row at an offset, by a writer that knows nothing of them."""
    row = {"offset": offset, "timestamp": dt.datetime.now(dt.UTC), "value": b'"foreign"', "partition": partition}
    rows = pa.Table.from_pylist([row], TABLE_SCHEMA)
    _insist(lambda: write_deltalake(table, rows, mode="append"))


def set_property(table: Path, name: str, value: str) -> None:
    _insist(lambda: DeltaTable(table).alter.set_table_properties({name: value}, raise_if_not_exists=False))


def _insist(write: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            write()
        except DeltaError:  # the store's commits were faster
            if time.monotonic() > deadline:
                raise
        else:
            return


def _removal(table: Path, before: int, operation: str) -> Removal | None:
    for version in range(newest(table), before, -1):
        actions = list(_actions(table, version))
        if any(action.get("commitInfo", {}).get("operation") == operation for action in actions):
            adds = [_add_of(table, action["remove"]["path"], version) for action in actions if "remove" in action]
            if not adds:
                return None
            last = max(adds, key=lambda add: _stats(add)["minValues"]["offset"])
            return Removal(version, int(last["partitionValues"]["partition"]), _stats(last)["minValues"]["offset"])
    raise AssertionError(f"no {operation} in {table} after version {before}")


def _actions(table: Path, version: int) -> Iterator[Action]:
    return map(json.loads, entry_path(table, version).read_text().splitlines())


def _add_of(table: Path, path: str, before: int) -> Action:
    for version in range(before - 1, -1, -1):
        for action in _actions(table, version):
            if action.get("add", {}).get("path") == path:
                add: Action = action["add"]
                return add
    raise AssertionError(f"{table}: {path} was never added before version {before}")


def _stats(add: Action) -> Action:
    stats: Action = json.loads(add["stats"])
    return stats


def _overlap(file: Action, add: Action) -> bool:
    stats = _stats(add)
    return (
        file["partition.partition"] == int(add["partitionValues"]["partition"])
        and file["min.offset"] <= stats["maxValues"]["offset"]
        and file["max.offset"] >= stats["minValues"]["offset"]
    )
