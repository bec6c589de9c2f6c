"""Requests and answers of one connection. Bad clients cannot harm the others."""

import asyncio
import contextlib
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.quotas import QuotaKind, Quotas
from logstore.kafka_listener.connection import REQUESTS_IN_HAND_MAX
from logstore.kafka_listener.dispatch import HANDLERS
from logstore.kafka_listener.listening import ConnectionLimits
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
)
from logstore.kafka_protocol.requests import write_request
from logstore.limits import MIB
from tests.support.captured_logs import captured_logs
from tests.support.eventually import eventually_async
from tests.support.kafka_client import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    FETCH,
    METADATA,
    PRODUCE,
    KafkaConnection,
    KafkaServer,
    batch_of,
    kafka_server,
    produce_request,
)
from tests.support.running_broker import read_all
from tests.support.virtual_time import run

ALL_TOPICS = MetadataRequest(topics=None)
LIMITS = ConnectionLimits(MIB, 600.0, 30.0, 60.0)


def fetch(topic_id: bytes, offset: int, *, max_wait_ms: int, max_bytes: int = MIB) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    wanted = FetchRequest.FetchTopic(topic_id=topic_id, partitions=[partition])
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, session_epoch=-1, topics=[wanted])


def test_every_announced_api_has_a_handler():
    assert HANDLERS.keys() == APIS.keys()


