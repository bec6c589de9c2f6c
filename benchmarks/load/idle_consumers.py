"""Consumers of Kafka's protocol that wait at the end of a topic: each has a connection and a fetch session, and asks
again after its response. Measured is the server's share of a core meanwhile, once all have asked.

It sends frames of Kafka's protocol on plain sockets: a thousand real consumers would need the whole machine.
"""

import asyncio
import time
from typing import Any

from benchmarks.load.result import print_result, read_specification
from benchmarks.server import cpu_s_of
from logstore.kafka_protocol.messages import FetchRequest, FetchResponse, MetadataRequest, MetadataResponse
from logstore.kafka_protocol.requests import write_request
from logstore.kafka_protocol.responses import read_response

_FETCH, _METADATA = (1, 17), (3, 12)
_MIB = 1 << 20
_FINAL_EPOCH = -1


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sent = 0

    async def ask(self, api: tuple[int, int], message: Any) -> Any:
        self._sent += 1
        self._writer.writelines(write_request(*api, self._sent, "idle", message))
        size = int.from_bytes(await self._reader.readexactly(4))
        correlation_id, answer = read_response(*api, await self._reader.readexactly(size))
        if correlation_id != self._sent:
            raise RuntimeError(f"answer {correlation_id} to request {self._sent}")
        return answer

    def close(self) -> None:
        self._writer.close()


async def connect(spec: dict[str, Any]) -> Connection:
    return Connection(*await asyncio.open_connection(spec["host"], spec["port"]))


async def topic_of(spec: dict[str, Any]) -> FetchRequest.FetchTopic:
    """Return the topic as a consumer at its end requests it."""
    connection = await connect(spec)
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=spec["topic"])])
    answer: MetadataResponse = await connection.ask(_METADATA, asked)
    connection.close()
    (topic,) = answer.topics
    if topic.error_code or not topic.partitions:
        raise RuntimeError(f"no metadata of {spec['topic']}: error {topic.error_code}")
    return FetchRequest.FetchTopic(
        topic_id=topic.topic_id,
        partitions=[
            FetchRequest.FetchPartition(partition=each.partition_index, fetch_offset=0, partition_max_bytes=_MIB)
            for each in topic.partitions
        ],
    )


class Idle:
    def __init__(self, spec: dict[str, Any], topic: FetchRequest.FetchTopic) -> None:
        self._spec, self._topic = spec, topic
        self.answers = 0
        self.session = 0
        self.waiting = asyncio.Event()

    async def run(self, delay_s: float) -> None:
        """Fetch until cancelled. ``delay_s`` spreads the beginnings, as real consumers do not begin all at once."""
        await asyncio.sleep(delay_s)
        connection = await connect(self._spec)
        try:
            await self._fetch(connection, 0, [self._topic])
            self.waiting.set()
            epoch = 0
            while True:
                epoch += 1
                await self._fetch(connection, epoch, [])
                self.answers += 1
        finally:
            connection.close()

    async def end(self, connection: Connection) -> None:
        """End the session, as a consumer that closes does: the next ones need its place in the server's cache."""
        await connection.ask(_FETCH, FetchRequest(session_id=self.session, session_epoch=_FINAL_EPOCH))

    async def _fetch(self, connection: Connection, epoch: int, topics: list[FetchRequest.FetchTopic]) -> None:
        request = FetchRequest(
            max_wait_ms=self._spec["max_wait_ms"],
            min_bytes=1,
            max_bytes=50 * _MIB,
            session_id=self.session,
            session_epoch=epoch,
            topics=topics,
        )
        answer: FetchResponse = await connection.ask(_FETCH, request)
        failed = [part.error_code for found in answer.responses for part in found.partitions if part.error_code]
        if answer.error_code or failed:
            raise RuntimeError(f"a fetch failed: {answer.error_code or failed}")
        if not answer.session_id:
            raise RuntimeError("no fetch session was given")
        self.session = answer.session_id


async def idle(spec: dict[str, Any]) -> None:
    topic = await topic_of(spec)
    consumers = [Idle(spec, topic) for _ in range(spec["consumers"])]
    spread_s = max(1.0, spec["max_wait_ms"] / 1000)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(consumer.run(spread_s * number / len(consumers)))
            for number, consumer in enumerate(consumers)
        ]
        for consumer in consumers:
            await consumer.waiting.wait()
        before = sum(consumer.answers for consumer in consumers)
        began, cpu_s = time.monotonic(), sum(map(cpu_s_of, spec["pids"]))
        await asyncio.sleep(spec["seconds"])
        seconds, cpu_s = time.monotonic() - began, sum(map(cpu_s_of, spec["pids"])) - cpu_s
        answers = sum(consumer.answers for consumer in consumers) - before
        for task in tasks:
            task.cancel()
    connection = await connect(spec)
    for consumer in consumers:
        await consumer.end(connection)
    connection.close()
    print_result(answers, seconds, rest_percent=100 * cpu_s / seconds)


if __name__ == "__main__":
    asyncio.run(idle(read_specification()))
