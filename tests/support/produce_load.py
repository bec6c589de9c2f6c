"""Producers that post unique values over HTTP and remember every outcome, while the server may die under them."""

import functools
import itertools
import json
import threading
import time
from collections import Counter

import httpx

from tests.support.background_load import BackgroundLoad
from tests.support.history import History, Request

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


class ProduceLoad(BackgroundLoad):
    """Runs ``producers`` threads, each posting one batch after another to partitions of its choice.

    A request whose connection breaks or times out is ``info``, and so is a 5xx; a 4xx and a 503 are ``fail``: nothing
    was stored (docs/http-api.md). ``answers`` counts the (status, error_code) other than 200. ``url`` may change at any
    time; while no server answers, producers wait.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        producers: int,
        partitions: int,
        records_max: int = 20,
        timeout_s: float = 20,
        pause_s: float = 0,
    ) -> None:
        self.url = url
        self.history = History()
        self.answers: Counter[tuple[int, int]] = Counter()
        self._topic = topic
        self._producers = producers
        self._partitions = partitions
        self._records_max = records_max
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._lock = threading.Lock()
        super().__init__(functools.partial(self._produce, n) for n in range(producers))

    def wait_for_acknowledged(self, records: int, *, seconds: float = 60) -> None:
        """Wait until this many more records are acknowledged. Raises AssertionError if it takes too long."""
        target = self.history.acknowledged_records + records
        deadline = time.monotonic() + seconds
        while self.history.acknowledged_records < target:
            assert time.monotonic() < deadline, "producers make no progress"
            time.sleep(0.01)

    def wait_for_answers(self, status: int, error_code: int, count: int = 1, *, seconds: float = 60) -> None:
        """Wait until this many more requests had this response. Raises AssertionError if it takes too long."""
        target = self.answers[status, error_code] + count
        deadline = time.monotonic() + seconds
        while self.answers[status, error_code] < target:
            assert time.monotonic() < deadline, f"not that answer, but {self.answers}"
            time.sleep(0.01)

    def _produce(self, producer: int) -> None:
        with httpx.Client(timeout=self._timeout_s) as client:
            for sequence in itertools.count():
                if self._stop.wait(self._pause_s):
                    return
                count = 1 + (sequence * 7 + producer) % self._records_max
                values = [f"{producer}-{sequence}-{n}" for n in range(count)]
                request = Request(producer, sequence, (producer + sequence) % self._partitions, values)
                with self._lock:
                    self.history.requests.append(request)
                self._send(client, request)
                if request.outcome == "info":
                    # The request may still take effect after the next one, so another producer continues, without an
                    # order between them.
                    producer += self._producers

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
            return
        if answer.status_code < 500 or answer.status_code == 503:
            request.outcome = "fail"
        with self._lock:
            self.answers[answer.status_code, answer.json()["error_code"]] += 1
        self._stop.wait(0.05)
