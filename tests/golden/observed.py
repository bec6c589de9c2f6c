"""The responses of a running store, as JSON that can be kept and compared."""

import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from logstore.clock import SystemClock
from tests.api.api_client import ARROW, ApiClient, running_api

#: 2023-11-14T22:13:20Z, the time in a store whose clock stands still.
CLOCK_MS = 1_700_000_000_000
_LONG_BYTES = 1_000


@contextlib.asynccontextmanager
async def store_at(data: Path, now_ms: int | None = CLOCK_MS) -> AsyncIterator[ApiClient]:
    """Run a store whose wall clock stands still at ``now_ms``; with None it has the real time."""
    with pytest.MonkeyPatch.context() as patch:
        if now_ms is not None:
            patch.setattr(SystemClock, "now_ms", lambda _clock: now_ms)
        async with running_api(data) as api:
            yield api


async def observed(api: ApiClient) -> dict[str, Any]:
    """Return topics with their configuration, records and log ends, and the committed offsets of every group."""
    names = (await api.get("/topics")).json()
    groups = (await api.get("/groups")).json()
    return {
        "topics": {name: await _topic(api, name) for name in names},
        "groups": {group: (await api.get(f"/groups/{group}/offsets")).json()["offsets"] for group in groups},
    }


async def _topic(api: ApiClient, name: str) -> dict[str, Any]:
    configs = (await api.get(f"{api.topics_url}/{name}/configs")).json()["data"]
    partitions = (await api.get(f"/topics/{name}")).json()["partitions"]
    return {
        "topic_id": (await api.get(f"/topics/{name}")).json()["topic_id"],
        "configs": {row["name"]: row["value"] for row in configs if not row["is_default"]},
        "partitions": [await _partition(api, name, partition["partition"]) for partition in partitions],
    }


async def _partition(api: ApiClient, topic: str, partition: int) -> dict[str, Any]:
    rows: list[Any] = []
    at: int | None = None
    while True:
        query = {} if at is None else {"offset": at}
        answer = await api.fetch(topic, partition, ARROW, max_wait_ms=0, **query)
        assert answer.status_code == 200, answer.text
        rows += record_rows(pa.ipc.open_stream(answer.content).read_all())
        at, end = (int(answer.headers[f"Logstore-{name}"]) for name in ("Next-Offset", "High-Watermark"))
        if at == end:
            return {"log_start": int(answer.headers["Logstore-Log-Start-Offset"]), "end": end, "records": rows}


def in_table(data: Path, topic: str) -> list[list[Any]]:
    """Return (partition, offset, timestamp, key, value, headers) of all records, as a plain reader sees them."""
    table = DeltaTable(str(data / "topics" / topic)).to_pyarrow_table()
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    rows = record_rows(table)
    return [[partition, *row] for partition, row in zip(table["partition"].to_pylist(), rows, strict=True)]


def record_rows(records: pa.Table | pa.RecordBatch) -> list[list[Any]]:
    """Return (offset, timestamp in ms, key, value, headers), with bytes as texts."""
    # Timestamps are in µs in a table, and in ms in the log.
    timestamps = records["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    columns = [records[name].to_pylist() for name in ("offset", "key", "value", "headers")]
    return [
        [offset, timestamp, as_text(key), as_text(value), _headers(headers)]
        for timestamp, offset, key, value, headers in zip(timestamps, *columns, strict=True)
    ]


def _headers(headers: list[dict[str, Any]] | None) -> list[list[str | None]] | None:
    return None if headers is None else [[header["key"], as_text(header["value"])] for header in headers]


def as_text(data: bytes | None) -> str | None:
    """Return base64; for many bytes their number and hash."""
    if data is None or len(data) <= _LONG_BYTES:
        return None if data is None else base64.b64encode(data).decode()
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}"
