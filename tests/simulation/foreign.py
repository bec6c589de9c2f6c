"""Another writer of a simulated world's tables: OPTIMIZE, DELETE, UPDATE, and an overwrite that empties a table.

It is a program that knows nothing of the store. It reads a table with delta-rs, writes its own files, and builds the
commits itself, so that their names and bytes come from the seed. Its files are on its own disk, and are durable before
it commits.
"""

import asyncio
import contextlib
import itertools
import json
import urllib.parse
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from logstore.segments.names import known_segment_name
from tests.faults.bench.records import rows_of_table, stored
from tests.simulation.clients import CLIENT, Reader, TopicSpec
from tests.simulation.site import Log
from tests.support.faulty_filesystem import FaultyFileSystem

_LOOK_S = 0.3
File = dict[str, Any]


class Stranger(Reader):
    """Commits to tables, and continues when readers of the store get the result."""

    def __init__(self, *args: Any, data: Path, disk: FaultyFileSystem, **options: Any) -> None:
        super().__init__(*args, **options)
        self._data, self._disk = data, disk
        #: True if no further statement begins.
        self.is_ending = False

    async def run_statements(self, topics: Sequence[TopicSpec]) -> None:
        """Write until ``is_ending``."""
        for number in itertools.count():
            await asyncio.sleep(self.rng.uniform(1, 6))
            if self.is_ending:
                return
            # A power cut may have left a table that delta-rs cannot read until the store has repaired it.
            with contextlib.suppress(DeltaError, OSError, pa.ArrowInvalid):
                await self._write_to(self.rng.choice(topics), f"stated-{number}")

    async def _write_to(self, topic: TopicSpec, text: str) -> None:
        table = self._data / "topics" / topic.name
        files = _files(table)
        if not files:
            return
        match self.rng.choice(["optimize", "delete", "update", "empty"]):
            case "optimize":
                self._optimize(topic.name, table, files)
            case "empty" if not topic.compacted and all(known_segment_name(file["path"]) for file in files):
                await self._empty(topic.name, table, files)
            case "delete":
                await self._state(topic, table, files, None)
            case "update":
                await self._state(topic, table, files, text)

    # ---- statements -------------------------------------------------------------------------------------------------

    def _optimize(self, topic: str, table: Path, files: list[File]) -> None:
        """Merge the records of neighbouring files into one file."""
        file = self.rng.choice(files)
        partition = file["partition.partition"]
        chosen = [one for one in files if one["partition.partition"] == partition][: self.rng.randint(2, 6)]
        rows = pa.concat_tables([_read(table, one) for one in chosen]).sort_by("offset")
        since = _newest(table) + 1
        self.history.tell(self.process, "foreign", topic=topic, version=since)
        self._commit(table, "OPTIMIZE", chosen, [(partition, rows)], data_change=False)
        self.history.tell(self.process, "foreign", topic=topic, version=since, until=_newest(table))

    async def _empty(self, topic: str, table: Path, files: list[File]) -> None:
        """Remove all records from the table; the store restores its files."""
        since = _newest(table) + 1
        self.history.tell(self.process, "foreign", topic=topic, version=since)
        self._commit(table, "WRITE", files, [], data_change=True)
        last = max(files, key=lambda file: int(file["max.offset"]))
        await self._until_served(topic, last["partition.partition"], last["max.offset"])
        self.history.tell(self.process, "foreign", topic=topic, version=since, until=_newest(table))

    async def _state(self, topic: TopicSpec, table: Path, files: list[File], text: str | None) -> None:
        """DELETE some records of a file, or UPDATE their values to ``text``."""
        file = self.rng.choice(files)
        partition = file["partition.partition"]
        rows = _read(table, file)
        start = await self.log_start(topic.name, partition)
        if start is None:
            return
        every = self.rng.choice([1, 2, 5])
        wanted = pc.and_(pc.is_valid(rows["value"]), pc.greater_equal(rows["offset"], start))
        erased = pc.fill_null(pc.match_substring(rows["key"], "eraser"), False)  # erased by statements of the eraser
        offsets = rows.filter(pc.and_not(wanted, erased))["offset"].to_pylist()[::every]
        if not offsets:
            return
        chosen = pc.is_in(rows["offset"], pa.array(offsets, pa.int64()))
        if text is None:
            left = rows.filter(pc.invert(chosen))
        else:
            values = pc.if_else(chosen, pa.scalar(stored(text), pa.binary()), rows["value"])
            left = rows.set_column(rows.column_names.index("value"), "value", values)
        values = {} if text is None else {str(offset): text for offset in offsets}
        told = {
            "topic": topic.name,
            "partition": partition,
            "how": "delete" if text is None else "update",
            "rows": rows_of_table(rows.filter(chosen)),
        }
        number = self.history.invoke(self.process, "statement", **told, values=values)
        added = [(partition, left)] if left.num_rows else []
        version = self._commit(table, str(told["how"]).upper(), [file], added, data_change=True)
        for offset in sorted({offsets[0], offsets[-1]}):
            await self._until_stated(topic, partition, offset, text)
        self.history.complete(number, self.process, "statement", "ok", **told, values=values, version=version)

    async def _until_stated(self, topic: TopicSpec, partition: int, offset: int, text: str | None) -> None:
        """Wait until readers get the record as the statement left it, or no longer get it."""
        while True:
            phase, told = await self.fetch(topic.name, partition, offset)
            if phase == "ok":
                found = {row[0]: row[4] for row in told["records"]}
                if found.get(offset) == text or (topic.compacted and offset not in found):
                    return
            elif await self._is_below_start(topic.name, partition, offset):
                return
            await asyncio.sleep(_LOOK_S)

    async def _until_served(self, topic: str, partition: int, offset: int) -> None:
        """Wait until the record is in the table and served, or below the log start."""

        async def refresh(store: Any) -> None:
            broker = store.broker
            await broker.topics.tables.refresh(CLIENT, broker.topics.served.topic(CLIENT, topic))

        table = self._data / "topics" / topic
        while not await self._is_below_start(topic, partition, offset):
            await self._send(Log(topic, 0), refresh)
            there = any(
                file["partition.partition"] == partition and file["min.offset"] <= offset <= file["max.offset"]
                for file in _files(table)
            )
            phase, _ = await self.fetch(topic, partition, offset)
            if there and phase == "ok":
                return
            await asyncio.sleep(_LOOK_S)

    async def _is_below_start(self, topic: str, partition: int, offset: int) -> bool:
        start = await self.log_start(topic, partition)
        return start is not None and start > offset

    # ---- commits ----------------------------------------------------------------------------------------------------

    def _commit(
        self,
        table: Path,
        operation: str,
        removed: Sequence[File],
        added: Sequence[tuple[int, pa.Table]],
        *,
        data_change: bool,
    ) -> int:
        """Replace files of the newest version by files with these rows, by partition; return the new version."""
        now_ms = self.site.now_ms()
        actions: list[dict[str, Any]] = [
            {
                "commitInfo": {
                    "timestamp": now_ms,
                    "operation": operation,
                    "operationParameters": {},
                    "engineInfo": "sim",
                }
            }
        ]
        actions += [
            {
                "remove": {
                    "path": file["path"],
                    "deletionTimestamp": now_ms,
                    "dataChange": data_change,
                    "extendedFileMetadata": True,
                    "partitionValues": {"partition": str(file["partition.partition"])},
                    "size": file["size_bytes"],
                }
            }
            for file in removed
        ]
        for partition, rows in added:
            path = f"partition={partition}/part-00000-{uuid.UUID(int=self.rng.getrandbits(128))}.c000.parquet"
            content = pa.BufferOutputStream()
            pq.write_table(rows, content)
            self._write(table / path, content.getvalue().to_pybytes())
            offsets, timestamps = rows["offset"], pc.strftime(rows["timestamp"], "%Y-%m-%dT%H:%M:%SZ")
            stats = {
                "numRecords": rows.num_rows,
                "minValues": {"offset": pc.min(offsets).as_py(), "timestamp": min(timestamps.to_pylist())},
                "maxValues": {"offset": pc.max(offsets).as_py(), "timestamp": max(timestamps.to_pylist())},
                "nullCount": {name: rows[name].null_count for name in ("offset", "timestamp", "key", "value")},
            }
            actions.append(
                {
                    "add": {
                        "path": path,
                        "partitionValues": {"partition": str(partition)},
                        "size": len(content.getvalue()),
                        "modificationTime": now_ms,
                        "dataChange": data_change,
                        "stats": json.dumps(stats),
                    }
                }
            )
        version = _newest(table) + 1
        entry = "".join(f"{json.dumps(action)}\n" for action in actions).encode()
        # No other writer can commit in between, because the loop runs nothing else since the table was read.
        self._write(table / "_delta_log" / f"{version:020}.json", entry)
        return version

    def _write(self, path: Path, content: bytes) -> None:
        fd = self._disk.create(path)
        try:
            self._disk.write_at(fd, [content], 0)
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        self._disk.sync_directory(path.parent)


def _newest(table: Path) -> int:
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


def _files(table: Path) -> list[File]:
    """Return the files of the newest version that have records, by partition and offset."""
    files = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    with_rows = (file for file in files if file.get("min.offset") is not None)
    return sorted(with_rows, key=lambda file: (file["partition.partition"], file["min.offset"]))


def _read(table: Path, file: File) -> pa.Table:
    return pq.ParquetFile(table / urllib.parse.unquote(file["path"])).read().replace_schema_metadata(None)
