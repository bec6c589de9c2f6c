"""Producers of keyed records over HTTP, in JSON and Arrow by turns, to a store that stays up: it must take them all."""

import functools
import itertools
import json
import random
import threading
from dataclasses import dataclass

import httpx
import pyarrow as pa

from tests.support.background_load import BackgroundLoad
from tests.support.records import arrow_stream

ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
KEYS = 40
TOMBSTONES = 0.03

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as the log has to hold it; ``value`` is unique, or None."""

    key: bytes
    value: bytes | None


class KeyedLoad(BackgroundLoad):
    """``producers`` threads on one topic. ``acknowledged`` has every record by its (partition, offset).

    A request that is not acknowledged, two records in one place, or a producer's records out of order end the load,
    and its block with an AssertionError.
    """

    def __init__(self, url: str, topic: str, *, producers: int, partitions: int, tombstones: bool, pause_s: float):
        self.acknowledged: dict[Place, Sent] = {}
        self._url = f"{url}/topics/{topic}/partitions"
        self._partitions = partitions
        self._tombstones = TOMBSTONES if tombstones else 0.0
        self._pause_s = pause_s
        self._lock = threading.Lock()
        super().__init__(functools.partial(self._produce, n) for n in range(producers))

    def _produce(self, producer: int) -> None:
        chance = random.Random(producer)
        last = [-1] * self._partitions
        with httpx.Client(timeout=60) as client:
            for sequence in itertools.count():
                if self._stop.wait(self._pause_s):
                    return
                partition = chance.randrange(self._partitions)
                keys = [f"k{chance.randrange(KEYS)}" for _ in range(chance.randrange(1, 40))]
                values = [
                    None if chance.random() < self._tombstones else f"{producer}-{sequence}-{n}"
                    for n in range(len(keys))
                ]
                post = self._post_json if sequence % 2 else self._post_arrow
                base_offset, records = post(client, partition, keys, values)
                assert base_offset > last[partition], "a producer's requests are out of order"
                last[partition] = base_offset + len(records) - 1
                with self._lock:
                    for offset, record in enumerate(records, start=base_offset):
                        assert (partition, offset) not in self.acknowledged, "two records have one place"
                        self.acknowledged[partition, offset] = record

    def _post_json(
        self, client: httpx.Client, partition: int, keys: list[str], values: list[str | None]
    ) -> tuple[int, list[Sent]]:
        rows = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
        answer = client.post(f"{self._url}/{partition}", content=json.dumps({"records": rows}), headers=JSON)
        assert answer.status_code == 200, answer.text
        offsets = [row["offset"] for row in answer.json()["offsets"]]
        assert offsets == list(range(offsets[0], offsets[0] + len(keys)))
        # JSON is stored as its text: with its quotes.
        return offsets[0], [
            Sent(json.dumps(key).encode(), None if value is None else json.dumps(value).encode())
            for key, value in zip(keys, values, strict=True)
        ]

    def _post_arrow(
        self, client: httpx.Client, partition: int, keys: list[str], values: list[str | None]
    ) -> tuple[int, list[Sent]]:
        batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
        answer = client.post(f"{self._url}/{partition}", content=arrow_stream(batch), headers=ARROW)
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["ranges"]
        assert (found["partition"], found["count"]) == (partition, len(keys))
        return found["base_offset"], [
            Sent(key.encode(), None if value is None else value.encode())
            for key, value in zip(keys, values, strict=True)
        ]
