"""Spark's statements on a topic's table with deletion vectors, made without Spark: a log entry for each."""

import base64
import json
import uuid
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from logstore.delta.log_entries import LogReplay, list_log
from logstore.records.schema import SEGMENT_SCHEMA
from logstore.segments import deletion_vectors as vectors
from logstore.table_files import open_table
from tests.support.table_features import turn_on
from tests.support.topics import log_batch

FEATURE = "deletionVectors"
_MAGIC = (1681511377).to_bytes(4, "little")


def z85(raw: bytes) -> str:
    return base64.b85encode(raw).decode().translate(str.maketrans(vectors._B85, vectors._Z85))


def serialized(rows: Collection[int]) -> bytes:
    return _MAGIC + BitMap64(rows).serialize()


def stored_vector(table: Path, rows: Collection[int], kind: str = "u", *, prefix: str = "") -> dict[str, Any]:
    """Write the file of a vector, and return the vector's description."""
    raw = serialized(rows)
    if kind == "i":
        padded = raw + b"\0" * (-len(raw) % 4)
        return {"storageType": "i", "pathOrInlineDv": z85(padded), "sizeInBytes": len(raw), "cardinality": len(rows)}
    unique = uuid.uuid4()
    path = table / prefix / f"deletion_vector_{unique}.bin"
    path.parent.mkdir(exist_ok=True)
    # A vector of another data file comes first, as Spark packs several into one file.
    other = serialized([0])
    path.write_bytes(b"\1" + _block(other) + _block(raw))
    place = prefix + z85(unique.bytes) if kind == "u" else f"file://{path}"
    return {
        "storageType": kind,
        "pathOrInlineDv": place,
        "offset": 1 + len(other) + 8,
        "sizeInBytes": len(raw),
        "cardinality": len(rows),
    }


def _block(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + raw + zlib.crc32(raw).to_bytes(4, "big")


def delete(table: Path, offsets: Sequence[int], partition: int = 0, *, kind: str = "u", prefix: str = "") -> None:
    """Commit a DELETE: each file keeps its rows, and gets a vector."""
    commit(table, "DELETE", _masked(table, offsets, partition, kind, prefix))


def update(table: Path, offsets: Sequence[int], value: bytes, partition: int = 0, *, kind: str = "u") -> None:
    """Commit an UPDATE: the old rows get vectors, the new ones are in a new file."""
    batch = log_batch(offsets)
    values = pa.array([value] * len(offsets), pa.binary())
    rows = pa.Table.from_batches([batch.set_column(3, "value", values)]).cast(SEGMENT_SCHEMA)
    added = add_file(table, rows, partition)
    commit(table, "UPDATE", [*_masked(table, offsets, partition, kind, ""), {"add": added}])


def add_file(table: Path, rows: pa.Table, partition: int) -> dict[str, Any]:
    """Return the add action of a new file of another writer."""
    name = f"partition={partition}/part-00000-{uuid.uuid4()}.c000.snappy.parquet"
    pq.write_table(rows, table / name)
    offsets = rows["offset"].to_pylist()
    stats = {"numRecords": rows.num_rows, "minValues": {"offset": min(offsets)}, "maxValues": {"offset": max(offsets)}}
    return {
        "path": name,
        "partitionValues": {"partition": str(partition)},
        "size": (table / name).stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps(stats),
    }


def _masked(table: Path, offsets: Sequence[int], partition: int, kind: str, prefix: str) -> list[dict[str, Any]]:
    state = LogReplay(open_table(table)).state().table
    assert state is not None
    lines: list[dict[str, Any]] = []
    for file in state.files:
        if file.partition != partition:
            continue
        before = set() if file.vector is None else set(vectors.deleted_rows(file.vector, open_table(table)))
        there = pq.read_table(table / file.path, columns=["offset"], partitioning=None)["offset"].to_pylist()
        gone = before | {row for row, offset in enumerate(there) if offset in set(offsets)}
        if gone == before:
            continue
        same = {"path": file.path, "partitionValues": {"partition": str(partition)}, "size": file.size}
        removed = {**same, "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True}
        if file.vector is not None:
            old = file.vector
            removed["deletionVector"] = {
                "storageType": old.storage_type,
                "pathOrInlineDv": old.path_or_inline_dv,
                "offset": old.offset,
                "sizeInBytes": old.size_in_bytes,
                "cardinality": old.cardinality,
            }
        stats = {
            "numRecords": file.num_records,
            "minValues": {"offset": file.min_offset, "timestamp": _stamp(file.min_timestamp_us)},
            "maxValues": {"offset": file.max_offset, "timestamp": _stamp(file.max_timestamp_us)},
            "tightBounds": False,
        }
        vector = stored_vector(table, gone, kind, prefix=prefix)
        added = {
            **same,
            "modificationTime": 1,
            "dataChange": True,
            "stats": json.dumps(stats),
            "deletionVector": vector,
        }
        lines += [{"add": added}, {"remove": removed}]  # in Spark's order
    return lines


def _stamp(time_us: int | None) -> str:
    import numpy as np

    return f"{np.datetime64(time_us or 0, 'us')}Z"


def commit(table: Path, operation: str, lines: Sequence[dict[str, Any]]) -> None:
    """Commit as Spark does; the first commit turns deletion vectors on."""
    files = open_table(table)
    state = LogReplay(files).state().table
    assert state is not None
    if FEATURE not in (state.protocol.writer_features or ()):
        turn_on(table, FEATURE)
    head = {"commitInfo": {"timestamp": 1, "operation": operation, "operationParameters": {}}}
    entry = table / "_delta_log" / f"{list_log(files).last_version + 1:020d}.json"
    with entry.open("x") as file:
        file.write("".join(json.dumps(line) + "\n" for line in [head, *lines]))
