"""The records of a store, read over its HTTP interface without the client's code."""

from typing import Any, NamedTuple

import httpx
import pyarrow as pa


class StoredRecord(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def stored_records(url: str, topic: str) -> dict[int, list[StoredRecord]]:
    """Return all records of a topic by partition, by rising offset; partitions without a record are absent."""
    found: dict[int, list[StoredRecord]] = {}
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        for partition in http.get(f"/topics/{topic}").raise_for_status().json()["partitions"]:
            records = _partition(http, topic, partition["partition"], partition["high_watermark"])
            if records:
                found[partition["partition"]] = records
    return found


def _partition(http: httpx.Client, topic: str, partition: int, end: int) -> list[StoredRecord]:
    records: list[StoredRecord] = []
    offset = 0
    while offset < end:
        answer = http.get(
            f"/topics/{topic}/partitions/{partition}/records",
            params={"offset": offset, "max_bytes": 1 << 24, "max_wait_ms": 0},
            headers={"Accept": "application/vnd.apache.arrow.stream"},
        ).raise_for_status()
        with pa.ipc.open_stream(answer.content) as reader:
            records += (_record(partition, row) for row in reader.read_all().to_pylist())
        offset = int(answer.headers["Logstore-Next-Offset"])
    return records


def _record(partition: int, row: dict[str, Any]) -> StoredRecord:
    headers = row["headers"]
    pairs = None if headers is None else [(header["key"], header["value"]) for header in headers]
    at = row["timestamp"]
    return StoredRecord(partition, row["offset"], round(at.timestamp() * 1000), row["key"], row["value"], pairs)
