"""Records of the bench: created, put on the wire as JSON or Arrow, and read back from there or from a Delta table.

Invariant: whichever way a record takes, the history has it in one form: key and value as text, a large value as its
beginning and its digest. Everything stored is the JSON text of that, so that every reader can read every record.
"""

import base64
import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from logstore.records.schema import HEADERS_TYPE
from tests.support.records import arrow_stream

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/vnd.kafka.json.v2+json"

_SHOWN = 48
_ID = "id"


@dataclass(frozen=True, slots=True)
class Record:
    """A record; ``value`` None is a tombstone, ``timestamp`` (ms) None is left to the store."""

    record_id: str
    key: str | None
    value: str | None
    timestamp: int | None

    def in_history(self) -> list[str | int | None]:
        return [self.record_id, self.key, shown(self.value), self.timestamp]


def shown(value: str | None) -> str | None:
    """Return a large value as its beginning and its digest: equal if and only if the values are."""
    if value is None or len(value) <= _SHOWN:
        return value
    return f"{value[:_SHOWN]}~{len(value)}~{hashlib.sha256(value.encode()).hexdigest()[:16]}"


def make_value(record_id: str, size: int, chance: random.Random) -> str:
    """Return a value that no other record has, of about ``size`` bytes that remain large when compressed."""
    filler = base64.b64encode(chance.randbytes(max(0, size - len(record_id)) * 3 // 4)).decode()
    return f"v-{record_id}-{filler}" if filler else f"v-{record_id}"


def stored(text: str | None) -> bytes | None:
    """Return a key or a value as the store holds it."""
    return None if text is None else json.dumps(text).encode()


def json_body(records: Iterable[Record]) -> bytes:
    rows = []
    for record in records:
        header = {"key": _ID, "value": base64.b64encode(record.record_id.encode()).decode()}
        row = {"key": record.key, "value": record.value, "headers": [header]}
        rows.append(row if record.timestamp is None else {**row, "timestamp": record.timestamp})
    return json.dumps({"records": rows}).encode()


def arrow_body(records: Iterable[Record]) -> bytes:
    rows = list(records)
    columns = {
        "timestamp": pa.array([row.timestamp for row in rows], pa.int64()),
        "key": pa.array([stored(row.key) for row in rows], pa.binary()),
        "value": pa.array([stored(row.value) for row in rows], pa.binary()),
        "headers": pa.array([[{"key": _ID, "value": row.record_id.encode()}] for row in rows], HEADERS_TYPE),
    }
    return arrow_stream(pa.RecordBatch.from_pydict(columns))


def rows_of_json(body: bytes) -> list[list[object]]:
    """Return [offset, timestamp, id, key, value] of each record of a fetch."""
    return [
        [
            row["offset"],
            row["timestamp"],
            id_of([(h["key"], base64.b64decode(h["value"] or "")) for h in row.get("headers", ())]),
            row["key"],
            shown(row["value"]),
        ]
        for row in json.loads(body)
    ]


def rows_of_arrow(body: bytes) -> list[list[object]]:
    """Return the records of a fetch in Arrow, in the form of ``rows_of_json``."""
    with pa.ipc.open_stream(body) as stream:
        return rows_of_table(stream.read_all())


def rows_of_table(table: pa.Table) -> list[list[object]]:
    """Return rows as ``rows_of_json`` does; a table with partitions (a Delta table) has them before the offsets."""
    columns = [
        table["offset"].to_pylist(),
        [None if at is None else at // 1000 for at in _micros(table["timestamp"])],
        [id_of([(h["key"], h["value"]) for h in headers or ()]) for headers in table["headers"].to_pylist()],
        [text_of(key) for key in table["key"].to_pylist()],
        [shown(text_of(value)) for value in table["value"].to_pylist()],
    ]
    if "partition" in table.column_names:
        columns.insert(0, table["partition"].to_pylist())
    return [list(row) for row in zip(*columns, strict=True)]


def _micros(timestamps: pa.ChunkedArray) -> list[int | None]:
    return timestamps.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()


def text_of(data: bytes | None) -> str | None:
    return None if data is None else str(json.loads(data))


def id_of(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    return next((value.decode() for key, value in headers if key == _ID and value is not None), None)
