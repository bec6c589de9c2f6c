"""``POST /fetch``: many partitions in one request."""

import asyncio

import pyarrow as pa
import pytest

from logstore.protocol.fetch_response import read_fetch_response
from tests.api.api_client import assert_error
from tests.support.eventually import loop_turns

pytestmark = pytest.mark.anyio

FETCH = "application/vnd.logstore.fetch"


async def fetch(api, *asked: tuple[str, int, int], **options) -> dict[int, tuple[int, list[bytes] | str, int]]:
    """Fetch and return, by place in the request: the error code, the values or the error's message, the next offset."""
    partitions = [{"topic": topic, "partition": partition, "offset": offset} for topic, partition, offset in asked]
    answer = await api.post("/fetch", json={"partitions": partitions, "max_wait_ms": 0} | options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == FETCH
    found = {}
    for response in read_fetch_response(pa.py_buffer(answer.content)):
        values: list[bytes] | str = str(response.error)
        if response.error is None:
            batches = response.records(asked[response.index][2])
            values = [value for batch in batches for value in batch.column("value").to_pylist()]
        assert response.index not in found
        found[response.index] = (response.error_code, values, response.next_offset)
    return found


async def test_each_partition_from_its_own_offset_and_nothing_of_those_at_their_ends(api):
    await api.create_topic("t", partitions=3)
    await api.create_topic("u")
    await api.produce("t", [1, 2, 3], partition=0)
    await api.produce("t", [4, 5], partition=2)
    await api.post("/topics/t/roll")
    await api.produce("t", [6], partition=2)
    await api.produce("u", [7])
    asked = [("u", 0, 0), ("t", 2, 1), ("t", 1, 0), ("t", 0, 3)]
    assert await fetch(api, *asked) == {0: (0, [b"7"], 1), 1: (0, [b"5", b"6"], 3)}


async def test_a_partition_that_cannot_be_read_keeps_nobody_from_being_read(api):
    await api.create_topic("t", partitions=2)
    await api.produce("t", [1], partition=1)
    found = await fetch(
        api, ("absent", 0, 0), ("t", 9, 0), ("t", 0, 5), ("t", 1, 0), max_wait_ms=60_000, min_bytes=1_000_000
    )
    assert found[3] == (0, [b"1"], 1)
    assert {index: code for index, (code, _, _) in found.items()} == {0: 40401, 1: 40402, 2: 41601, 3: 0}
    assert "absent" in found[0][1]


async def test_bytes_are_bounded_and_the_first_in_the_request_come_first(api):
    await api.create_topic("t", partitions=3)
    for partition in range(3):
        for _ in range(4):
            await api.produce("t", ["x" * 998] * 10, partition=partition)
    asked = [("t", partition, 0) for partition in (2, 0, 1)]
    one_each = await fetch(api, *asked, max_partition_bytes=1)
    assert [(index, len(values)) for index, (_, values, _) in one_each.items()] == [(0, 10), (1, 10), (2, 10)]
    first = await fetch(api, *asked, max_bytes=25_000, max_partition_bytes=12_000)
    assert [(index, len(values)) for index, (_, values, _) in first.items()] == [(0, 10), (1, 10), (2, 10)]
    assert list(await fetch(api, *asked, max_bytes=1)) == [0]


@pytest.mark.parametrize("partition", [0, 2])
async def test_a_record_of_any_partition_ends_the_wait(api, partition):
    await api.create_topic("t", partitions=3)
    asked = [("t", p, 0) for p in range(3)]
    waiting = asyncio.create_task(fetch(api, *asked, max_wait_ms=60_000))
    await loop_turns()
    assert not waiting.done()
    await api.produce("t", [1], partition=partition)
    assert await asyncio.wait_for(waiting, 30) == {partition: (0, [b"1"], 1)}


async def test_waits_for_as_many_bytes_as_asked_over_all_partitions(api):
    await api.create_topic("t", partitions=2)
    waiting = asyncio.create_task(fetch(api, ("t", 0, 0), ("t", 1, 0), max_wait_ms=60_000, min_bytes=15_000))
    await api.produce("t", ["x" * 9_998], partition=0)
    await loop_turns()
    assert not waiting.done()
    await api.produce("t", ["x" * 9_998], partition=1)
    assert len(await asyncio.wait_for(waiting, 30)) == 2
    assert await fetch(api, ("t", 0, 1), ("t", 1, 1), max_wait_ms=10) == {}


async def test_a_topic_that_is_deleted_ends_the_wait(api):
    await api.create_topic("t")
    await api.create_topic("u")
    waiting = asyncio.create_task(fetch(api, ("t", 0, 0), ("u", 0, 0), max_wait_ms=60_000))
    await loop_turns()
    await api.delete(f"{api.topics_url}/u")
    found = await asyncio.wait_for(waiting, 30)
    assert {index: code for index, (code, _, _) in found.items()} == {1: 40401}


async def test_an_answer_is_reserved_while_it_is_sent(api):
    await api.create_topic("t")
    await api.produce("t", ["x" * 100_000])
    answers = api.app.state.api.answers
    answers.limit = 1_000
    with answers.reserve(999):
        body = {"partitions": [{"topic": "t", "partition": 0, "offset": 0}]}
        assert_error(await api.post("/fetch", json=body), 429, 42901)
    assert list(await fetch(api, ("t", 0, 0))) == [0]
    assert answers.reserved == 0


@pytest.mark.parametrize(
    "body",
    [
        {"partitions": []},
        {"partitions": [{"topic": "t", "partition": 0}]},
        {"partitions": [{"topic": "t", "partition": 0, "offset": -1}]},
        {"partitions": [{"topic": "t", "partition": 0, "offset": 0}], "max_bytes": 0},
        {"partitions": [{"topic": "t", "partition": 0, "offset": 0}], "max_wait_ms": 60_001},
        {"partitions": [{"topic": "t", "partition": 0, "offset": 0}], "maximum": 1},
    ],
)
async def test_malformed_input_is_refused(api, body):
    assert_error(await api.post("/fetch", json=body), 422, 42206)


async def test_only_its_own_format_is_given(api):
    body = {"partitions": [{"topic": "t", "partition": 0, "offset": 0}]}
    assert_error(await api.post("/fetch", json=body, headers={"Accept": "application/json"}), 406, 406)
