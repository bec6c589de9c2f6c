"""``GET /consumers/{group}/instances/{instance}/events`` over a socket."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from logstore.broker.context import INTERNAL
from logstore.errors import CoordinatorLoadInProgressError
from tests.api.api_client import ApiClient, assert_error, running_api
from tests.api.instance_client import InstanceClient, create
from tests.api.listening import listening
from tests.support.event_client import Event, streaming

pytestmark = pytest.mark.anyio

SETTINGS = {"group_initial_rebalance_delay_ms": 0, "event_stream_keepalive_ms": 200, "max_event_streams": 3}


@pytest.fixture
async def api(tmp_path, anyio_backend) -> AsyncIterator[ApiClient]:
    async with running_api(tmp_path / "data", **SETTINGS) as client:
        await client.create_topic("t", partitions=2)
        yield client


@pytest.fixture
async def url(api) -> AsyncIterator[str]:
    async with listening(api.app) as (port, _):
        yield f"http://127.0.0.1:{port}"


def events_of(instance: InstanceClient) -> str:
    return f"{instance.path}/events"


def values(events: list[Event]) -> list[object]:
    return [event.json["value"] for event in events]


async def test_records_are_pushed_and_a_client_that_comes_back_continues_after_its_last_event(api, url):
    await api.produce("t", [0, 1, 2])
    instance = await create(api)
    await instance.subscribe("t")
    async with streaming(url, path=events_of(instance)) as client:
        assert values(await client.take(3)) == [0, 1, 2]
        await api.produce("t", [3], partition=1)
        (event,) = await client.take(1)
        assert (event.json["partition"], event.json["offset"], event.json["value"]) == (1, 0, 3)
        await client.until(lambda: bool(client.parser.comments))  # keep-alive
        assert_error(
            await instance.post("/positions/end", {"partitions": [{"topic": "t", "partition": 0}]}), 409, 40903
        )
        committed = await instance.commit()
        assert [(entry["partition"], entry["committed"]) for entry in committed] == [(0, 3), (1, 1)]
        last_id = client.last_id
    async with streaming(url, path=events_of(instance)) as client:
        await api.produce("t", [4, 5])
        assert values(await client.take(2)) == [4, 5]
    # The client received the first of them, but not the second.
    async with streaming(url, path=events_of(instance), last_id=last_id.replace("0:3", "0:4")) as client:
        assert values(await client.take(1)) == [5]
    # The position names no partition that the instance holds, as after a rebalance.
    async with streaming(url, path=events_of(instance), last_id="ffffffff.0:1") as client:
        await api.produce("t", [6])
        assert values(await client.take(1)) == [6]


async def test_a_stream_continues_committing_by_itself_after_a_commit_that_failed(api, url, monkeypatch):
    monkeypatch.setattr("ingest_api.routers.instance_records.AUTO_COMMIT_S", 0.05)
    instance = await create(api, auto_commit_enable=True)
    await instance.assign(0)
    failed = asyncio.Event()
    found = api.app.state.api.groups.instances.get(INTERNAL, "g", "c")
    commit = found.auto_commit_stream

    async def fails_once(handed):
        if handed and not failed.is_set():
            failed.set()
            raise CoordinatorLoadInProgressError("The coordinator is loading.")
        return await commit(handed)

    monkeypatch.setattr(found, "auto_commit_stream", fails_once)
    async with streaming(url, path=events_of(instance)) as client:
        await api.produce("t", [0, 1])
        assert values(await client.take(2)) == [0, 1]
        await asyncio.wait_for(failed.wait(), 20)
        for _ in range(500):
            if await instance.committed(0) == {0: 2}:
                break
            await asyncio.sleep(0.02)
        assert await instance.committed(0) == {0: 2}


async def test_partitions_come_and_go_while_a_stream_is_open(api, url):
    first, second = await create(api, "first"), await create(api, "second")
    await first.subscribe("t")
    async with streaming(url, path=events_of(first)) as stream:
        await api.produce("t", [0])
        await api.produce("t", [1], partition=1)
        assert sorted(values(await stream.take(2))) == [0, 1]
        await first.commit()
        await second.subscribe("t")
        async with streaming(url, path=events_of(second)) as other:
            for _ in range(500):
                held = [await first.assigned(), await second.assigned()]
                if all(len(places) == 1 for places in held):
                    break
                await asyncio.sleep(0.02)
            for partition in range(2):
                await api.produce("t", [f"to {partition}"], partition=partition)
            for client, ((_, partition),) in zip((stream, other), held, strict=True):
                assert values(await client.take(1)) == [f"to {partition}"]
        assert (await api.delete(second.path)).status_code == 204
        for _ in range(500):
            if len(await first.assigned()) == 2:
                break
            await asyncio.sleep(0.02)
        # The first instance gets the records that the second received and did not commit.
        ((_, partition),) = held[1]
        assert values(await stream.take(1)) == [f"to {partition}"]


async def test_a_deletion_ends_a_stream_and_one_reads_at_a_time(api, url, monkeypatch):
    monkeypatch.setattr("ingest_api.routers.instance_records._TURN_MS", 100)
    instance = await create(api)
    await instance.assign(0)
    async with streaming(url, path=events_of(instance)) as client:
        await client.began()
        async with streaming(url, path=events_of(instance)) as second:
            assert second.response.status_code == 409
        assert await instance.poll(0) == []
        assert (await api.delete(instance.path)).status_code == 204
        (error,) = await client.rest()
        assert (error.kind, error.json["error_code"]) == ("error", 40403)


async def test_streams_that_cannot_be_are_refused(api):
    instance = await create(api)
    assert_error(await instance.get("/events"), 409, 40903)
    await instance.assign(0)
    assert_error(await instance.get("/events?from=latest"), 422, 422)
    assert_error(await instance.get("/events", headers={"Accept": "application/json"}), 406, 406)
    assert_error(await instance.get("/events", headers={"Last-Event-ID": "nonsense"}), 422, 422)
    assert await instance.poll(0) == []
