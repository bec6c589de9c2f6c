"""Commits of other writers to a topic's table, with delta-rs or by hand, and the commits that undo them.

Blocking; each goes on until it has won against the commits of the store. Versions are those of the table.
"""

import datetime as dt
import json
import time
import uuid
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


def put_back(table: Path, removal: Removal) -> None:
    """Files that a commit took away are added again, in the place of all that holds offsets of theirs by now."""
    taken = {action["remove"]["path"] for action in _actions(table, removal.version) if "remove" in action}
    undone = {action["add"]["path"] for action in _actions(table, removal.version) if "add" in action}
    adds = [_add_of(table, path, removal.version) for path in sorted(taken)]

    def actions() -> list[Action]:
        active = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
        removes = [
            file
            for file in active
            if file["path"] not in taken and (file["path"] in undone or any(_overlap(file, add) for add in adds))
        ]
        kept = {file["path"] for file in active}
        return [
            *({"remove": _remove_action(file)} for file in removes),
            *({"add": {**add, "dataChange": True}} for add in adds if add["path"] not in kept),
        ]

    _commit(table, actions)


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


def _commit(table: Path, actions: Callable[[], list[Action]]) -> None:
    info = {"commitInfo": {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE", "operationParameters": {}}}
    built = table / "_delta_log" / f".{uuid.uuid4().hex}.tmp"
    while True:
        version = newest(table) + 1
        built.write_text("".join(json.dumps(action) + "\n" for action in (info, *actions())))
        try:
            entry_path(table, version).hardlink_to(built)
        except FileExistsError:
            continue
        finally:
            built.unlink()
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


def _remove_action(file: Action) -> Action:
    return {
        "path": file["path"],
        "deletionTimestamp": time.time_ns() // 1_000_000,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {"partition": str(file["partition.partition"])},
        "size": file["size_bytes"],
    }
