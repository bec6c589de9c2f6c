"""A real server whose resources and records are watched while clients misbehave."""

import asyncio
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import psutil

from tests.support.bad_requests import json_body, post
from tests.support.eventually import eventually
from tests.support.history import History, Request
from tests.support.raw_client import Answer, RawClient
from tests.support.server_process import ServerProcess


@dataclass(frozen=True, slots=True)
class Resources:
    rss_bytes: int
    files: int
    threads: int


class WatchedServer(ServerProcess):
    """A server with settings as keywords. Topic ``t`` has one partition, and ``history`` has what the tests sent."""

    def __init__(self, data: Path, **settings: int | str) -> None:
        # The log line of a request costs more than the request.
        environment = {"LOGSTORE_LOG_LEVEL": "warning"}
        environment |= {f"LOGSTORE_{name.upper()}": str(value) for name, value in settings.items()}
        super().__init__(data, environment=environment)
        self.port = int(self.url.rpartition(":")[2])
        self.history = History()
        self._process = psutil.Process(self.process.pid)
        # This client keeps no connections, so all open ones belong to the tests.
        self._http = httpx.Client(
            base_url=self.url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False
        )
        self.create_topic("t")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        super().__exit__()

    def create_topic(self, name: str) -> None:
        cluster = self._http.get("/v3/clusters").json()["data"][0]["cluster_id"]
        answer = self._http.post(f"/v3/clusters/{cluster}/topics", json={"topic_name": name})
        assert answer.status_code == 201, answer.text

    # ---- resources --------------------------------------------------------------------------------------------------

    def resources(self) -> Resources:
        process = self._process
        return Resources(process.memory_info().rss, process.num_fds(), process.num_threads())

    def settled(self) -> Resources:
        """Wait until no client is connected any more."""
        eventually(lambda: not self.connections(), "connections are left")
        return self.resources()

    def connections(self) -> list[int]:
        """Return the ports of the clients that have an open connection to the server."""
        return [found.raddr.port for found in self._process.net_connections("tcp") if found.raddr]

    # ---- records ----------------------------------------------------------------------------------------------------

    def connected(self, *, receive_bytes: int = 0) -> AbstractContextManager[RawClient]:
        return RawClient.connected(self.port, receive_bytes=receive_bytes)  # type: ignore[return-value]

    def end_offset(self, topic: str = "t") -> int:
        found = self._http.get(f"/topics/{topic}/partitions/0").json()
        return int(found["log_end_offset"])

    def request(self, prefix: str = "") -> Request:
        """Return a new request to topic ``t`` with a unique value; it is in doubt until it is known to be ``ok`` or
        ``fail``.
        """
        number = len(self.history.requests)
        request = Request(number, 0, 0, [f"{prefix}{number}"])
        self.history.requests.append(request)
        return request

    async def produce(self, client: RawClient) -> Answer | None:
        request = self.request()
        await client.send(post(json_body(request.values[0])))
        answer = await client.answer()
        acknowledge(request, answer)
        return answer

    def check(self) -> None:
        """Check that good requests work, and that the log holds all acknowledged records and some of those in doubt."""

        async def one() -> Answer | None:
            async with self.connected() as client:
                return await self.produce(client)

        answer = asyncio.run(one())
        assert answer is not None
        assert answer.status == 200, answer
        self.history.check({0: [(row["offset"], row["value"]) for row in self._rows()]})
        assert "Traceback" not in self.log

    def _rows(self) -> list[dict]:
        rows: list[dict] = []
        while True:
            params = {"offset": len(rows), "max_wait_ms": 0}
            answer = self._http.get("/topics/t/partitions/0/records", params=params)
            assert answer.status_code == 200, answer.text
            rows += answer.json()
            if int(answer.headers["Logstore-Next-Offset"]) == int(answer.headers["Logstore-High-Watermark"]):
                return rows


def acknowledge(request: Request, answer: Answer | None) -> None:
    """Note what ``answer`` says about ``request``; without an answer it stays in doubt."""
    if answer is not None and answer.status == 200:
        found = json.loads(answer.body)
        # In columns the response has ranges instead of an offset for each record.
        first = found["offsets"][0]["offset"] if "offsets" in found else found["ranges"][0]["base_offset"]
        request.base_offset = first
        request.outcome = "ok"
    elif answer is not None and answer.status < 500 and answer.status != 408:
        request.outcome = "fail"
