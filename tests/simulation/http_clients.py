"""Clients of the simulated world that speak HTTP: each goes to any node, which sends on what another one answers."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from logstore.errors import LogStoreError, UnknownGroupError
from logstore.protocol.error_codes import error_of, kind_of
from tests.faults.bench.records import ARROW, JSON, Record, arrow_body, json_body, rows_of_arrow, rows_of_json
from tests.simulation.clients import _TRIES as TRIES
from tests.simulation.clients import Producer, Reader, TopicSpec
from tests.simulation.clients import _Identity as Identity
from tests.simulation.listeners import HTTP_PORT
from tests.simulation.node import ConnectionLostError, NoConnectionError
from tests.simulation.site import GroupName, Log, Place, Site
from tests.simulation.ways import Ways

T = TypeVar("T")

_PATIENCE_S = 6.0
#: The share of requests of which a part is sent, and no more.
_CUT_SHORT = 0.003


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HttpSite(Site):
    """The store as one client with HTTP sees it. ``call`` gives its work this site, whose ``ask`` sends a request."""

    def __init__(self, site: Site, name: str, rng: random.Random) -> None:
        super().__init__(site.nodes, site.cluster, site.network, rng)
        self.unforeseen = site.unforeseen
        self._ways = Ways(site.network, name)

    async def call(self, work: Callable[[Any], Awaitable[T]], place: Place = None) -> T:
        return await work(self)

    async def ask(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> Answer:
        """A good answer. NoConnectionError: the request was not sent; ConnectionLostError; the error of the answer."""
        port = HTTP_PORT + self._rng.randrange(len(self.nodes))
        reader, transport = await self._ways.to(port)
        lines = [f"{method} {path}{'?' if query else ''}{urlencode(query)} HTTP/1.1", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if content is not None:
            lines.append(f"Content-Length: {len(content)}")
        request = "\r\n".join([*lines, "", ""]).encode() + (content or b"")
        if self._rng.random() < _CUT_SHORT:
            transport.write(request[: self._rng.randrange(1, len(request))])
            transport.close()
            raise NoConnectionError  # half a request is none
        transport.write(request)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await _read_answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            self._ways.close(port)
            raise ConnectionLostError from None
        if answer.headers.get("connection") == "close":
            self._ways.close(port)
        if answer.status >= 400:
            raise _error(answer.json)
        return answer

    async def post(self, path: str, document: object) -> Answer:
        return await self.ask("POST", path, json.dumps(document).encode(), {"Content-Type": "application/json"})


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines) if name}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(status_line.split(" ")[1]), headers, body)


def _error(told: Mapping[str, Any]) -> LogStoreError:
    return error_of(told["error_code"], told["message"])


class HttpProducer(Producer):
    """Some of its requests name no partition; then those without a key go to one that the store chooses."""

    async def _produce(
        self, topic: TopicSpec, partition: int, records: Sequence[Record], acks: str, identity: Identity | None
    ) -> tuple[str, Mapping[str, Any]]:
        named = None if identity is None and self.rng.random() < 0.3 else partition
        is_json = named is None or self.rng.random() < 0.7
        path = f"/topics/{topic.name}" if named is None else f"/topics/{topic.name}/partitions/{named}"
        body = json_body(records) if is_json else arrow_body(records)
        headers = {"Content-Type": JSON if is_json else ARROW}
        if identity is not None:
            sequence = identity.sequences[topic.name, partition]
            headers |= {
                "Logstore-Producer-Id": str(identity.id),
                "Logstore-Producer-Epoch": str(identity.epoch),
                "Logstore-Base-Sequences": f"{partition}={sequence}",
            }

        async def work(site: HttpSite) -> list[Mapping[str, Any]]:
            answer = await site.ask("POST", path, body, headers, acks=acks)
            if acks == "0":
                return []
            told = answer.json
            if is_json:
                return list(told["offsets"])
            (found,) = told["ranges"]
            return [{**found, "offset": (found["base_offset"] or 0) + at} for at in range(len(records))]

        def places(told: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
            if acks == "0":  # it may still be sent on
                return {"places": [None] * len(records), "unknown": list(range(len(records)))}
            failed = [one.get("error_code") for one in told]
            return {
                "places": [
                    None if code is not None else (one["partition"], one["offset"])
                    for one, code in zip(told, failed, strict=True)
                ],
                "unknown": [at for at, code in enumerate(failed) if code is not None and not _is_known(code)],
            }

        return await self.call(
            "produce",
            Log(topic.name, partition),
            work,
            places,
            {
                "topic": topic.name,
                "partition": named,
                "acks": acks,
                "format": "json" if is_json else "arrow",
                "records": [record.in_history() for record in records],
            },
            tries=1 if identity is None else TRIES,
        )

    async def _new_identity(self, old: Identity | None) -> Identity | None:
        async def work(site: HttpSite) -> Identity:
            if old is None:
                answer = await site.ask("POST", "/producers")
            else:
                answer = await site.post("/producers", {"producer_id": old.id, "producer_epoch": old.epoch})
            return Identity(answer.json["producer_id"], answer.json["producer_epoch"])

        _, found = await self._send(None, work)
        return found  # type: ignore[no-any-return]


def _is_known(error_code: int) -> bool:
    status = kind_of(error_code)
    return status in (429, 503) or (status < 500 and status != 408)


class HttpReader(Reader):
    async def fetch(self, topic: str, partition: int, offset: int) -> tuple[str, Mapping[str, Any]]:
        is_json = self.rng.random() < 0.5
        max_bytes, max_wait_ms = self.rng.choice([2_000, 20_000, 200_000]), self.rng.choice([0, 0, 200])
        log = Log(topic, partition)

        async def work(site: HttpSite) -> Mapping[str, Any]:
            answer = await site.ask(
                "GET",
                f"/topics/{topic}/partitions/{partition}/records",
                headers={"Accept": JSON if is_json else ARROW},
                offset=offset,
                max_bytes=max_bytes,
                max_wait_ms=max_wait_ms,
            )
            site.require_one_leader(log)
            return {
                "records": rows_of_json(answer.body) if is_json else rows_of_arrow(answer.body),
                "next_offset": int(answer.headers["logstore-next-offset"]),
                "high_watermark": int(answer.headers["logstore-high-watermark"]),
                "log_start": int(answer.headers["logstore-log-start-offset"]),
            }

        asked = {"topic": topic, "partition": partition, "offset": offset}
        return await self.call("fetch", log, work, lambda told: told, asked)

    async def log_start(self, topic: str, partition: int) -> int | None:
        async def work(site: HttpSite) -> int | None:
            told = (await site.ask("GET", f"/topics/{topic}/partitions/{partition}")).json["log_start_offset"]
            return None if told is None or told < 0 else int(told)

        _, start = await self._send(Log(topic, partition), work)
        return start  # type: ignore[no-any-return]

    async def _delete_records(self, topic: str, partition: int, positions: Mapping[int, int]) -> None:
        before = positions[partition] // 2

        async def work(site: HttpSite) -> Mapping[str, Any]:
            path = f"/topics/{topic}/partitions/{partition}/delete-records"
            return {"log_start": (await site.post(path, {"before_offset": before})).json["log_start_offset"]}

        asked = {"topic": topic, "partition": partition, "before_offset": before}
        await self.call("delete_records", Log(topic, partition), work, lambda told: told, asked)

    async def _offset_for_time(self, topic: str, partition: int) -> None:
        timestamp = self.site.now_ms() - self.rng.randrange(20_000)

        async def work(site: HttpSite) -> Mapping[str, Any]:
            path = f"/topics/{topic}/partitions/{partition}/offsets"
            answer = await site.ask("GET", path, timestamp=timestamp)
            site.require_one_leader(Log(topic, partition))
            return {"offset": answer.json["offset"]}

        asked = {"topic": topic, "partition": partition, "timestamp": timestamp}
        await self.call("offset_for_time", Log(topic, partition), work, lambda told: told, asked)

    async def _commit(self, group: str, topic: str, positions: Mapping[int, int]) -> str:
        offsets = dict(positions)

        async def work(site: HttpSite) -> None:
            entries = [{"topic": topic, "partition": p, "offset": offset} for p, offset in offsets.items()]
            await site.post(f"/groups/{group}/offsets", {"offsets": entries})

        asked = {"group": group, "topic": topic, "offsets": {str(p): offset for p, offset in offsets.items()}}
        return (await self.call("commit", GroupName(group), work, lambda _: {}, asked))[0]

    async def committed(self, group: str, topic: str) -> tuple[str, Mapping[str, Any]]:
        async def work(site: HttpSite) -> Mapping[str, Any]:
            try:
                known = (await site.ask("GET", f"/groups/{group}/offsets", topic=topic)).json["offsets"]
            except UnknownGroupError:
                known = []  # it has committed nothing
            return {"offsets": {str(one["partition"]): one["offset"] for one in known}}

        return await self.call("committed", GroupName(group), work, lambda told: told, {"group": group, "topic": topic})
