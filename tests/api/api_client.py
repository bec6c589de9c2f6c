"""A client of the HTTP interface for tests, with a method for each thing they do often."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ingest_api.app import create_app
from ingest_api.state import ApiState
from logstore.broker.authorizer import Authorizer
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.quotas import Quotas
from logstore.node import running_store
from logstore.settings import Settings
from tests.support.virtual_time import clock_of_loop

JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


class ApiClient:
    """A running application, and requests to it in the test's own process."""

    def __init__(self, app: FastAPI, http: httpx.AsyncClient) -> None:
        self.app = app
        self.http = http
        self.get, self.post, self.put = http.get, http.post, http.put
        self.patch, self.delete, self.request = http.patch, http.delete, http.request

    @property
    def broker(self) -> Broker:
        return self.app.state.api.broker

    @property
    def topics_url(self) -> str:
        return f"/v3/clusters/{self.broker.cluster_id}/topics"

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        body = {"topic_name": name, "partitions_count": partitions, "configs": entries}
        answer = await self.post(self.topics_url, json=body)
        assert answer.status_code == 201, answer.text

    async def produce(self, topic: str, values: list[Any], partition: int = 0) -> httpx.Response:
        body = {"records": [{"value": value} for value in values]}
        answer = await self.post(f"/topics/{topic}/partitions/{partition}", json=body)
        assert answer.status_code == 200, answer.text
        return answer

    async def values(self, topic: str, partition: int = 0, offset: int = 0) -> list[Any]:
        """Return all values from ``offset`` to the high watermark, read page by page as a consumer reads them."""
        found: list[Any] = []
        while True:
            answer = await self.fetch(topic, partition, offset=offset, max_wait_ms=0)
            assert answer.status_code == 200, answer.text
            found += [record["value"] for record in answer.json()]
            offset = int(answer.headers["Logstore-Next-Offset"])
            if offset == int(answer.headers["Logstore-High-Watermark"]):
                return found

    async def fetch(
        self, topic: str, partition: int = 0, accept: str | None = None, **query: int | str
    ) -> httpx.Response:
        headers = {"Accept": accept} if accept else {}
        return await self.get(f"/topics/{topic}/partitions/{partition}/records", params=query, headers=headers)

    def end_offsets(self, topic: str) -> list[int]:
        """Return the next offset of each partition, durable or not: it rises with every append."""
        return [log.next_offset for log in self.broker.topics.served.topic(INTERNAL, topic).partitions]


def held_appends(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Hold all appends until the returned event is set."""
    produce, going_on = api.broker.produce.records.produce, asyncio.Event()

    async def wait_and_produce(*given: Any, **options: Any) -> Any:
        await going_on.wait()
        return await produce(*given, **options)

    monkeypatch.setattr(api.broker.produce.batcher, "_produce", wait_and_produce)
    monkeypatch.setattr(api.broker.produce.batcher, "_produce", wait_and_produce)
    return going_on


@contextlib.asynccontextmanager
async def running_api(data: Path, **settings: Any) -> AsyncIterator[ApiClient]:
    wanted = Settings(data=data, **settings)
    authorizer, quotas = Authorizer(), Quotas()
    app = create_app(wanted, authorizer, quotas)
    transport = httpx.ASGITransport(app=app)
    async with (
        running_store(wanted, authorizer, quotas, clock=clock_of_loop()) as store,
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http,
    ):
        app.open(ApiState(wanted, store.broker, store.groups))
        try:
            yield ApiClient(app, http)
        finally:
            app.close()


def assert_error(answer: httpx.Response, status: int | range, error_code: int | None = None) -> str:
    """Assert that the answer is JSON of the one shape of errors, with a length and a request id; return its message."""
    statuses = status if isinstance(status, range) else (status,)
    assert answer.status_code in statuses, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.headers["Content-Type"] == "application/json"
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    assert answer.headers["X-Request-Id"]
    body = answer.json()
    assert set(body) == {"error_code", "message"}
    assert body["error_code"] in {answer.status_code} | set(
        range(answer.status_code * 100, answer.status_code * 100 + 100)
    )
    if error_code is not None:
        assert body["error_code"] == error_code
    message = body["message"]
    assert message
    assert "Traceback" not in message
    assert len(message) < 2_000
    return message
