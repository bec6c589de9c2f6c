"""A produce request to a broker that does not lead is handled as at the leader: identities, acks, formats, refusals."""

import asyncio
import dataclasses
import io
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from logstore.broker.context import INTERNAL
from logstore.records.schema import WIRE_SCHEMA
from tests.api.api_client import ARROW, NDJSON
from tests.support.eventually import eventually_async
from tests.support.relaying import RelayingCluster, relaying_cluster
from tests.support.running_broker import read_all
from tests.support.running_broker import records as columns

pytestmark = pytest.mark.anyio


def records(*partitions: int, value: object = 1) -> dict:
    return {"records": [{"key": "k", "value": value, "partition": p} for p in partitions]}


async def stored(cluster: RelayingCluster, partition: int) -> list:
    """Return the values in a partition, read at its leader."""
    topic_id = cluster.topic("t").topic_id
    leader = cluster.states[topic_id, partition].leader
    return [value for _, value in await read_all(cluster.brokers[leader], cluster.topic("t", leader), partition)]


def places(answer: httpx.Response) -> list[tuple]:
    assert answer.status_code == 200, answer.text
    return [(one["partition"], one["offset"], one["error_code"]) for one in answer.json()["offsets"]]


@pytest.mark.parametrize("replicated", [False, True])
async def test_a_key_is_known_whichever_broker_the_retry_reaches(tmp_path: Path, *, replicated: bool):
    async with relaying_cluster(tmp_path, 1, 2, 3, replicated=replicated) as cluster:
        key = {"Idempotency-Key": "once"}
        for number, running in cluster.running.items():
            answer = await running.http.post("/topics/t", json=records(0, 1, 2, 2), headers=key)
            assert places(answer) == [(0, 0, None), (1, 0, None), (2, 0, None), (2, 1, None)]
            assert answer.headers.get("idempotent-replayed") == (None if number == 1 else "true")
        for running in cluster.running.values():
            answer = await running.http.post("/topics/t", json=records(0, 1, 2, 2, value=2), headers=key)
            assert (answer.status_code, answer.json()["error_code"]) == (422, 42211), answer.text
        assert [len(await stored(cluster, p)) for p in range(3)] == [1, 1, 2]


