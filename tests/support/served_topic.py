"""The topic ``t`` of a real server: created, read over HTTP and from its Delta table, and compared with its producers.

Rows are (partition, offset, value).
"""

import json
from pathlib import Path
from typing import Any

import httpx
from deltalake import DeltaTable

from tests.support.history import History, rows_by_partition
from tests.support.server_process import ServerProcess

PARTITIONS = 3

Row = tuple[int, int, str]


def create_topic(url: str, partitions: int = PARTITIONS, **configs: str) -> None:
    """Create the topic; in ``configs``, ``_`` means ``.``"""
    body = {
        "topic_name": "t",
        "partitions_count": partitions,
        "configs": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()],
    }
    assert httpx.post(f"{url}/v3/clusters/{_cluster(url)}/topics", json=body, timeout=30).status_code == 201


def alter_topic(url: str, **configs: str) -> None:
    body = {"data": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]}
    answer = httpx.post(f"{url}/v3/clusters/{_cluster(url)}/topics/t/configs:alter", json=body, timeout=30)
    assert answer.status_code == 204, answer.text


def delete_topic(url: str) -> None:
    """Delete the topic if it exists."""
    answer = httpx.delete(f"{url}/v3/clusters/{_cluster(url)}/topics/t", timeout=30)
    assert answer.status_code in {204, 404}, answer.text


def _cluster(url: str) -> str:
    return str(httpx.get(f"{url}/v3/clusters", timeout=30).json()["data"][0]["cluster_id"])


def roll(url: str) -> httpx.Response:
    return httpx.post(f"{url}/topics/t/roll", timeout=60)


def partitions_of(url: str) -> list[dict[str, Any]]:
    return [httpx.get(f"{url}/topics/t/partitions/{p}", timeout=30).json() for p in range(PARTITIONS)]


def read_records(url: str, partition: int, start: int = 0) -> list[dict[str, Any]]:
    """Return all records of a partition from ``start``, as the server returns them."""
    rows: list[dict[str, Any]] = []
    at = start
    while True:
        params = {"offset": at, "max_wait_ms": 0}
        answer = httpx.get(f"{url}/topics/t/partitions/{partition}/records", params=params, timeout=30)
        assert answer.status_code == 200, answer.text
        rows += answer.json()
        at = int(answer.headers["Logstore-Next-Offset"])
        if at == int(answer.headers["Logstore-High-Watermark"]):
            return rows


def read_over_http(url: str) -> list[Row]:
    return [(p, r["offset"], r["value"]) for p in range(PARTITIONS) for r in read_records(url, p)]


def read_from_delta(data: Path) -> list[Row]:
    """Return the rows of the Delta table, read by delta-rs."""
    table = DeltaTable(data / "topics" / "t").to_pyarrow_dataset().to_table(["partition", "offset", "value"])
    columns = (table[name].to_pylist() for name in ("partition", "offset", "value"))
    return [(p, o, json.loads(v)) for p, o, v in zip(*columns, strict=True)]


def segment_files(data: Path) -> list[Path]:
    """Return the topic's segment files on disk, in the table or not."""
    return sorted((data / "topics" / "t").glob("partition=*/*.parquet"))


def check_everywhere(server: ServerProcess, history: History) -> None:
    """Check, after the load, that HTTP and the Delta table after a roll have the same and the right records."""
    over_http = rows_by_partition(read_over_http(server.url))
    history.check(over_http)
    answer = roll(server.url)
    assert answer.status_code == 200, answer.text
    assert rows_by_partition(read_from_delta(server.data)) == over_http
