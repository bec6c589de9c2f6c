import asyncio
import json

import msgspec
import pyarrow as pa
import pytest

from logstore.broker.context import INTERNAL
from logstore.limits import TIMES_PARTITIONS_MAX
from logstore.protocol.messages.records import ConsumedRecord, DeletedRecords, OffsetsForTimes, PartitionOffsets
from tests.api.api_client import ARROW, BINARY_V2, JSON_V2, NDJSON, assert_error
from tests.support.eventually import eventually_async, loop_turns

pytestmark = pytest.mark.anyio


def running_coroutines() -> set[str]:
    return {task.get_coro().__qualname__ for task in asyncio.all_tasks()}


def positions(answer) -> tuple[int, int, int]:
    names = ("Log-Start-Offset", "High-Watermark", "Next-Offset")
    return tuple(int(answer.headers[f"Logstore-{name}"]) for name in names)


async def test_records_come_in_the_v2_shape_with_timestamp_and_headers(api):
    await api.create_topic("t")
    record = {"key": "k", "value": 1, "timestamp": 5, "headers": [{"key": "h", "value": "aGk="}]}
    await api.post("/topics/t", json={"records": [record, {"value": 2}]})
    answer = await api.fetch("t", offset=0)
    assert answer.headers["Content-Type"] == JSON_V2
    first, second = answer.json()
    assert first == {"topic": "t", "partition": 0, "offset": 0, **record}
    assert set(second) == {"topic", "key", "value", "partition", "offset", "timestamp"}
    assert second["timestamp"] > 1_600_000_000_000
    for found in (first, second):
        msgspec.convert(found, ConsumedRecord)
    assert positions(answer) == (0, 2, 2)


async def test_without_an_offset_reading_starts_at_the_log_start(api):
    await api.create_topic("t")
    await api.produce("t", [0, 1, 2])
    await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 2})
    answer = await api.fetch("t")
    assert [record["offset"] for record in answer.json()] == [2]
    assert positions(answer) == (2, 3, 3)


@pytest.mark.parametrize("rolled", [False, True])
async def test_at_least_one_record_comes_whatever_max_bytes_says(api, rolled):
    await api.create_topic("t")
    await api.produce("t", ["x" * 100, "y" * 100, "z" * 100])
    if rolled:
        assert (await api.post("/topics/t/roll")).status_code == 200
    seen, at = [], 0
    while at < 3:
        answer = await api.fetch("t", offset=at, max_bytes=1)
        (record,) = answer.json()
        seen.append(record["value"][0])
        assert positions(answer) == (0, 3, at + 1)
        at += 1
    assert seen == ["x", "y", "z"]


async def test_history_and_tail_read_as_one(api):
    await api.create_topic("t")
    await api.produce("t", list(range(5)))
    await api.post("/topics/t/roll")
    await api.produce("t", list(range(5, 10)))
    assert await api.values("t") == list(range(10))
    assert await api.values("t", offset=4) == list(range(4, 10))


async def test_at_the_high_watermark_the_answer_is_empty_after_the_wait(api):
    await api.create_topic("t")
    await api.produce("t", [1])
    for accept in (JSON_V2, BINARY_V2, "application/json"):
        answer = await api.fetch("t", offset=1, max_wait_ms=1, accept=accept)
        assert (answer.status_code, answer.json(), positions(answer)) == (200, [], (0, 1, 1))
    arrow = await api.fetch("t", offset=1, max_wait_ms=0, accept=ARROW)
    table = pa.ipc.open_stream(arrow.content).read_all()
    assert (table.num_rows, table.column_names[0]) == (0, "offset")


async def test_a_long_poll_ends_with_the_first_record(api):
    await api.create_topic("t")
    poll = asyncio.create_task(api.fetch("t", offset=0, max_wait_ms=60_000))
    await loop_turns()
    assert not poll.done()
    await api.produce("t", ["now"])
    answer = await asyncio.wait_for(poll, 30)
    assert [record["value"] for record in answer.json()] == ["now"]


async def test_a_long_poll_waits_for_min_bytes(api):
    await api.create_topic("t")
    poll = asyncio.create_task(api.fetch("t", offset=0, min_bytes=3000, max_wait_ms=60_000))
    for n in range(3):
        await loop_turns()
        assert not poll.done()
        await api.produce("t", [f"{n}" * 1000])
    assert len((await asyncio.wait_for(poll, 30)).json()) == 3


