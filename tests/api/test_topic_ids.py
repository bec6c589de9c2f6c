"""Requests may name a topic's id: a later topic of the same name is not read, written or committed to (KIP-516)."""

import asyncio
import uuid
from http import HTTPStatus

import pyarrow as pa
import pytest

from logstore.protocol.fetch_response import PartitionData, read_fetch_response
from tests.api.api_client import ARROW, JSON_V2, NDJSON, ApiClient, assert_error, running_api
from tests.api.listening import connected, listening
from tests.api.test_fetch import FETCH
from tests.api.test_short_requests import read_answer, request
from tests.support.eventually import loop_turns

pytestmark = pytest.mark.anyio

UNKNOWN_TOPIC_ID = 40406
ID = "Logstore-Topic-Id"


async def topic_id(api: ApiClient, topic: str = "t") -> str:
    return (await api.get(f"/topics/{topic}")).json()["topic_id"]


def responses(content: bytes) -> list[PartitionData]:
    return list(read_fetch_response(pa.py_buffer(content)))


async def made_again(api: ApiClient, topic: str = "t", partitions: int = 1) -> str:
    """Delete the topic, create it again, and return the id of the deleted one."""
    before = await topic_id(api, topic)
    assert (await api.delete(f"{api.topics_url}/{topic}")).status_code == HTTPStatus.NO_CONTENT
    await api.create_topic(topic, partitions=partitions)
    return before


@pytest.fixture
async def again(api: ApiClient) -> str:
    """Return the id of a deleted topic ``t``. The present topic ``t`` has three records."""
    await api.create_topic("t")
    before = await made_again(api)
    await api.produce("t", [1, 2, 3])
    return before


async def test_both_descriptions_of_a_topic_give_its_id(api, again):
    described = (await api.get(f"{api.topics_url}/t")).json()
    assert described["topic_id"] == await topic_id(api) != again


