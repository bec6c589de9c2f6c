"""How many records per second one store takes, each acknowledged after fsync: ``make bench``.

A real server on a temporary data directory, on the disk of the working directory; a connection per partition; client
and server share this machine. JSON is encoded before the clock starts, as is Arrow. Prints one line per case.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from logstore.client.admin import Admin
from logstore.client.transport import Transport, topic_path
from logstore.demo.store import store_of

PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """``body`` makes one request's body of so many records."""

    name: str
    content_type: str
    records: int
    body: Callable[[int], bytes]


def json_body(records: int) -> bytes:
    """A value of about 100 bytes, no key."""
    value = {"id": 123_456_789, "name": "a" * 40, "price": 12.5, "tags": ["x", "y"], "ok": True}
    return json.dumps({"records": [{"value": value}] * records}).encode()


def keyed_json_body(records: int) -> bytes:
    value = {"id": 123_456_789, "name": "a" * 40, "price": 12.5}
    return json.dumps({"records": [{"key": f"key-{n}", "value": value} for n in range(records)]}).encode()


def arrow_body(records: int) -> bytes:
    values = np.random.default_rng(0).bytes(100 * records)
    offsets = np.arange(records + 1, dtype=np.int32) * 100
    column = pa.Array.from_buffers(pa.binary(), records, [None, pa.py_buffer(offsets), pa.py_buffer(values)])
    batch = pa.record_batch({"value": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


CASES = (
    Case("JSON, 1 record a request", "application/vnd.kafka.json.v2+json", 1, json_body),
    Case("JSON, 1,000 records a request", "application/vnd.kafka.json.v2+json", 1_000, json_body),
    Case("JSON with keys, 1,000 records a request", "application/vnd.kafka.json.v2+json", 1_000, keyed_json_body),
    Case("Arrow, 10,000 records a request", "application/vnd.apache.arrow.stream", 10_000, arrow_body),
)


def measure(url: str, case: Case, seconds: float) -> tuple[int, float, list[float]]:
    """Records acknowledged, seconds taken, and milliseconds of each request."""
    body = case.body(case.records)
    milliseconds: list[float] = []
    stop = time.monotonic() + seconds

    def post() -> None:
        with Transport(url) as transport:
            while (began := time.monotonic()) < stop:
                transport.request(
                    "POST", topic_path("bench"), content=body, headers={"Content-Type": case.content_type}
                )
                milliseconds.append((time.monotonic() - began) * 1000)

    began = time.monotonic()
    threads = [threading.Thread(target=post) for _ in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(milliseconds) * case.records, time.monotonic() - began, milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.produce", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each case (default: 5)")
    seconds = parser.parse_args().seconds
    table = Table("case", "records/s", "MB/s", "p50 ms", "p99 ms")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as directory:
        for case in CASES:
            # A store per case: none pays for what another left to roll.
            data = Path(directory) / str(CASES.index(case))
            with store_of(data, Path(directory) / "server.log") as (url, _), Admin(url) as admin:
                admin.create_topic("bench", partitions=PARTITIONS)
                records, taken, milliseconds = measure(url, case, seconds)
            megabytes = records / case.records * len(case.body(case.records)) / 1e6
            p50, p99 = np.percentile(milliseconds, [50, 99])
            table.add_row(case.name, f"{records / taken:,.0f}", f"{megabytes / taken:,.1f}", f"{p50:.1f}", f"{p99:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
