"""Commits of other writers to a topic's table, with delta-rs or by hand, and the commits that undo them.

All functions block; each repeats its commit until it has won against the store's commits. Versions are the table's.
"""

import datetime as dt
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from logstore.records.schema import TABLE_SCHEMA
from logstore.segments.names import known_segment_name
from tests.faults.bench.records import rows_of_table

_PATIENCE_S = 30.0
_COLUMNS = ["offset", "timestamp", "headers", "key", "value"]
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
    """Replace version N by another writer's: a commit that changes nothing, renamed over the store's."""
    info = {"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES", "operationParameters": {}}}
    foreign = entry.with_name(".foreign.tmp")
    foreign.write_text(json.dumps(info) + "\n")
    foreign.rename(entry)


def restore(table: Path, back: int, lowest: int) -> Removal | None:
    """RESTORE to ``back`` versions before the newest, at least to ``lowest``; return None if nothing was removed."""
    before = newest(table)
    _insist(lambda: DeltaTable(table).restore(max(lowest, newest(table) - back)))
    return _removal(table, _made(table, before, "RESTORE"))


def empty(table: Path) -> Removal | None:
    """Overwrite the table with no rows; return None if that removed nothing."""
    before = newest(table)
    _insist(lambda: write_deltalake(table, TABLE_SCHEMA.empty_table(), mode="overwrite"))
    return _removal(table, _made(table, before, "WRITE"))


def missing(table: Path, removal: Removal) -> Iterator[tuple[int, int]]:
    """Yield partition and last offset of each file that a commit removed and whose records are in no file now."""
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


def records(table: Path, partition: int, start: int, which: float, every: int) -> list[list[Any]]:
    """Return one record in ``every`` of one file, from the offset ``start`` on, in the form of ``rows_of_table``.

    Tombstones are left out.
    """
    delta = DeltaTable(table)
    files = sorted(
        (file["min.offset"], file["max.offset"])
        for file in pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        if file["partition.partition"] == partition and file["max.offset"] >= start
    )
    if not files:
        return []
    low, high = files[int(which * len(files))]
    offset = pc.field("offset")
    wanted = (pc.field("partition") == partition) & (offset >= max(low, start)) & (offset <= high)
    rows = delta.to_pyarrow_dataset().to_table(_COLUMNS, filter=wanted & pc.field("value").is_valid())
    return sorted(rows_of_table(rows))[::every]


def delete(table: Path, partition: int, offsets: Sequence[int]) -> int | None:
    """Delete the records; return the version of the commit, or None if there was nothing to delete.

    ``update`` and ``merge`` return the same.
    """
    return _state(table, lambda delta, mark: delta.delete(_of(partition, offsets), commit_properties=mark))


def update(table: Path, partition: int, offsets: Sequence[int], value: str) -> int | None:
    values = {"value": f"CAST('{value}' AS BYTEA)"}
    return _state(
        table, lambda delta, mark: delta.update(values, predicate=_of(partition, offsets), commit_properties=mark)
    )


def merge(table: Path, partition: int, values: Mapping[int, bytes | None]) -> int | None:
    """Set the values of records; delete those whose value is None."""
    source = pa.table(
        {
            "partition": pa.array([partition] * len(values), pa.int32()),
            "offset": pa.array(values.keys(), pa.int64()),
            "value": pa.array(values.values(), pa.binary()),
        }
    )
    return _state(
        table,
        lambda delta, mark: (
            delta.merge(
                source,
                's."offset" = t."offset" AND s.partition = t.partition',
                source_alias="s",
                target_alias="t",
                commit_properties=mark,
            )
            .when_matched_delete("s.value IS NULL")
            .when_matched_update({"value": "s.value"})
            .execute()
        ),
    )


def restore_to(table: Path, version: int) -> tuple[int, Removal | None]:
    """RESTORE; return the version it made, and what it removed: None if only other writers have committed since."""
    before = newest(table)
    _insist(lambda: DeltaTable(table).restore(version))
    made = _made(table, before, "RESTORE")
    return made, _removal(table, made)


def is_all_ours(table: Path) -> bool:
    """Return whether the table has no file of another writer."""
    return all(known_segment_name(path) for path in pa.table(DeltaTable(table).get_add_actions())["path"].to_pylist())


def append(table: Path, partition: int, offset: int) -> None:
    """Append a row at an offset, as a writer that does not know offsets."""
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


def _of(partition: int, offsets: Sequence[int]) -> str:
    return f'partition = {partition} AND "offset" IN ({", ".join(map(str, offsets))})'


def _state(table: Path, statement: Callable[[DeltaTable, CommitProperties], object]) -> int | None:
    before, mark = newest(table), uuid.uuid4().hex
    properties = CommitProperties(custom_metadata={"bench": mark})
    _insist(lambda: statement(DeltaTable(table), properties))
    for version in range(before + 1, newest(table) + 1):
        if any(action.get("commitInfo", {}).get("bench") == mark for action in _actions(table, version)):
            return version
    return None


def _made(table: Path, before: int, operation: str) -> int:
    """Return the newest version with this operation."""
    for version in range(newest(table), before, -1):
        if any(action.get("commitInfo", {}).get("operation") == operation for action in _actions(table, version)):
            return version
    raise AssertionError(f"no {operation} in {table} after version {before}")


def _removal(table: Path, version: int) -> Removal | None:
    removed = [action["remove"]["path"] for action in _actions(table, version) if "remove" in action]
    adds = [_add_of(table, path, version) for path in removed]
    if not adds:
        return None
    last = max(adds, key=lambda add: _stats(add)["minValues"]["offset"])
    return Removal(version, int(last["partitionValues"]["partition"]), _stats(last)["minValues"]["offset"])


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
    if file["min.offset"] is None:  # the file has no rows
        return False
    stats = _stats(add)
    return (
        file["partition.partition"] == int(add["partitionValues"]["partition"])
        and file["min.offset"] <= stats["maxValues"]["offset"]
        and file["max.offset"] >= stats["minValues"]["offset"]
    )
