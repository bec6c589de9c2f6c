"""Consumer instances of a real server that is killed, beside members that use the project's own client."""

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.free_port import free_port
from logstore import Consumer
from tests.api.instance_client import InstanceClient, create
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.system

PARTITIONS = 4
COUNT = 120
SETTINGS = {"LOGSTORE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100"}
Done = set[tuple[int, int]]


class Member(threading.Thread):
    """A consumer of the project's client in the same group."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.done: Done = set()
        self.stopping = threading.Event()
        self._url = url

    def run(self) -> None:
        with Consumer(
            self._url, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, heartbeat_interval_ms=300
        ) as consumer:
            consumer.subscribe(["t"])
            while not self.stopping.is_set():
                with contextlib.suppress(Exception):  # the server is killed
                    if records := consumer.poll(timeout_s=0.5):
                        self.done |= {(record.partition, record.offset) for record in records}
                        consumer.commit()


async def poll_and_commit(instance: InstanceClient, done: Done) -> None:
    with contextlib.suppress(httpx.TransportError):
        answer = await instance.get("/records", params={"timeout": 500})
        if answer.status_code == 200:
            done |= {(record["partition"], record["offset"]) for record in answer.json()}
            await instance.post("/offsets")
        else:
            assert answer.status_code in (409, 503), answer.text
            await asyncio.sleep(0.1)


async def produce(http: httpx.AsyncClient, number: int) -> None:
    body = {"records": [{"value": number, "partition": number % PARTITIONS}]}
    while True:
        with contextlib.suppress(httpx.TransportError):
            answer = await http.post("/topics/t", json=body, headers={"Idempotency-Key": f"n{number}"})
            if answer.status_code == 200:
                return
        await asyncio.sleep(0.1)


async def committed_and_ends(http: httpx.AsyncClient) -> tuple[dict[int, int], dict[int, int]]:
    lags: list[dict[str, Any]] = (await http.get("/groups/g/lag")).json()["partitions"]
    committed = {lag["partition"]: lag["committed_offset"] or 0 for lag in lags}
    return committed, {lag["partition"]: lag["high_watermark"] for lag in lags}


@pytest.mark.long
def test_live_instances_continue_after_kill_9_and_nothing_is_committed_that_was_not_read(tmp_path: Path) -> None:
    async def schedule(server: ServerProcess) -> None:
        done: Done = set()
        member = Member(server.url)
        async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http:
            cluster = (await http.get("/v3/clusters")).json()["data"][0]["cluster_id"]
            topic = {"topic_name": "t", "partitions_count": PARTITIONS}
            assert (await http.post(f"/v3/clusters/{cluster}/topics", json=topic)).status_code == 201
            instances = [await create(http, name) for name in ("a", "b")]
            for instance in instances:
                await instance.subscribe("t")
            member.start()
            produced = asyncio.create_task(_all_produced(http))
            for kill in range(2):
                until = time.monotonic() + 3
                while time.monotonic() < until:
                    await asyncio.gather(*(poll_and_commit(instance, done) for instance in instances))
                if kill == 0:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                for instance in instances:
                    assert (await instance.get("/subscription")).json() == {"topics": ["t"]}
            await produced
            deadline = time.monotonic() + 120
            while True:
                await asyncio.gather(*(poll_and_commit(instance, done) for instance in instances))
                committed, ends = await committed_and_ends(http)
                read = done | member.done
                missing = {(p, o) for p, end in committed.items() for o in range(end)} - read
                assert not missing, f"committed and read by nobody: {sorted(missing)}"
                if committed == ends and len(ends) == PARTITIONS:
                    break
                assert time.monotonic() < deadline, (committed, ends)
            assert member.done, "our own client had no share"
            assert done, "the instances had no share"
            assert len(read) >= COUNT
        member.stopping.set()
        await asyncio.to_thread(member.join, 30)

    async def _all_produced(http: httpx.AsyncClient) -> None:
        for number in range(COUNT):
            await produce(http, number)
            await asyncio.sleep(0.05)

    with ServerProcess(tmp_path / "data", port=free_port(), environment=SETTINGS) as server:
        asyncio.run(asyncio.wait_for(schedule(server), 300))
