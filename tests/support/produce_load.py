"""Producers that post unique values over HTTP and remember every outcome, while the server may die under them."""

import functools
import itertools
import json
import threading
import time

import httpx

from tests.support.background_load import BackgroundLoad
from tests.support.history import History, Request

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


class ProduceLoad(BackgroundLoad):
    """``producers`` threads, each posting one batch after the other to a partition of its choosing.

    A request whose connection breaks or times out is ``info``; a 4xx is ``fail``. ``url`` may be changed at any time;
    while no server answers, producers wait.
    """

    def __init__(self, url: str, topic: str, *, producers: int, partitions: int, records_max: int = 20) -> None:
        self.url = url
        self.history = History()
        self._topic = topic
        self._partitions = partitions
        self._records_max = records_max
        self._lock = threading.Lock()
        super().__init__(functools.partial(self._produce, n) for n in range(producers))

    def wait_for_acknowledged(self, records: int, *, seconds: float = 30) -> None:
        """Until that many more records are acknowledged; AssertionError if it takes too long."""
        target = self.history.acknowledged_records + records
        deadline = time.monotonic() + seconds
        while self.history.acknowledged_records < target:
            assert time.monotonic() < deadline, "producers make no progress"
            time.sleep(0.01)

    def _produce(self, producer: int) -> None:
        with httpx.Client(timeout=20) as client:
            for sequence in itertools.count():
                if self._stop.is_set():
                    return
                count = 1 + (sequence * 7 + producer) % self._records_max
                values = [f"{producer}-{sequence}-{n}" for n in range(count)]
                request = Request(producer, sequence, (producer + sequence) % self._partitions, values)
                with self._lock:
                    self.history.requests.append(request)
                self._send(client, request)

    def _send(self, client: httpx.Client, request: Request) -> None:
        body = json.dumps({"records": [{"value": value} for value in request.values]}).encode()
        try:
            url = f"{self.url}/topics/{self._topic}/partitions/{request.partition}"
            answer = client.post(url, content=body, headers=JSON)
        except httpx.ConnectError:
            request.outcome = "fail"  # never sent
            self._stop.wait(0.05)
            return
        except httpx.HTTPError:
            return
        if answer.status_code == 200:
            offsets = [row["offset"] for row in answer.json()["offsets"]]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
            request.base_offset = offsets[0]
            request.outcome = "ok"
        elif answer.status_code < 500:
            request.outcome = "fail"
            self._stop.wait(0.05)