async def test_min_bytes_above_max_bytes_does_not_wait_for_what_cannot_come(api):
    await api.create_topic("t")
    await api.produce("t", ["x" * 1000])
    answer = await asyncio.wait_for(api.fetch("t", offset=0, max_bytes=10, min_bytes=9999, max_wait_ms=60_000), 30)
    assert len(answer.json()) == 1


@pytest.mark.parametrize("offset", [0, 4, 2**63 - 1])
async def test_an_offset_out_of_range_is_416_with_the_range(api, offset):
    await api.create_topic("t")
    await api.produce("t", [0, 1, 2])
    await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 1})
    answer = await api.fetch("t", offset=offset)
    message = assert_error(answer, 416, 41601)
    assert "1 to 3" in message
    assert answer.headers["Logstore-Log-Start-Offset"] == "1"
    assert answer.headers["Logstore-High-Watermark"] == "3"


@pytest.mark.parametrize("rolled", [False, True])
async def test_a_value_that_is_not_json_is_422_and_names_the_offset(api, rolled):
    await api.create_topic("t")
    await api.post("/topics/t", content=b"1\nnot json\n3", headers={"Content-Type": NDJSON})
    if rolled:
        await api.post("/topics/t/roll")
    message = assert_error(await api.fetch("t", offset=0, accept=JSON_V2), 422, 42207)
    assert "offset 1" in message
    assert "application/vnd.kafka.binary.v2+json" in message
    assert len((await api.fetch("t", offset=0, accept=BINARY_V2)).json()) == 3
    assert [record["value"] for record in (await api.fetch("t", offset=2)).json()] == [3]


async def test_a_client_that_leaves_a_long_poll_leaves_nothing_behind(api):
    await api.create_topic("t")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/topics/t/partitions/0/records",
        "raw_path": b"/topics/t/partitions/0/records",
        "query_string": b"offset=0&max_wait_ms=60000",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    messages = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    sent = []

    async def send(message):
        sent.append(message)

    polling = asyncio.create_task(api.app(scope, messages.get, send))
    await loop_turns()
    assert {"client_left", "answer_wanted"} <= running_coroutines()
    assert api.app.state.api.stopping._waiters
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(polling, 30)
    assert sent == []
    await eventually_async(lambda: not {"client_left", "answer_wanted"} & running_coroutines())
    assert not api.app.state.api.stopping._waiters
    assert api.app.state.api.answers.reserved == 0


async def test_a_poll_of_a_topic_that_is_deleted_ends_with_404(api):
    await api.create_topic("t")
    poll = asyncio.create_task(api.fetch("t", offset=0, max_wait_ms=60_000))
    await loop_turns()
    assert (await api.delete(f"{api.topics_url}/t")).status_code == 204
    assert_error(await asyncio.wait_for(poll, 30), 404, 40401)


async def test_polls_answer_when_the_server_begins_to_stop(api):
    await api.create_topic("t")
    poll = asyncio.create_task(api.fetch("t", offset=0, min_bytes=10, max_wait_ms=60_000))
    await loop_turns()
    await api.produce("t", [1])
    api.app.state.api.stopping.set()
    answer = await asyncio.wait_for(poll, 30)
    assert [record["value"] for record in answer.json()] == [1]


async def test_a_large_answer_is_whole_and_is_given_back(api):
    await api.create_topic("t")
    values = [f"{n:06d}" * 1000 for n in range(200)]
    await api.produce("t", values)
    answer = await api.fetch("t", offset=0, max_bytes=64 << 20)
    assert int(answer.headers["Content-Length"]) == len(answer.content) > 1_200_000
    assert [record["value"] for record in answer.json()] == values
    assert api.app.state.api.answers.reserved == 0


async def test_offsets_and_the_offset_of_a_time(api):
    await api.create_topic("t")
    records = [{"value": n, "timestamp": timestamp} for n, timestamp in enumerate([10, 30, 20, 40])]
    await api.post("/topics/t", json={"records": records})
    plain = await api.get("/topics/t/partitions/0/offsets")
    assert plain.json() == {"beginning_offset": 0, "end_offset": 4, "last_stable_offset": 4}
    for timestamp, expected in [(0, (0, 10)), (10, (0, 10)), (11, (1, 30)), (35, (3, 40)), (41, (None, None))]:
        answer = await api.get("/topics/t/partitions/0/offsets", params={"timestamp": timestamp})
        msgspec.json.decode(answer.content, type=PartitionOffsets)
        assert (answer.json()["offset"], answer.json()["timestamp"]) == expected
    negative = await api.get("/topics/t/partitions/0/offsets", params={"timestamp": -5})
    assert negative.json()["offset"] == 0


