"""A running store, as the tests ask it over HTTP."""

import base64

import httpx

from tests.support.server_process import ServerProcess

#: 2023-11-14T22:13:20Z, the timestamp of offset 0 in the topics here.
EPOCH_MS = 1_700_000_000_000
BINARY = {"Content-Type": "application/vnd.kafka.binary.v2+json"}


class Store:
    """A running store, as the tests ask it over HTTP."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.http = httpx.Client(timeout=30)

    @property
    def url(self) -> str:
        return self.server.url

    def post(self, path: str, **body) -> dict:
        answer = self.http.post(self.url + path, headers=body.pop("headers", None), json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else {}

    def clusters(self) -> str:
        cluster = self.http.get(f"{self.url}/v3/clusters").json()["data"][0]["cluster_id"]
        return f"/v3/clusters/{cluster}/topics"

    def create(self, topic: str, partitions: int = 1) -> str:
        # Tests that need a roll ask for it: a minute, the default, may pass within a test on a busy machine.
        configs = [{"name": "segment.ms", "value": "86400000"}]
        self.post(self.clusters(), topic_name=topic, partitions_count=partitions, configs=configs)
        return topic

    def delete(self, topic: str) -> None:
        assert self.http.delete(f"{self.url}{self.clusters()}/{topic}").is_success

    def produce(self, topic: str, partition: int, start: int, end: int) -> None:
        """Produce records whose values are their offsets, with headers, null keys and tombstones among them."""

        def record(n: int) -> dict:
            return {
                "key": None if n % 7 == 0 else _base64(f"k{n}"),
                "value": None if n % 11 == 0 else _base64(str(n)),
                "timestamp": EPOCH_MS + n,
                **(
                    {"headers": [{"key": "h", "value": _base64(str(n))}, {"key": "n", "value": None}]}
                    if n % 5 == 0
                    else {}
                ),
            }

        path = f"/topics/{topic}/partitions/{partition}"
        rows = self.post(path, headers=BINARY, records=[record(n) for n in range(start, end)])["offsets"]
        assert [row["offset"] for row in rows] == list(range(start, end))

    def roll(self, topic: str) -> None:
        self.post(f"/topics/{topic}/roll")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
