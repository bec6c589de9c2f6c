import asyncio
import gzip
import json

import pyarrow as pa
import pytest

from logstore.broker.admission import InFlightBytes
from logstore.errors import ThrottledError
from tests.api.api_client import assert_error, running_api

pytestmark = pytest.mark.anyio


def in_flight(limit: int) -> InFlightBytes:
    return InFlightBytes(limit, what="request bodies", setting="queued.max.request.bytes")


def test_reservations_add_up_to_the_limit_and_no_further():
    bytes_in_flight = in_flight(100)
    with bytes_in_flight.reserve(60), bytes_in_flight.reserve(40):
        with pytest.raises(ThrottledError, match=r"queued\.max\.request\.bytes = 100"):
            bytes_in_flight.reserve(1)
        assert bytes_in_flight.reserved == 100
    assert bytes_in_flight.reserved == 0


def test_reserved_bytes_stay_reserved_when_growing_fails():
    bytes_in_flight = in_flight(100)
    with bytes_in_flight.reserve(60), bytes_in_flight.reserve(10) as second:
        with pytest.raises(ThrottledError):
            second.grow(31)
        second.grow(30)
        assert bytes_in_flight.reserved == 100
    assert bytes_in_flight.reserved == 0


def test_a_request_that_is_alone_is_let_in_whatever_its_size():
    bytes_in_flight = in_flight(100)
    with bytes_in_flight.reserve(70) as alone:
        alone.grow(70)
        with pytest.raises(ThrottledError):
            bytes_in_flight.reserve(1)
    assert bytes_in_flight.reserved == 0


def test_releasing_twice_gives_back_once():
    bytes_in_flight = in_flight(100)
    other = bytes_in_flight.reserve(10)
    with bytes_in_flight.reserve(50) as reservation:
        reservation.release()
    assert bytes_in_flight.reserved == other.size == 10


def test_asking_for_room_takes_none():
    bytes_in_flight = in_flight(100)
    with bytes_in_flight.reserve(60), bytes_in_flight.reserve() as asking:
        asking.require(40)
        with pytest.raises(ThrottledError):
            asking.require(41)
        assert bytes_in_flight.reserved == 60


async def test_arrived_bytes_of_a_body_are_reserved_and_given_back_after(tmp_path):
    async with running_api(tmp_path / "data", max_request_size=10_000, queued_max_request_bytes=10_000) as api:
        await api.create_topic("t")
        requests = api.app.state.api.requests
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def slow_body():
            yield b'{"records":['
            arrived.set()
            await go_on.wait()
            yield b'{"value":1}]}'

        headers = {"Content-Type": "application/json", "Content-Length": str(len(b'{"records":[{"value":1}]}'))}
        first = asyncio.create_task(api.post("/topics/t", content=slow_body(), headers=headers))
        await arrived.wait()
        assert requests.reserved == len(b'{"records":['), "what is only announced keeps nobody out"

        large = json.dumps({"records": [{"value": "x" * 9_965}]})
        assert 9_988 < len(large) < 10_000
        refused = await api.post("/topics/t", content=large, headers={"Content-Type": "application/json"})
        assert_error(refused, 429, 42901)
        assert int(refused.headers["Retry-After"]) >= 1
        assert api.end_offsets("t") == [0]

        go_on.set()
        assert (await first).status_code == 200
        assert requests.reserved == 0
        again = await api.post("/topics/t", content=large, headers={"Content-Type": "application/json"})
        assert again.status_code == 200, again.text


@pytest.mark.parametrize("coding", [None, "gzip"])
async def test_bodies_of_unknown_length_are_reserved_as_they_grow(tmp_path, coding):
    async with running_api(tmp_path / "data", max_request_size=100_000, queued_max_request_bytes=100_000) as api:
        await api.create_topic("t")
        body = json.dumps({"records": [{"value": "x" * 90_000}]}).encode()

        async def chunks():
            sent = gzip.compress(body) if coding else body
            for start in range(0, len(sent), 1_000):
                yield sent[start : start + 1_000]

        headers = {"Content-Type": "application/json"} | ({"Content-Encoding": coding} if coding else {})
        with api.app.state.api.requests.reserve(50_000):
            assert_error(await api.post("/topics/t", content=chunks(), headers=headers), 429, 42901)
            assert api.app.state.api.requests.reserved == 50_000
        assert (await api.post("/topics/t", content=chunks(), headers=headers)).status_code == 200
        assert api.app.state.api.requests.reserved == 0


