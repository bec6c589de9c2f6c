"""The Python client as its users have it: ``send_batch``, ``send``, ``poll_arrow``, ``poll``."""

import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.load.result import print_result, read_specification
from logstore.client.consumer import Consumer
from logstore.client.producer import Producer

_STEP = 1_000


def send_batch(spec: dict[str, Any]) -> None:
    """Send columns of key and value, a batch per call, until all are acknowledged."""
    batches = [batch.select(["key", "value"]) for batch in _batches(spec)]
    turn = cycle(batches)
    sent = 0
    with Producer(spec["url"]) as producer:
        began = time.monotonic()
        stop = began + spec["seconds"]
        while time.monotonic() < stop:
            batch = next(turn)
            producer.send_batch(spec["topic"], batch)
            sent += batch.num_rows
        producer.flush()
        print_result(sent, time.monotonic() - began)


def send(spec: dict[str, Any]) -> None:
    """Send one record per call, until all are acknowledged."""
    pairs = [
        pair
        for batch in _batches(spec)
        for pair in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]
    records = cycle(pairs)
    topic = spec["topic"]
    sent = 0
    with Producer(spec["url"]) as producer:
        began = time.monotonic()
        stop = began + spec["seconds"]
        while time.monotonic() < stop:
            for key, value in records:
                producer.send(topic, value, key=key)
                sent += 1
                if sent % _STEP == 0:
                    break
        producer.flush()
        print_result(sent, time.monotonic() - began)


def consume(spec: dict[str, Any]) -> None:
    """Consume the whole topic from its beginning, again and again; key and value of objects are accessed."""
    records = passes = 0
    began = time.monotonic()
    while not passes or time.monotonic() < began + spec["seconds"]:
        with Consumer(spec["url"], auto_offset_reset="earliest") as consumer:
            consumer.subscribe([spec["topic"]])
            taken = 0
            while taken < spec["records"]:
                taken += _READ[spec["call"]](consumer)
        records += taken
        passes += 1
    print_result(records, time.monotonic() - began, passes=passes)


def _poll_arrow(consumer: Consumer) -> int:
    fetched = consumer.poll_arrow(timeout_s=10)
    if fetched is None:
        raise TimeoutError("no records came for 10 seconds")
    return int(fetched.batch.num_rows)


def _poll(consumer: Consumer) -> int:
    records = consumer.poll(10_000, timeout_s=10)
    if not records:
        raise TimeoutError("no records came for 10 seconds")
    size = 0
    for record in records:
        size += len(record.value or b"") + len(record.key or b"")
    return len(records)


def _batches(spec: dict[str, Any]) -> list[pa.RecordBatch]:
    streams = [pa.ipc.open_stream(Path(name).read_bytes()) for name in spec["bodies"]]
    return [batch for stream in streams for batch in stream]


_READ: dict[str, Callable[[Consumer], int]] = {"poll_arrow": _poll_arrow, "poll": _poll}
_CALLS: dict[str, Callable[[dict[str, Any]], None]] = {
    "send_batch": send_batch,
    "send": send,
    "poll_arrow": consume,
    "poll": consume,
}

if __name__ == "__main__":
    specification = read_specification()
    _CALLS[specification["call"]](specification)