@pytest.mark.parametrize("rest", ["records?offset=1&max_wait_ms=0", "offsets", "offsets?timestamp=0"])
async def test_a_read_answers_the_topics_id_and_refuses_another(api, again, rest):
    now = await topic_id(api)
    for headers in ({}, {ID: now}):
        answer = await api.get(f"/topics/t/partitions/0/{rest}", headers=headers)
        assert answer.status_code == HTTPStatus.OK
        assert answer.headers[ID] == now
    for wrong in (again, now.upper(), "", str(uuid.uuid4()), "x" * 3_000):
        answer = await api.get(f"/topics/t/partitions/0/{rest}", headers={ID: wrong})
        message = assert_error(answer, 404, UNKNOWN_TOPIC_ID)
        assert "made again" in message
        assert answer.headers[ID] == now
    twice = await api.get(f"/topics/t/partitions/0/{rest}", headers=[(ID, now), (ID, again)])
    assert_error(twice, 404, UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize(
    ("path", "status"), [("0/records?offset=9", 416), ("7/records", 404), ("7/offsets", 404), ("0/offsets?x=1", 422)]
)
async def test_an_error_has_the_topics_id_once_the_topic_is_known(api, again, path, status):
    answer = await api.get(f"/topics/t/partitions/{path}")
    assert_error(answer, status)
    known = status != HTTPStatus.UNPROCESSABLE_ENTITY
    assert answer.headers.get(ID) == (await topic_id(api) if known else None)
    assert ID not in (await api.get("/topics/absent/partitions/0/offsets")).headers


async def test_a_long_poll_of_a_topic_that_is_made_again_does_not_continue_in_the_new_one(api):
    await api.create_topic("t")
    waiting = asyncio.create_task(api.fetch("t", offset=0, max_wait_ms=20_000))
    await loop_turns()
    before = await made_again(api)
    await api.produce("t", ["new"])
    answer = await waiting
    assert_error(answer, 404, 40401)
    assert answer.headers[ID] == before


async def test_records_are_not_deleted_in_another_topic(api, again):
    path = "/topics/t/partitions/0/delete-records"
    answer = await api.post(path, json={"before_offset": 2}, headers={ID: again})
    assert_error(answer, 404, UNKNOWN_TOPIC_ID)
    answer = await api.post(path, json={"before_offset": 1}, headers={ID: await topic_id(api)})
    assert answer.json() == {"log_start_offset": 1}


async def test_a_fetch_names_the_topic_of_each_partition(api, again):
    await api.create_topic("u")
    await api.produce("u", [7])
    now, other = await topic_id(api), await topic_id(api, "u")

    async def codes(*ids: tuple[str, str | None]) -> dict[int, int]:
        partitions = [
            {"topic": topic, "partition": 0, "offset": 0, **({} if told is None else {"topic_id": told})}
            for topic, told in ids
        ]
        answer = await api.post("/fetch", json={"partitions": partitions, "max_wait_ms": 60_000, "min_bytes": 1 << 20})
        assert answer.headers["Content-Type"] == FETCH
        return {response.index: response.error_code for response in responses(answer.content)}

    refused = {0: UNKNOWN_TOPIC_ID, 1: 0, 2: UNKNOWN_TOPIC_ID, 3: 40401}
    assert await codes(("t", again), ("u", other), ("u", now), ("absent", now)) == refused
    assert await codes(("t", now), ("u", "")) == {0: 0, 1: UNKNOWN_TOPIC_ID}
    answer = await api.post("/fetch", json={"partitions": [{"topic": "t", "partition": 0, "offset": 0, "topic_id": 1}]})
    assert_error(answer, 422)


async def test_a_fetch_that_waits_ends_when_its_topic_is_made_again(api):
    await api.create_topic("t")
    wanted = {"topic": "t", "partition": 0, "offset": 0, "topic_id": await topic_id(api)}
    waiting = asyncio.create_task(api.post("/fetch", json={"partitions": [wanted], "max_wait_ms": 20_000}))
    await loop_turns()
    await made_again(api)
    (response,) = responses((await asyncio.wait_for(waiting, 30)).content)
    assert response.error_code in {UNKNOWN_TOPIC_ID, 40401}


async def test_offsets_of_another_topic_are_not_committed(api, again):
    await api.create_topic("u")
    now, other = await topic_id(api), await topic_id(api, "u")

    def committing(told: str | None) -> dict[str, object]:
        first = {"topic": "u", "partition": 0, "offset": 0, "topic_id": other}
        return {"offsets": [first, {"topic": "t", "partition": 0, "offset": 2, "topic_id": told}]}

    assert_error(await api.post("/groups/g/offsets", json=committing(again)), 404, UNKNOWN_TOPIC_ID)
    assert (await api.get("/groups")).json() == []
    for told in (now, None):
        answer = await api.post("/groups/g/offsets", json=committing(told))
        assert answer.json()["offsets"][1] == {"topic": "t", "partition": 0, "offset": 2, "metadata": ""}


@pytest.mark.parametrize("path", ["/topics/t", "/topics/t/partitions/0"])
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"records":[{"value":1}]}', {"Content-Type": JSON_V2}),
        (b'{"records":[{"value":1}]}', {"Content-Type": JSON_V2, "Idempotency-Key": "k"}),
        (b"1\n", {"Content-Type": NDJSON}),
        (b"none", {"Content-Type": ARROW}),
        (
            b'{"records":[{"value":1,"partition":0}]}',
            {
                "Content-Type": JSON_V2,
                "Logstore-Producer-Id": "0",
                "Logstore-Producer-Epoch": "0",
                "Logstore-Base-Sequences": "0=0",
            },
        ),
    ],
)
async def test_records_for_another_topic_are_not_stored(api, again, path, body, headers):
    answer = await api.post(path, content=body, headers={**headers, ID: again})
    assert_error(answer, 404, UNKNOWN_TOPIC_ID)
    assert api.end_offsets("t") == [3]


async def test_records_for_a_certain_topic_do_not_make_one(tmp_path):
    async with running_api(tmp_path / "auto", auto_create_topics_enable=True) as api:
        body = {"records": [{"value": 1}]}
        answer = await api.post("/topics/t", json=body, headers={ID: str(uuid.uuid4())})
        assert_error(answer, 404, 40401)
        assert (await api.get("/topics")).json() == []
        assert (await api.post("/topics/t", json=body)).status_code == HTTPStatus.OK


async def test_the_short_way_leaves_such_requests_to_the_application(api, again):
    now = await topic_id(api)
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        for told, status in ((None, "200"), (now, "200"), (again, "404"), (again, "404"), (None, "200")):
            writer.write(request(Logstore_Topic_Id=told))
            assert (await read_answer(reader))[0].split()[1] == status
    assert api.end_offsets("t") == [6]
