"""Checks, in a task of each evaluation, that a DataFrame may read the newest version of a topic's table.

Delta reads that version without checking two things. A table that was deleted and created again at the same path is a
later version to it, and so is one to which another writer has appended rows. Which foreign files count as history was
decided when the DataFrame was made. So a later commit of another writer that changed records is an error, and so is a
key compaction that removed records from the DataFrame's ranges. Rolls and other jobs are not.

This module is sent to the executors by value, so it imports only the standard library, pyarrow and what is sent along.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from logstore.spark.worker import one_line_errors

#: Settings of a session by which a scan silently leaves records out, and the values that do. Delta does not pass on any
#: option of a read that would turn them off.
_LOSSY_SETTINGS = {
    "spark.sql.files.ignoreCorruptFiles": re.compile("true", re.IGNORECASE),
    "spark.sql.files.ignoreMissingFiles": re.compile("true", re.IGNORECASE),
    "spark.databricks.delta.stalenessLimit": re.compile(r".*[1-9].*"),
}
_FIRST_COMMIT = f"{0:020}.json"
#: The operation of the job that keeps the latest record of each key.
_COMPACTION = "key-compaction"
#: A segment's partition and range; names of earlier releases have no end.
_SEGMENT = re.compile(r"partition=(\d+)/(\d{20})-(?:(\d{20})-)?")


class HistoryReadError(Exception):
    """Raised if the topic of a DataFrame was deleted, created again, or changed by another writer since it was made."""


@dataclass(frozen=True)
class KnownHistory:
    """The table that a DataFrame was made from: ``uri`` is ``TableFiles.uri``, ``version`` the newest one then.

    ``has_refused_files`` is set if it had foreign files whose rows are not in the log. Our keys in a commit's
    ``commitInfo`` begin with ``own_prefix``. ``ranges`` are what a DataFrame reads of the newest version, as partition,
    start and end; they are empty for one that has chosen its files.
    """

    topic: str
    topic_id: str
    uri: str
    version: int
    has_refused_files: bool
    own_prefix: str
    ranges: tuple[tuple[int, int, int], ...] = ()


def history_check(known: KnownHistory) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that yields no rows, or raises HistoryReadError."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line_errors():
            for _ in batches:
                _require_whole_scans()
                if why := changed(known):
                    raise HistoryReadError(f"{why} since this DataFrame was made; make the DataFrame again")
        yield from ()

    return check


def _require_whole_scans() -> None:
    """Raise HistoryReadError if this evaluation's session lets scans leave records out; a task knows its settings."""
    from pyspark import TaskContext

    task = TaskContext.get()
    for name, lossy in _LOSSY_SETTINGS.items():
        value = task.getLocalProperty(name) if task else None
        if value is not None and lossy.fullmatch(value):
            raise HistoryReadError(
                f"{name} is {value}: Spark would silently leave out records of the topic. "
                f'spark.conf.unset("{name}"), or read with format("logstore")'
            )


def changed(known: KnownHistory) -> str | None:
    """Return why the DataFrame may not read the newest version, or None if it may."""
    found = table_id(known.uri)
    if found != known.topic_id:
        return f"topic {known.topic} was deleted{' and made again' if found else ''}"
    return changed_records(known)


def changed_records(known: KnownHistory) -> str | None:
    """Return, for a table that may be gone, the first commit since then that changed records which are read."""
    import json

    import pyarrow.fs

    storage, table = pyarrow.fs.FileSystem.from_uri(known.uri)
    log = f"{table}/_delta_log"
    files = storage.get_file_info(pyarrow.fs.FileSelector(log, allow_not_found=True))
    versions = sorted(int(file.base_name[:20]) for file in files if re.fullmatch(r"[0-9]{20}\.json", file.base_name))
    for version in range(known.version + 1, max(versions, default=0) + 1):
        try:
            with storage.open_input_stream(f"{log}/{version:020}.json", compression=None) as entry:
                actions = [json.loads(line) for line in entry.read().splitlines()]
        except FileNotFoundError:
            return f"topic {known.topic}: the Delta log no longer says who changed the table"
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if f"{known.own_prefix}commit_id" in info:
            if _took_records(known, info, actions):
                return f"topic {known.topic}: key compaction removed records (version {version})"
            continue
        changes = [action.get("add") or action.get("remove") for action in actions]
        # A commit that only rewrote rows (OPTIMIZE) mixes those of refused files with the others.
        if any(file and (known.has_refused_files or file.get("dataChange", True)) for file in changes):
            cause = f"{info.get('operation')} in version {version}"
            return f"topic {known.topic}: another writer changed the table ({cause})"
    return None


def _took_records(known: KnownHistory, info: dict[str, Any], actions: Sequence[dict[str, Any]]) -> bool:
    """Return True if our commit is a key compaction that removed records from the DataFrame's ranges."""
    counts = [info.get(f"{known.own_prefix}{side}_records") for side in ("removed", "added")]
    if info.get(f"{known.own_prefix}operation") != _COMPACTION or counts[0] == counts[1]:
        return False
    return any(_is_in_ranges(known, action["remove"]["path"]) for action in actions if "remove" in action)


def _is_in_ranges(known: KnownHistory, path: str) -> bool:
    """Return True if a file may have records of the ranges, as may one whose name does not contain its range."""
    name = _SEGMENT.match(path)
    if name is None:
        return bool(known.ranges)
    partition, base, end = int(name[1]), int(name[2]), name[3]
    return any(p == partition and base < last and (end is None or first < int(end)) for p, first, last in known.ranges)


def table_id(uri: str) -> str | None:
    """Return the id of the Delta table at ``uri``, which is also the topic's id; None if there is no table.

    It stays the same as long as the table exists. The first commit contains it, and so does every checkpoint, without
    one of which the first commit is not removed.
    """
    import json

    import pyarrow.fs
    import pyarrow.parquet as pq

    storage, table = pyarrow.fs.FileSystem.from_uri(uri)
    log = f"{table}/_delta_log"
    try:
        with storage.open_input_stream(f"{log}/{_FIRST_COMMIT}", compression=None) as entry:
            actions = map(json.loads, entry.read().splitlines())
        return next((str(action["metaData"]["id"]) for action in actions if "metaData" in action), None)
    except FileNotFoundError:
        files = storage.get_file_info(pyarrow.fs.FileSelector(log, allow_not_found=True))
        checkpoints = [f.path for f in files if re.fullmatch(r".*\.checkpoint.*\.(parquet|json)", f.base_name)]
        for checkpoint in sorted(checkpoints, reverse=True):
            if checkpoint.endswith(".json"):  # a V2 checkpoint
                with storage.open_input_stream(checkpoint, compression=None) as entry:
                    actions = map(json.loads, entry.read().splitlines())
                return next((str(action["metaData"]["id"]) for action in actions if "metaData" in action), None)
            with storage.open_input_file(checkpoint) as source:
                metadata = pq.ParquetFile(source).read(columns=["metaData.id"]).column("metaData").drop_null()
            if len(metadata):
                return str(metadata[0].as_py()["id"])
    return None