def test_the_versions_of_all_apis_are_reported(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            client = await server.connect()
            for version in range(5):
                answer = await client.ask(API_VERSIONS, version, ApiVersionsRequest("test", "1"))
                assert answer.error_code == 0
                told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
                assert told == {api.key: (api.advertised_min, api.version_max) for api in APIS.values()}

    run(ask())


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            client = await server.connect()
            client.writer.write(struct.pack(">ihhih", 10, API_VERSIONS, 999, 7, -1))
            correlation_id, answer = await client.receive(API_VERSIONS, 0)
            assert (correlation_id, answer.error_code) == (7, 35)
            assert len(answer.api_keys) == len(APIS)
            assert (await client.ask(API_VERSIONS, 4, ApiVersionsRequest("test", "1"))).error_code == 0

    run(ask())


def test_answers_come_in_the_order_of_the_requests(tmp_path: Path):
    """Send a long poll first; a record from another connection ends it."""

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            reader, writer = await server.connect(), await server.connect()
            sent = [reader.send(FETCH, 17, fetch(topic.topic_id.bytes, 0, max_wait_ms=20_000))]
            sent += [reader.send(DESCRIBE_CLUSTER, 0, DescribeClusterRequest()) for _ in range(5)]
            await asyncio.sleep(0.1)
            await writer.ask(PRODUCE, 9, produce_request({0: batch_of(b"v")}))
            correlation_id, answer = await reader.receive(FETCH, 17)
            assert len(answer.responses[0].partitions[0].records) > 60
            received = [correlation_id, *[(await reader.receive(DESCRIBE_CLUSTER, 0))[0] for _ in range(5)]]
            assert received == sent

    run(ask())


@pytest.mark.parametrize("count", [40, 3 * REQUESTS_IN_HAND_MAX])
def test_records_of_one_connection_are_stored_in_their_order(tmp_path: Path, count: int):
    """Send large requests, which are checked in threads, between small ones."""

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(max_message_bytes=str(8 * MIB))
            client = await server.connect()
            values = [b"%d" % n + b"x" * (2 * MIB if n % 20 == 3 else 10) for n in range(count)]
            for value in values:
                client.send(PRODUCE, 9, produce_request({0: batch_of(value)}))
                await client.writer.drain()
            offsets = []
            for _ in values:
                _, answer = await client.receive(PRODUCE, 9)
                offsets.append(answer.responses[0].partition_responses[0].base_offset)
            assert offsets == list(range(count))
            stored = await read_all(server.store.broker, topic, max_bytes=64 * MIB)
            assert [value for _, value in stored] == values

    run(ask())


def test_acks_0_has_no_answer(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            client = await server.connect()
            client.send(PRODUCE, 9, produce_request({0: batch_of(b"v")}, acks=0))
            assert (await client.ask(DESCRIBE_CLUSTER, 0, DescribeClusterRequest())).error_code == 0
            await eventually_async(lambda: topic.partition(0).high_watermark == 1)

    run(ask())


def test_an_error_with_acks_0_ends_the_connection(tmp_path: Path):
    async def ask() -> None:
        with captured_logs() as logs:
            async with kafka_server(tmp_path) as server:
                client = await server.connect()
                client.send(PRODUCE, 9, produce_request({0: batch_of(b"v")}, acks=0, topic="none"))
                assert await client.is_closed()
        (line,) = [one for one in logs if one["event"] == "kafka.connection_ended"]
        assert "'none'" in line["reason"]
        assert line["api"] == "Produce"

    run(ask())


def test_records_that_were_sent_before_the_client_hung_up_are_stored(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            client = await server.connect()
            for _ in range(20):
                client.send(PRODUCE, 9, produce_request({0: batch_of(b"v")}, acks=0))
            await client.close()
            await eventually_async(lambda: topic.partition(0).high_watermark == 20)

    run(ask())


def test_a_client_that_hangs_up_ends_its_long_poll(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            client = await server.connect()
            client.send(FETCH, 17, fetch(topic.topic_id.bytes, 0, max_wait_ms=30_000))
            await eventually_async(lambda: len(server.listener._tasks) == 1)
            await client.close()
            await eventually_async(lambda: not server.listener._tasks and not server.listener.connection_count)

    run(ask())


# ---- bad input -------------------------------------------------------------------------------------------------------


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


BAD = {
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "are those of TLS"),
    "negative length": (struct.pack(">i", -2), "-2 bytes"),
    "too long": (struct.pack(">i", 2 * MIB), "too long"),
    "the longest": (struct.pack(">i", 2**31 - 1), "too long"),
    "empty": (frame(b""), "no room for its header"),
    "half a header": (frame(b"\0\3\0\0\0"), "no room for its header"),
    "unknown API": (frame(struct.pack(">hhih", 4711, 0, 1, -1)), "4711"),
    "API without a listener": (frame(struct.pack(">hhih", 4, 0, 1, -1)), "API 4"),
    "unknown version": (frame(struct.pack(">hhih", METADATA, 99, 1, -1)), "in versions 0 to 13, not in 99"),
    "negative version": (frame(struct.pack(">hhih", METADATA, -1, 1, -1)), "not in -1"),
    "old Produce": (frame(struct.pack(">hhih", PRODUCE, 2, 1, -1)), "versions 3 to 13"),
    "client id beyond the end": (frame(struct.pack(">hhih", METADATA, 0, 1, 500) + b"x"), "client id"),
    "cut in an array": (frame(struct.pack(">hhihi", METADATA, 1, 1, -1, 3)), ""),
    "huge array": (frame(struct.pack(">hhihi", METADATA, 1, 1, -1, 2**31 - 1)), ""),
    "negative array": (frame(struct.pack(">hhihi", METADATA, 0, 1, -1, -2)), ""),
    "string that is no UTF-8": (frame(struct.pack(">hhihih", METADATA, 1, 1, -1, 1, 2) + b"\xff\xff"), "utf-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_its_connection_with_one_line_that_says_why(tmp_path: Path, name: str):
    sent, reason = BAD[name]

    async def ask() -> None:
        with captured_logs() as logs:
            async with kafka_server(tmp_path, limits=LIMITS) as server:
                bad, good = await server.connect(), await server.connect()
                bad.writer.write(sent)
                assert await bad.is_closed()
                assert (await good.ask(METADATA, 13, ALL_TOPICS)).error_code == 0
        (line,) = [one for one in logs if one["event"] == "kafka.connection_ended"]
        assert reason in line["reason"]
        assert line["peer"] == "127.0.0.1"
        assert not [one for one in logs if one["log_level"] == "error"]

    run(ask())


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"POST /topics/t HTTP/1.1\r\n\r\n" + b"x" * 30_000]
)
def test_http_gets_a_hint_and_its_connection_ends(tmp_path: Path, sent: bytes):
    async def ask() -> None:
        with captured_logs() as logs:
            async with kafka_server(tmp_path, limits=LIMITS) as server:
                http = await server.connect()
                http.writer.write(sent)
                head, body = (await http.reader.read()).split(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 400 ")
                assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")
                assert "8082, unless port is set" in json.loads(body)["message"]
        (line,) = [one for one in logs if one["event"] == "kafka.connection_ended"]
        assert "are those of HTTP" in line["reason"]

    run(ask())


def test_http_after_a_frame_gets_no_response(tmp_path: Path):
    """Send HTTP after a frame: the sender is a Kafka client, so it gets no answer in HTTP."""

    async def ask() -> None:
        async with kafka_server(tmp_path, limits=LIMITS) as server:
            client = await server.connect()
            await client.ask(METADATA, 13, ALL_TOPICS)
            client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await client.is_closed()

    run(ask())


def test_requests_before_bad_input_are_answered(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic()
            client = await server.connect()
            client.send(PRODUCE, 9, produce_request({0: batch_of(b"v")}))
            client.writer.write(struct.pack(">i", -1))
            _, answer = await client.receive(PRODUCE, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
            assert await client.is_closed()

    run(ask())


def test_bytes_behind_a_message_are_passed_over(tmp_path: Path):
    """Send three bytes after a message, as librdkafka does after an empty Metadata request of version 13."""

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            client = await server.connect()
            client.writer.write(frame(struct.pack(">hhih", METADATA, 1, 5, -1) + struct.pack(">i", -1) + b"\0\0\0"))
            assert (await client.receive(METADATA, 1))[0] == 5

    run(ask())


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_half_a_request_ends_its_connection_in_time(tmp_path: Path):
    async def ask() -> None:
        limits = ConnectionLimits(MIB, 600.0, 0.2, 60.0)
        with captured_logs() as logs:
            async with kafka_server(tmp_path, limits=limits) as server:
                halves = [frame(b"x" * size)[:-1] for size in (10, 100_000)]
                clients = [await server.connect() for _ in halves]
                for client, half in zip(clients, halves, strict=True):
                    client.writer.write(half)
                    await client.writer.drain()
                for client in clients:
                    assert await client.is_closed()
                assert server.store.broker.admission.requests.reserved == 0
        reasons = [one["reason"] for one in logs if one["event"] == "kafka.connection_ended"]
        assert len(reasons) == 2
        assert all("did not arrive" in reason for reason in reasons)

    run(ask())


def test_an_idle_connection_is_closed_without_a_line(tmp_path: Path):
    async def ask() -> None:
        limits = ConnectionLimits(MIB, 0.3, 30.0, 60.0)
        with captured_logs() as logs:
            async with kafka_server(tmp_path, limits=limits) as server:
                topic = await server.topic()
                silent, waiting = await server.connect(), await server.connect()
                waiting.send(FETCH, 17, fetch(topic.topic_id.bytes, 0, max_wait_ms=1_200))
                assert await silent.is_closed()
                # A client that waits for its answer is not idle.
                assert (await waiting.receive(FETCH, 17))[1].error_code == 0
                assert await waiting.is_closed()
        assert not [one for one in logs if one["event"] == "kafka.connection_ended"]

    run(ask())


async def connect_with_a_small_window(server: KafkaServer) -> KafkaConnection:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", server.port))
    client = KafkaConnection(*await asyncio.open_connection(sock=raw, limit=1024))
    server._opened.append(client)
    return client


def test_a_client_that_pipelines_without_reading_holds_one_answer_and_is_cut(tmp_path: Path):
    async def ask() -> None:
        limits = ConnectionLimits(MIB, 600.0, 30.0, 0.5)
        with captured_logs() as logs:
            async with kafka_server(tmp_path, limits=limits) as server:
                topic = await server.topic(max_message_bytes=str(8 * MIB))
                writer = await server.connect()
                for _ in range(16):
                    await writer.ask(PRODUCE, 9, produce_request({0: batch_of(b"x" * (1000 * 1024))}))
                slow = await connect_with_a_small_window(server)
                request = fetch(topic.topic_id.bytes, 0, max_wait_ms=0, max_bytes=16 * MIB)
                for _ in range(10):
                    slow.send(FETCH, 17, request)
                answers = server.store.broker.admission.answers
                await eventually_async(lambda: answers.reserved > 0)
                held = answers.reserved
                await asyncio.sleep(0.3)
                assert 0 < answers.reserved <= held < 40 * MIB
                # Other clients are served meanwhile.
                assert (await writer.ask(METADATA, 13, ALL_TOPICS)).error_code == 0
                await eventually_async(lambda: server.listener.connection_count == 1, seconds=15)
                assert answers.reserved == 0
        (reason,) = [one["reason"] for one in logs if one["event"] == "kafka.connection_ended"]
        assert "does not read its response" in reason

    run(ask())


def test_requests_in_hand_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def ask() -> None:
        going_on, begun = asyncio.Event(), 0

        async def slow(*given: Any) -> Any:
            nonlocal begun
            begun += 1
            await going_on.wait()
            return await HANDLERS_BEFORE[DESCRIBE_CLUSTER](*given)

        HANDLERS_BEFORE = dict(HANDLERS)  # noqa: N806 - what it was
        monkeypatch.setitem(HANDLERS, DESCRIBE_CLUSTER, slow)  # type: ignore[misc]
        async with kafka_server(tmp_path) as server:
            client = await server.connect()
            for _ in range(3 * REQUESTS_IN_HAND_MAX):
                client.send(DESCRIBE_CLUSTER, 0, DescribeClusterRequest())
            await eventually_async(lambda: begun == REQUESTS_IN_HAND_MAX)
            await asyncio.sleep(0.05)
            assert begun == REQUESTS_IN_HAND_MAX
            going_on.set()
            received = [(await client.receive(DESCRIBE_CLUSTER, 0))[0] for _ in range(3 * REQUESTS_IN_HAND_MAX)]
            assert received == list(range(1, 3 * REQUESTS_IN_HAND_MAX + 1))

    run(ask())


def test_requests_wait_for_room_among_the_bytes_in_flight(tmp_path: Path):
    """Send long and short requests, none of which is refused."""

    async def ask() -> None:
        async with kafka_server(tmp_path, queued_max_request_bytes=2 * MIB, max_request_size=MIB) as server:
            await server.topic()
            requests = server.store.broker.admission.requests
            long, short = await server.connect(), await server.connect()
            with requests.reserve(2 * MIB - 100):
                long.send(PRODUCE, 9, produce_request({0: batch_of(b"x" * 500_000)}))
                short.send(PRODUCE, 9, produce_request({0: batch_of(b"x" * 500)}))
                await asyncio.sleep(0.2)
                assert server.store.broker.topics.served.topic(INTERNAL, "t").partition(0).high_watermark == 0
                # Heartbeats and similar requests are served.
                other = await server.connect()
                assert (await other.ask(METADATA, 13, ALL_TOPICS)).error_code == 0
            for client in (long, short):
                _, answer = await client.receive(PRODUCE, 9)
                assert answer.responses[0].partition_responses[0].error_code == 0
            await eventually_async(lambda: requests.reserved == 0)

    run(ask())


def test_a_full_journal_makes_producers_wait_and_asks_them_for_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def never(*_: Any, **__: Any) -> None:
        """Leave rolls to the test; the store would roll because the journal is full."""

    async def ask() -> None:
        async with kafka_server(tmp_path, journal_topic_max_bytes=100_000) as server:
            topic = await server.topic()
            monkeypatch.setattr(server.store.broker._schedule, "_roll", never)
            client = await server.connect()
            request = produce_request({0: batch_of(b"x" * 60_000)})
            assert (await client.ask(PRODUCE, 9, request)).throttle_time_ms == 0
            client.send(PRODUCE, 9, request)
            client.send(PRODUCE, 9, request)
            await asyncio.sleep(0.3)
            assert topic.partition(0).high_watermark == 1
            for expected in (1, 2):
                await server.store.broker.topics.tables.roll(INTERNAL, topic)
                _, answer = await client.receive(PRODUCE, 9)
                assert answer.responses[0].partition_responses[0].base_offset == expected
                assert 0 < answer.throttle_time_ms <= 1_000

    run(ask())


def test_a_journal_that_stays_full_ends_the_wait_with_an_error_that_producers_try_again_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def never(*_: Any, **__: Any) -> None:
        """Roll nothing."""

    async def ask() -> None:
        async with kafka_server(tmp_path, journal_topic_max_bytes=100_000) as server:
            await server.topic()
            client = await server.connect()
            await client.ask(PRODUCE, 9, produce_request({0: batch_of(b"x" * 60_000)}))
            monkeypatch.setattr(server.store.broker._schedule, "_roll", never)
            answer = await client.ask(PRODUCE, 9, produce_request({0: batch_of(b"x" * 60_000)}, timeout_ms=300))
            (partition,) = answer.responses[0].partition_responses
            assert partition.error_code == 7
            assert "journal.topic.max.bytes" in partition.error_message
            assert answer.throttle_time_ms >= 300

    run(ask())


class _SlowQuota(Quotas):
    """Quotas that let each request of the client ``greedy`` wait for the next of ``pauses``, in seconds."""

    def __init__(self, *pauses: float) -> None:
        super().__init__()
        self._pauses = list(pauses)

    def charge(self, context: RequestContext, kind: QuotaKind, amount: int) -> float:
        return self._pauses.pop(0) if kind == QuotaKind.REQUESTS and context.client_id == "greedy" else 0.0


def test_over_the_quota_of_requests_the_answer_says_so_and_nothing_more_is_read(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path, quotas=_SlowQuota(0.4)) as server:
            client = await server.connect()
            loop = asyncio.get_running_loop()
            sent = loop.time()
            client.send(METADATA, 13, ALL_TOPICS, client_id="greedy")
            _, answer = await client.receive(METADATA, 13)
            assert answer.throttle_time_ms == 400
            assert (await client.ask(METADATA, 13, ALL_TOPICS)).throttle_time_ms == 0
            assert loop.time() - sent > 0.39

    run(ask())


def test_the_longest_pause_of_several_answers_counts(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path, quotas=_SlowQuota(0.4, 0.1)) as server:
            client = await server.connect()
            loop = asyncio.get_running_loop()
            sent = loop.time()
            for _ in range(2):
                client.send(METADATA, 13, ALL_TOPICS, client_id="greedy")
            told = [(await client.receive(METADATA, 13))[1].throttle_time_ms for _ in range(2)]
            assert told == [400, 100]
            await client.ask(METADATA, 13, ALL_TOPICS)
            assert loop.time() - sent > 0.39

    run(ask())


def test_connections_beyond_the_bound_are_closed_and_others_answered(tmp_path: Path):
    """Count the connections of another listener as well."""

    async def ask() -> None:
        with captured_logs() as logs:
            async with kafka_server(tmp_path, max_connections=6) as server:
                server.listener._other_connections = lambda: 3
                good = [await server.connect() for _ in range(3)]
                for client in good:
                    await client.ask(METADATA, 13, ALL_TOPICS)
                flood = [await server.connect() for _ in range(40)]
                assert all([await client.is_closed() for client in flood])
                for client in good:
                    assert (await client.ask(METADATA, 13, ALL_TOPICS)).error_code == 0
                await good.pop().close()
                await eventually_async(lambda: server.listener.connection_count == 2)
                again = await server.connect()
                assert (await again.ask(METADATA, 13, ALL_TOPICS)).error_code == 0
        lines = [one for one in logs if one["event"] == "kafka.connection_ended"]
        assert 0 < len(lines) <= 15
        assert "max.connections" in lines[0]["reason"]

    run(ask())


# ---- the stop --------------------------------------------------------------------------------------------------------


def test_a_stop_ends_long_polls_and_answers_what_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            reader, writer = await server.connect(), await server.connect()
            reader.send(FETCH, 17, fetch(topic.topic_id.bytes, 0, max_wait_ms=60_000))
            produce = server.store.broker.produce.batches.produce

            async def slowly(*given: Any, **options: Any) -> Any:
                await asyncio.sleep(0.3)
                return await produce(*given, **options)

            monkeypatch.setattr(server.store.broker.produce.batches, "produce", slowly)
            writer.send(PRODUCE, 9, produce_request({0: batch_of(b"v")}))
            await eventually_async(lambda: len(server.listener._tasks) == 2)
            began = asyncio.get_running_loop().time()
            await server.listener.stop()
            assert asyncio.get_running_loop().time() - began < 5
            _, answer = await writer.receive(PRODUCE, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
            assert await writer.is_closed()
            assert await reader.is_closed()
            with contextlib.suppress(OSError):
                assert await (await server.connect()).is_closed()

    run(ask())


@pytest.mark.parametrize("partitions", [1, 5_000])
def test_a_stop_ends_a_request_that_came_just_before_it(tmp_path: Path, partitions: int):
    """Cancel the request's task before it has begun."""
    asked = [FetchRequest.FetchPartition(partition=at, fetch_offset=0) for at in range(partitions)]
    wanted = FetchRequest(max_wait_ms=60_000, topics=[FetchRequest.FetchTopic(topic="t", partitions=asked)])
    frame = b"".join(write_request(FETCH, 11, 1, None, wanted))

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic()
            client = await server.connect()
            await client.ask(METADATA, 13, ALL_TOPICS)
            (connection,) = server.listener._connections
            left = memoryview(frame)
            while left:
                buffer = connection.get_buffer(-1)
                size = min(len(buffer), len(left))
                buffer[:size] = left[:size]
                connection.buffer_updated(size)
                left = left[size:]
            connection.stop()
            assert await client.is_closed()
            assert server.store.broker.admission.requests.reserved == 0

    run(ask())


def test_a_handler_that_fails_ends_its_connection_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def broken(*_: Any) -> Any:
        raise ValueError("a bug")

    async def ask() -> None:
        monkeypatch.setitem(HANDLERS, DESCRIBE_CLUSTER, broken)  # type: ignore[misc]
        with captured_logs() as logs:
            async with kafka_server(tmp_path) as server:
                client, other = await server.connect(), await server.connect()
                client.send(DESCRIBE_CLUSTER, 0, DescribeClusterRequest())
                assert await client.is_closed()
                assert (await other.ask(METADATA, 13, ALL_TOPICS)).error_code == 0
        (line,) = [one for one in logs if one["log_level"] == "error"]
        assert line["event"] == "kafka.unexpected_error"
        assert line["api"] == "DescribeCluster"

    run(ask())


def test_a_request_without_topics_is_answered(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            client = await server.connect()
            assert (await client.ask(PRODUCE, 13, ProduceRequest(acks=-1))).responses == []

    run(ask())