async def test_sequences_continue_at_any_broker(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        one, two, three = (running.http for running in cluster.running.values())
        made = (await two.post("/producers")).json()
        headers = {
            "Logstore-Producer-Id": str(made["producer_id"]),
            "Logstore-Producer-Epoch": str(made["producer_epoch"]),
        }

        async def send(http: httpx.AsyncClient, sequences: str, *partitions: int) -> httpx.Response:
            body = records(*partitions)
            return await http.post("/topics/t", json=body, headers={**headers, "Logstore-Base-Sequences": sequences})

        assert places(await send(one, "1=0,2=0", 1, 2, 2)) == [(1, 0, None), (2, 0, None), (2, 1, None)]
        assert places(await send(three, "1=1,2=2", 1, 2)) == [(1, 1, None), (2, 2, None)]
        again = await send(two, "1=1,2=2", 1, 2)
        assert places(again) == [(1, 1, None), (2, 2, None)]
        assert again.headers["idempotent-replayed"] == "true"
        assert places(await send(one, "0=0,1=9", 0, 1)) == [(0, 0, None), (None, None, 40911)]
        answer = await send(one, "1=9", 1)
        assert (answer.status_code, answer.json()["error_code"]) == (409, 40911)
        answer = await send(one, "2=3", 1)
        assert (answer.status_code, answer.json()["error_code"]) == (400, 40003)
        assert [len(await stored(cluster, p)) for p in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
async def test_acks(tmp_path: Path, acks: str):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        answer = await cluster.running[1].http.post(f"/topics/t?acks={acks}", json=records(0, 1, 2))
        assert answer.status_code == (202 if acks == "0" else 200), answer.text
        for partition in range(3):

            async def is_stored(it: int = partition) -> bool:
                return len(await stored(cluster, it)) == 1

            for _ in range(6_000):
                if await is_stored():
                    break
                await asyncio.sleep(0.01)
            assert await is_stored()
        assert cluster.brokers[1].elsewhere.appends._unanswered_bytes == 0


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
async def test_arrow_batches_go_as_they_were_sent(tmp_path: Path, codec: str | None):
    at = [None, 1_700_000_000_000, 1_600_000_000_000]
    batch = pa.RecordBatch.from_pydict(
        {"timestamp": at, "key": [b"k", None, b""], "value": [b"1" * 100, b"2", None], "headers": [None] * 3},
        schema=WIRE_SCHEMA,
    )
    body = io.BytesIO()
    with pa.ipc.new_stream(body, WIRE_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        one = cluster.running[1].http
        for number, partition in enumerate((0, 1)):
            answer = await one.post(
                f"/topics/t/partitions/{partition}", content=body.getvalue(), headers={"Content-Type": ARROW}
            )
            assert answer.json() == {"ranges": [{"partition": partition, "base_offset": 0, "count": 3}]}, answer.text
            log = cluster.topic("t", number + 1).partition(partition)
            assert log.high_watermark == 3
            found = await cluster.brokers[number + 1].fetch.partition(
                INTERNAL, cluster.topic("t", number + 1), partition, 0, max_bytes=10_000, min_bytes=1, max_wait_ms=0
            )
            assert found.records["value"].to_pylist() == [b"1" * 100, b"2", None]
            assert found.records["timestamp"].cast(pa.int64()).to_pylist()[1:] == at[1:]
            # The newest timestamp is the append time, which the record without a timestamp got.
            assert log.newest_timestamp_ms == found.records["timestamp"].cast(pa.int64()).to_pylist()[0]


async def test_records_without_a_partition_are_spread_as_at_one_broker(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        keyed = {"records": [{"key": f"k{n}", "value": n} for n in range(50)]}
        found = [places(await running.http.post("/topics/t", json=keyed)) for running in cluster.running.values()]
        assert len({tuple(partition for partition, _, _ in one) for one in found}) == 1
        lines = b"\n".join(b"%d" % n for n in range(9))
        for running in cluster.running.values():
            answer = await running.http.post("/topics/t", content=lines, headers={"Content-Type": NDJSON})
            assert sum(one["count"] for one in answer.json()["ranges"]) == 9
        assert sum([len(await stored(cluster, p)) for p in range(3)]) == 3 * 59


async def test_one_partition_that_is_refused_stops_no_other(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        one = cluster.running[1].http
        cluster.topic("t", 3).partition(2).quarantine("of a test", "")
        answer = await one.post("/topics/t", json=records(0, 1, 2, 7))
        assert places(answer) == [(0, 0, None), (1, 0, None), (None, None, 50303), (None, None, 40402)]
        answer = await one.post("/topics/t", json=records(2))
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50303)
        answer = await one.post("/topics/t", json={"records": [{"value": 1}], "x": 1})
        assert answer.status_code == 422


async def test_the_leaders_room_counts_and_not_that_of_the_broker_that_was_asked(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        one = cluster.running[1].http
        leader = cluster.brokers[2]
        leader.admission._settings = leader.settings.model_copy(update={"journal_topic_max_bytes": 1})
        assert (await one.post("/topics/t", json=records(1))).status_code == 200
        answer = await one.post("/topics/t", json=records(1))
        assert (answer.status_code, answer.json()["error_code"]) == (429, 42901), answer.text
        assert answer.headers["retry-after"] == "1"
        assert places(await one.post("/topics/t", json=records(0, 1))) == [(0, 0, None), (None, None, 42901)]


async def test_a_compacted_topic_wants_keys_wherever_its_leader_is(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, configs={"cleanup.policy": "compact"}) as cluster:
        one = cluster.running[1].http
        answer = await one.post("/topics/t", json={"records": [{"value": 1, "partition": 1}]})
        assert (answer.status_code, answer.json()["error_code"]) == (422, 42206)
        assert places(await one.post("/topics/t", json=records(0, 1))) == [(0, 0, None), (1, 0, None)]


async def test_appends_of_one_client_keep_their_order(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        one = cluster.brokers[1]
        topic = cluster.topic("t", 1)
        sent = [one.produce.records.produce(INTERNAL, topic, columns([b"%d" % n]), partition=1) for n in range(200)]
        for result in await asyncio.gather(*map(asyncio.ensure_future, sent)):
            result.require_stored()
        assert await stored(cluster, 1) == [b"%d" % n for n in range(200)]


async def test_an_answer_that_does_not_come_leaves_the_outcome_open(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        one = cluster.running[1].http
        assert (await one.post("/topics/t", json=records(1))).status_code == 200
        journal = cluster.brokers[2].journal
        store, journal.store = journal.store, lambda frames, told: None  # the disk never answers
        log = cluster.topic("t", 2).partition(1)
        sent = asyncio.create_task(one.post("/topics/t?timeout_ms=200", json=records(1)))
        await eventually_async(lambda: log.next_offset == 2, "the append did not come")
        answer = await sent
        assert (answer.status_code, answer.json()["error_code"]) == (504, 50401), answer.text
        journal.store, log.next_offset = store, log.log_end_offset  # so that the broker can stop


async def test_min_insync_replicas_is_for_acks_all_alone(tmp_path: Path):
    """Send each request with others, by itself, and from broker to broker."""
    configs = {"min.insync.replicas": "2"}
    async with relaying_cluster(tmp_path, 1, 2, partitions=2, replicated=True, configs=configs) as cluster:
        topic_id, one = cluster.topic("t").topic_id, cluster.running[1].http
        cluster.cut |= {(1, 2), (2, 1)}
        for partition in (0, 1):
            state = cluster.states[topic_id, partition]
            cluster.set(topic_id, partition, dataclasses.replace(state, in_sync_replicas=(state.leader,)))
        ways = {
            "/topics/t/partitions/0": {"records": [{"value": 1}]},
            "/topics/t/partitions/1": {"records": [{"value": 1}]},
            "/topics/t": records(0, 1),
        }
        for path, body in ways.items():
            for acks in ("all", "-1"):
                answer = await one.post(f"{path}?acks={acks}", json=body)
                assert (answer.status_code, answer.json()["error_code"]) == (503, 50310), answer.text
            assert {code for *_, code in places(await one.post(f"{path}?acks=1", json=body))} == {None}
            assert (await one.post(f"{path}?acks=0", json=body)).status_code == 202
        for partition in (0, 1):
            log = cluster.topic("t", partition + 1).partition(partition)
            await eventually_async(lambda log=log: log.log_end_offset == 4, "what was asked with acks 1 and 0")


async def test_replicas_lost_after_an_append_leave_its_outcome_open(tmp_path: Path):
    configs = {"min.insync.replicas": "2"}
    async with relaying_cluster(tmp_path, 1, 2, replicated=True, configs=configs) as cluster:
        topic = cluster.topic("t", 1)
        state = cluster.states[topic.topic_id, 0]
        await eventually_async(lambda: topic.partition(0).high_watermark == 0)
        cluster.cut.add((2, 1))
        sent = asyncio.create_task(cluster.running[1].http.post("/topics/t/partitions/0", json=records(0)))
        await eventually_async(lambda: topic.partition(0).log_end_offset == 1, "the append did not come")
        cluster.set(topic.topic_id, 0, dataclasses.replace(state, in_sync_replicas=(1,)))
        answer = await sent
        assert (answer.status_code, answer.json()["error_code"]) == (504, 50402), answer.text
