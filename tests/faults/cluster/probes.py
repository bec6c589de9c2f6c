"""Requests to each broker that are not forwarded: its answers show which broker leads by its own account."""

import itertools
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx

from tests.faults.bench.history import Recorder
from tests.faults.bench.records import JSON, Record, json_body
from tests.faults.bench.workload import Client, TopicSpec
from tests.faults.cluster.brokers import Brokers
from tests.support.background_load import BackgroundLoad

_PAUSE_S: Final = 0.3
_NEVER: Final = {"Logstore-Forward": "never"}


class Probes(BackgroundLoad):
    """A thread for each broker: it sends records with acks=1 to ``written``, and asks for end offsets of all topics."""

    def __init__(self, brokers: Brokers, recorder: Recorder, topics: list[TopicSpec], written: TopicSpec) -> None:
        self._recorder = recorder
        self._topics = topics
        self._written = written
        super().__init__([_bound(self._probe, broker.number, broker.url) for broker in brokers.all])

    def _probe(self, number: int, url: str) -> None:
        chance = random.Random(number)
        client = Client(url, f"probe-{number}", self._recorder, timeout_s=5)
        try:
            for count in itertools.count():
                if self._stop.wait(_PAUSE_S):
                    return
                partition = chance.randrange(self._written.partitions)
                self._produce(client, number, partition, Record(f"probe-{number}-{count}", None, f"v-{count}", None))
                topic = chance.choice(self._topics)
                self._ask_end(client, number, topic.name, chance.randrange(topic.partitions))
        finally:
            client.close()

    def _produce(self, client: Client, number: int, partition: int, record: Record) -> None:
        def told(http: httpx.Response) -> Mapping[str, Any]:
            (row,) = http.json()["offsets"]
            if row.get("error_code") is not None:
                return {"record_id": ""}
            return {"offset": row["offset"], "record_id": record.record_id}

        asked = {"broker": number, "topic": self._written.name, "partition": partition}
        client.call(
            "probe",
            "POST",
            f"/topics/{self._written.name}/partitions/{partition}",
            lambda http: {**asked, **told(http)},
            {**asked, "record_id": record.record_id},
            params={"acks": "1"},
            content=json_body([record]),
            headers={"Content-Type": JSON, **_NEVER},
        )

    @staticmethod
    def _ask_end(client: Client, number: int, topic: str, partition: int) -> None:
        asked = {"broker": number, "topic": topic, "partition": partition}
        client.call(
            "probe",
            "GET",
            f"/topics/{topic}/partitions/{partition}/offsets",
            lambda http: {**asked, "offset": json.loads(http.content)["end_offset"]},
            asked,
            headers=_NEVER,
        )


def _bound(work: Callable[[int, str], None], number: int, url: str) -> Callable[[], None]:
    return lambda: work(number, url)
