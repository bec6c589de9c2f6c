"""A client of a consumer instance over HTTP."""

from dataclasses import dataclass
from typing import Any

import httpx

from tests.api.api_client import ApiClient

Places = list[tuple[str, int]]


@dataclass
class InstanceClient:
    """Requests to one instance. A method for a request that must succeed asserts that it does."""

    api: ApiClient | httpx.AsyncClient
    group: str
    name: str

    @property
    def path(self) -> str:
        return f"/consumers/{self.group}/instances/{self.name}"

    async def post(self, rest: str, body: Any = None) -> httpx.Response:
        return await self.api.post(self.path + rest, **({} if body is None else {"json": body}))

    async def get(self, rest: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return await self.api.request("GET", self.path + rest, **options)

    async def did(self, rest: str, body: Any) -> None:
        answer = await self.post(rest, body)
        assert answer.status_code == 204, answer.text

    async def subscribe(self, *topics: str) -> None:
        await self.did("/subscription", {"topics": list(topics)})

    async def assign(self, *partitions: int, topic: str = "t") -> None:
        await self.did("/assignments", {"partitions": [{"topic": topic, "partition": p} for p in partitions]})

    async def assigned(self) -> Places:
        answer = await self.get("/assignments")
        assert answer.status_code == 200, answer.text
        return [(entry["topic"], entry["partition"]) for entry in answer.json()["partitions"]]

    async def poll(self, wait_ms: int = 2_000, **query: Any) -> list[dict[str, Any]]:
        answer = await self.get("/records", params={"timeout": wait_ms, **query}, timeout=90)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def values(self, count: int, polls: int = 8) -> list[Any]:
        """Return the values of the next ``count`` records, in at most ``polls`` polls."""
        found: list[Any] = []
        for _ in range(polls):
            if len(found) >= count:
                break
            found += [record["value"] for record in await self.poll()]
        assert len(found) == count, found
        return found

    async def commit(self, *offsets: tuple[int, int], topic: str = "t") -> list[dict[str, Any]]:
        """Commit the last record done of each partition in ``offsets``; without ``offsets``, commit all that was
        polled.
        """
        body = {"offsets": [{"topic": topic, "partition": p, "offset": o} for p, o in offsets]} if offsets else None
        answer = await self.post("/offsets", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def committed(self, *partitions: int, topic: str = "t") -> dict[int, int]:
        body = {"partitions": [{"topic": topic, "partition": partition} for partition in partitions]}
        answer = await self.get("/offsets", body)
        assert answer.status_code == 200, answer.text
        return {entry["partition"]: entry["offset"] for entry in answer.json()["offsets"]}


async def create(
    api: ApiClient | httpx.AsyncClient, name: str = "c", group: str = "g", **config: Any
) -> InstanceClient:
    """Create an instance that reads JSON from the beginning, unless ``config`` says otherwise (``_`` is a dot)."""
    given = {"format": "json", "auto.offset.reset": "earliest"}
    given |= {key.replace("_", "."): value for key, value in config.items()}
    answer = await api.post(f"/consumers/{group}", json={"name": name, **given})
    assert answer.status_code == 200, answer.text
    assert answer.json()["instance_id"] == name
    return InstanceClient(api, group, name)