async def test_offsets_of_times_in_many_partitions(api):
    await api.create_topic("t", partitions=3)
    for partition in (0, 2):
        records = [{"value": n, "timestamp": 10 * (n + partition)} for n in range(4)]
        await api.post(f"/topics/t/partitions/{partition}", json={"records": records})

    def asked(*partitions):
        body = {"partitions": [{"partition": p, "timestamp": at} for p, at in partitions]}
        return api.post("/topics/t/offsets-for-times", json=body)

    answer = await asked((2, 21), (0, -5), (1, 0), (0, 31))
    msgspec.json.decode(answer.content, type=OffsetsForTimes)
    assert [(o["partition"], o["offset"], o["timestamp"]) for o in answer.json()["offsets"]] == [
        (2, 1, 30),
        (0, 0, 0),
        (1, None, None),
        (0, None, None),
    ]
    assert_error(await asked((0, 0), (3, 0)), 404, 40402)
    assert_error(await asked(*([(0, 0)] * (TIMES_PARTITIONS_MAX + 1))), 422, 42206)
    api.broker.topics.served.topic(INTERNAL, "t").partition(1).quarantine("a test", "end it")
    assert_error(await asked((0, 0), (1, 0)), 503, 50303)


async def test_the_ends_of_a_partition_in_quarantine_are_not_reported(api):
    """Refuse to report ends that may not be known: ``logstore group reset --to-latest`` would commit them."""
    await api.create_topic("t")
    await api.produce("t", [0, 1, 2])
    api.broker.topics.served.topic(INTERNAL, "t").partition(0).quarantine("a test", "end it")
    for query in ({}, {"timestamp": 0}):
        assert_error(await api.get("/topics/t/partitions/0/offsets", params=query), 503, 50303)
    for offset in (0, 3, 4):
        assert_error(await api.fetch("t", offset=offset), 503, 50303)


async def test_the_time_of_an_offset_as_people_write_it(api, monkeypatch):
    day = 86_400_000
    now = 20_000 * day + day // 2  # 2024-10-04T12:00:00Z
    monkeypatch.setattr(api.broker.clock, "now_ms", lambda: now)
    await api.create_topic("t")
    times = [now - 2 * day, now - day, now - 3_600_000, now]
    records = [{"value": n, "timestamp": timestamp} for n, timestamp in enumerate(times)]
    await api.post("/topics/t", json={"records": records})
    for text, expected in [
        ("2024-10-04T12:00:00Z", 3),
        ("2024-10-03T12:00", 1),
        ("2024-10-03", 1),
        ("2024-10-04T13:00:00+02:00", 2),
        ("2024-10-04T11:00:00.001+00:00", 3),
        ("yesterday", 1),
        ("today", 2),
        ("now", 3),
        ("-1h", 2),
        ("-2d", 0),
        ("-1d12h", 1),
    ]:
        # An unescaped "+" is a space.
        for query in ({"timestamp": text}, f"timestamp={text}"):
            answer = await api.get("/topics/t/partitions/0/offsets", params=query)
            assert answer.json()["offset"] == expected, (query, answer.text)
    assert "yesterday" in assert_error(await api.get("/topics/t/partitions/0/offsets?timestamp=soon"), 422, 422)


async def test_delete_records_moves_the_log_start(api):
    await api.create_topic("t")
    await api.produce("t", [0, 1, 2, 3])
    answer = await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 3})
    msgspec.json.decode(answer.content, type=DeletedRecords)
    assert answer.json() == {"log_start_offset": 3}
    lower = await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 1})
    assert lower.json() == {"log_start_offset": 3}
    assert await api.values("t", offset=3) == [3]
    everything = await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": -1})
    assert everything.json() == {"log_start_offset": 4}
    assert_error(await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 5}), 416, 41601)
    ends = {"beginning_offset": 4, "end_offset": 4, "last_stable_offset": 4}
    assert (await api.get("/topics/t/partitions/0/offsets")).json() == ends


@pytest.mark.parametrize("value", [json.dumps(text) for text in ('quo"te', "\u2028", "\\", "\x00", "😀")])
async def test_any_json_text_survives_the_way_through(api, value):
    await api.create_topic("t")
    body = b'{"records":[{"key":%s,"value":%s}]}' % (value.encode(), value.encode())
    await api.post("/topics/t", content=body, headers={"Content-Type": JSON_V2})
    (record,) = (await api.fetch("t", offset=0)).json()
    assert record["key"] == record["value"] == json.loads(value)