async def test_inflated_bytes_of_arrow_buffers_are_reserved(tmp_path):
    async with running_api(tmp_path / "data", max_request_size=400_000, queued_max_request_bytes=400_000) as api:
        await api.create_topic("t")
        batch = pa.record_batch({"value": pa.array([bytes(300_000)], pa.binary())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)
        body = sink.getvalue().to_pybytes()
        assert len(body) < 1_000
        headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
        for coding, sent in ({}, body), ({"Content-Encoding": "gzip"}, gzip.compress(body)):
            with api.app.state.api.requests.reserve(150_000):
                assert_error(await api.post("/topics/t", content=sent, headers=headers | coding), 429, 42901)
                assert api.app.state.api.requests.reserved == 150_000
            assert (await api.post("/topics/t", content=sent, headers=headers | coding)).status_code == 200
        assert api.app.state.api.requests.reserved == 0


async def test_a_full_journal_answers_429_and_a_roll_makes_room(tmp_path):
    async with running_api(tmp_path / "data", journal_max_bytes=20 << 20) as api:
        await api.create_topic("t", max_message_bytes=str(8 << 20))
        body = {"records": [{"value": "x" * (7 << 20)}]}
        answers = [await api.post("/topics/t", json=body)]
        while answers[-1].is_success and len(answers) < 5:
            answers.append(await api.post("/topics/t", json=body))
        assert_error(answers[-1], 429, 42901)
        assert int(answers[-1].headers["Retry-After"]) >= 1
        stored = len(answers) - 1
        assert api.end_offsets("t") == [stored]

        for _ in range(50):
            await api.post("/topics/t/roll")
            if (again := await api.post("/topics/t", json=body)).is_success:
                break
            await asyncio.sleep(0.1)
        assert again.json()["offsets"][0]["offset"] == stored


async def test_answers_to_slow_readers_are_bounded_apart_from_requests(api):
    await api.create_topic("t")
    await api.produce("t", ["x" * 1000])
    state = api.app.state.api
    with state.answers.reserve(state.answers.limit):
        assert_error(await api.fetch("t"), 429, 42901)
        assert (await api.produce("t", ["more"])).status_code == 200
    assert await api.values("t") == ["x" * 1000, "more"]
    assert state.answers.reserved == 0


@pytest.mark.parametrize("rolled", [False, True], ids=["tail", "history"])
@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "application/vnd.kafka.json.v2+json",
        "application/vnd.kafka.binary.v2+json",
        "application/vnd.apache.arrow.stream",
        "application/vnd.logstore.fetch",
    ],
)
async def test_many_large_answers_at_once_stay_within_the_bound(tmp_path, monkeypatch, accept, rolled):
    limit = 3_000_000
    async with running_api(tmp_path, queued_max_request_bytes=limit, max_request_size=limit) as api:
        await api.create_topic("t")
        for _ in range(3):
            await api.produce("t", ["x" * 300_000])
        if rolled:
            await api.post("/topics/t/roll")
        answers = api.app.state.api.answers
        most = 0
        take = answers._take

        def watched(*given, **options) -> None:
            nonlocal most
            take(*given, **options)
            most = max(most, answers.reserved)

        monkeypatch.setattr(answers, "_take", watched)

        async def read() -> int:
            if accept.endswith("fetch"):
                body = {"partitions": [{"topic": "t", "partition": 0, "offset": 0}], "max_wait_ms": 30_000}
                return (await api.post("/fetch", json=body)).status_code
            return (await api.fetch("t", accept=accept, offset=0, max_wait_ms=30_000)).status_code

        statuses = await asyncio.gather(*(read() for _ in range(50)))
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 10, "others wait for their turn"
        assert 900_000 / 10 < most <= limit
        assert answers.reserved == 0


@pytest.mark.parametrize(
    "accept", ["application/json", "application/vnd.kafka.json.v2+json", "application/vnd.kafka.binary.v2+json"]
)
async def test_an_answer_of_small_records_takes_the_room_that_it_needs(tmp_path, accept):
    """Make an answer that is many times larger than its records, through the names of its fields and its topic."""
    topic = "t" * 200
    async with running_api(tmp_path, queued_max_request_bytes=1_000_000, max_request_size=1_000_000) as api:
        await api.create_topic(topic)
        await api.produce(topic, [1] * 2_000)
        answers = api.app.state.api.answers
        whole = await api.fetch(topic, accept=accept)
        assert (whole.status_code, len(whole.json())) == (200, 2_000)
        assert len(whole.content) > 5 * 2_000 * 33
        with answers.reserve(1_000_000 - len(whole.content)):
            assert_error(await api.fetch(topic, accept=accept), 429, 42901)
        with answers.reserve(1_000_000 - len(whole.content) - 2_000 * 50):
            assert (await api.fetch(topic, accept=accept)).content == whole.content
        assert answers.reserved == 0
