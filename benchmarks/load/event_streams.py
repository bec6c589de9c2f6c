"""Many streams of Server-Sent Events on one topic, and records produced to it at a fixed rate.

A record's latency counts from the time at which it was due to be produced until a client has its event. Every client
must get every record in order: the hashes of their sequences are compared.
"""

import asyncio
import hashlib
import time
from array import array
from typing import Any, cast

import uvloop

from benchmarks.load.result import print_result, read_specification

# Seconds that the last records may be under way.
_LAST_SECONDS = 20.0
_CONNECTING_AT_ONCE = 50


class _Client(asyncio.Protocol):
    """Receives events, and reads the due time in the value of each."""

    def __init__(self, request: bytes, latencies: "array[float]") -> None:
        self._request = request
        self._latencies = latencies
        self._rest = b""
        self.began = asyncio.get_running_loop().create_future()
        self.hash = hashlib.blake2b(digest_size=16)
        self.records = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                self.hash.update(line)
                self.records += 1
                due = line.partition(b'"value":"')[2].partition(b" ")[0]
                self._latencies.append(now - float(due))
            elif line.startswith(b"id: ") and not self.began.done():
                self.began.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.began.done():
            self.began.set_exception(ConnectionError(f"a stream was refused: {self._rest[:300]!r}, {exc}"))

    def close(self) -> None:
        self._transport.abort()


async def _answer(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    return int(head[9:12])


async def _produce(spec: dict[str, Any], count: int) -> None:
    host, port = spec["host"], spec["port"]
    connections = asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
    for _ in range(spec["connections"]):
        connections.put_nowait(await asyncio.open_connection(host, port))
    padding = "x" * max(0, spec["value_bytes"] - 20)

    async def post(due: float) -> None:
        reader, writer = await connections.get()
        body = f'{{"records":[{{"value":"{due:.6f} {padding}"}}]}}'.encode()
        head = (
            f"POST /topics/{spec['topic']}/partitions/0 HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        if (status := await _answer(reader)) != 200:
            raise ConnectionError(f"a record was answered {status}")
        connections.put_nowait((reader, writer))

    began = time.monotonic() + 0.1
    async with asyncio.TaskGroup() as posting:
        for index in range(count):
            due = began + index / spec["rate"]
            await asyncio.sleep(due - time.monotonic())
            posting.create_task(post(due))
    while not connections.empty():
        connections.get_nowait()[1].close()


async def _run(spec: dict[str, Any]) -> None:
    host, port = spec["host"], spec["port"]
    request = f"GET /topics/{spec['topic']}/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    latencies = array("d")
    clients: list[_Client] = []
    while len(clients) < spec["streams"]:
        some = min(_CONNECTING_AT_ONCE, spec["streams"] - len(clients))
        made = await asyncio.gather(
            *(loop.create_connection(lambda: _Client(request, latencies), host, port) for _ in range(some))
        )
        clients += [client for _, client in made]
        await asyncio.gather(*(client.began for _, client in made))
    count = int(spec["rate"] * spec["seconds"])
    began = time.monotonic()
    await _produce(spec, count)
    seconds = time.monotonic() - began
    end = time.monotonic() + _LAST_SECONDS
    while any(client.records < count for client in clients) and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    found = {(client.records, client.hash.hexdigest()) for client in clients}
    if len(found) != 1 or clients[0].records != count:
        raise ConnectionError(f"the streams of {len(clients)} clients differ, or lack records: {sorted(found)[:5]}")
    for client in clients:
        client.close()
    print_result(count * len(clients), seconds, latencies)


def run(spec: dict[str, Any]) -> None:
    """Run the load.

    ``spec`` has host, port, topic, streams, rate (records per second), value_bytes, connections (of the producer),
    seconds.
    """
    uvloop.run(_run(spec))


if __name__ == "__main__":
    run(read_specification())
