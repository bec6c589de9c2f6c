"""The Python client while brokers come and go: a producer at a fixed rate, and a consumer of a group beside it.

A record's wait counts from the time it was due until it is acknowledged. Errors are those that a program would see:
exceptions of the clients' methods, and of deliveries. In the end the consumer must have reached the end of each
partition without a gap.
"""

import threading
import time
from array import array
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.load.result import print_result, read_specification
from logstore.client.consumer import Consumer
from logstore.client.metadata import TopicPartition
from logstore.client.producer import Producer
from logstore.errors import LogStoreError

_VALUE = b"v" * 100
_END_SECONDS = 30.0


class _Reading(threading.Thread):
    """Reads all partitions from their beginnings, in a new group."""

    def __init__(self, spec: dict[str, Any], errors: list[str]) -> None:
        super().__init__()
        self._spec = spec
        self._errors = errors
        #: The ends of the partitions, once nothing is produced any more.
        self.ends: dict[int, int] | None = None
        self.give_up = float("inf")

    def run(self) -> None:
        spec = self._spec
        read = dict.fromkeys(range(spec["partitions"]), 0)
        group = f"available-{time.monotonic_ns()}"
        with Consumer(spec["url"], group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.subscribe([spec["topic"]])
            while read != self.ends and time.monotonic() < self.give_up:
                try:
                    fetched = consumer.poll_arrow(timeout_s=0.5)
                except LogStoreError as error:
                    self._errors.append(f"poll: {error.message}")
                    continue
                if fetched is None:
                    continue
                offsets = pc.min_max(fetched.batch.column("offset")).as_py()
                if offsets["min"] > read[fetched.partition]:
                    self._errors.append(f"offsets {read[fetched.partition]} to {offsets['min']} were not read")
                read[fetched.partition] = max(read[fetched.partition], offsets["max"] + 1)
        if read != self.ends:
            self._errors.append(f"read to {read}, the ends are {self.ends}")


def run(spec: dict[str, Any]) -> None:
    """Run the load.

    ``spec`` has url, topic, partitions, rate (records per second), seconds (at most), until (the file that ends it).
    """
    waits = array("d")
    errors: list[str] = []
    until = Path(spec["until"])
    reading = _Reading(spec, errors)
    reading.start()

    def report(due: float) -> Any:
        def on_delivery(error: LogStoreError | None, _: object) -> None:
            waits.append(time.monotonic() - due)
            if error is not None:
                errors.append(f"delivery: {error.message}")

        return on_delivery

    with Producer(spec["url"]) as producer:
        for partition in range(spec["partitions"]):
            producer.send(spec["topic"], _VALUE, partition=partition).result(30)
        began = time.monotonic()
        sent = 0
        while time.monotonic() < began + spec["seconds"] and not until.exists():
            due = began + sent / spec["rate"]
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            try:
                producer.send(spec["topic"], _VALUE, partition=sent % spec["partitions"], on_delivery=report(due))
            except LogStoreError as error:
                errors.append(f"send: {error.message}")
            sent += 1
    seconds = time.monotonic() - began
    partitions = [TopicPartition(spec["topic"], number) for number in range(spec["partitions"])]
    with Consumer(spec["url"]) as consumer:
        ends = {found.partition: end for found, end in consumer.end_offsets(partitions).items()}
    reading.give_up = time.monotonic() + _END_SECONDS
    reading.ends = ends
    reading.join()
    first = errors[0] if errors else None
    print_result(sent, seconds, waits, longest_ms=1000 * max(waits), errors=len(errors), first_error=first)


if __name__ == "__main__":
    run(read_specification())
