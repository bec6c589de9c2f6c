"""The Python client against real brokers: while brokers are killed, a producer and a group member continue, and each
record is stored and read once, in order.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import Admin, Consumer, Producer, errors
from tests.support.cluster_processes import ClusterProcess, command, environment
from tests.support.eventually import eventually

pytestmark = [pytest.mark.system, pytest.mark.long]

PARTITIONS = 6


@pytest.mark.timeout(600)
def test_a_producer_and_a_group_continue_while_brokers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOGSTORE_DEFAULT_REPLICATION_FACTOR", "3")
    monkeypatch.setenv("LOGSTORE_MIN_INSYNC_REPLICAS", "2")
    data = tmp_path / "data"
    sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    read: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    stopped, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    with ClusterProcess(tmp_path, "cluster", "start", "--brokers", 3, "--data", data, "--json") as cluster:
        brokers = {broker["id"]: broker for broker in cluster.entry["brokers"]}
        bootstrap = brokers[1]["url"]
        with Admin(bootstrap) as admin:
            admin.create_topic("t", partitions=PARTITIONS)

        def produce() -> None:
            with Producer(bootstrap, linger_ms=2) as producer:
                number = 0
                while not stopped.is_set():
                    partition, value = number % PARTITIONS, b"%d" % number
                    sent[partition].append(value)
                    producer.send("t", value, partition=partition)
                    number += 1
                    time.sleep(0.002)

        def consume() -> None:
            with Consumer(
                bootstrap, group_id="g", auto_offset_reset="earliest", auto_commit_interval_ms=500
            ) as consumer:
                consumer.subscribe(["t"])
                while not done.is_set():
                    for record in consumer.poll(timeout_s=0.2):
                        read[record.partition].append(record.value)

        def guarded(work: Callable[[], None]) -> threading.Thread:
            def run() -> None:
                try:
                    work()
                except BaseException as error:  # noqa: BLE001 - for the assertion below
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        threads = [guarded(produce), guarded(consume)]
        try:
            for killed in (1, 2, 3):
                before = sum(map(len, read))

                def goes_on(before: int = before) -> bool:
                    assert failures == []
                    return sum(map(len, read)) > before + 500

                eventually(goes_on, "nothing is read", seconds=120)
                os.kill(brokers[killed]["pid"], signal.SIGKILL)
                time.sleep(7)  # longer than the session: others lead
                started = subprocess.run(
                    command("cluster", "start-broker", killed, "--data", data, "--json"),
                    env=environment(),
                    capture_output=True,
                    check=True,
                    timeout=120,
                )
                brokers[killed]["pid"] = json.loads(started.stdout)["pid"]
                eventually(lambda: all_in_sync(bootstrap), "the replicas are not in sync", seconds=120)
            stopped.set()
            threads[0].join(150)
            eventually(lambda: failures or sum(map(len, read)) >= sum(map(len, sent)), "some are missing", seconds=120)
        finally:
            stopped.set()
            done.set()
            for thread in threads:
                thread.join(150)
        assert failures == []
        assert [len(values) for values in read] == [len(values) for values in sent]
        assert read == sent
        with Admin(bootstrap) as admin:
            lag = admin.group_lag("g")
            assert lag.total_lag == 0
            ends = {p.partition: p.high_watermark for p in admin.describe_by_leaders("t").partitions}
            assert ends == {number: len(values) for number, values in enumerate(sent)}
            assert admin.offsets("t", 0).end_offset == len(sent[0])
        assert cluster.stop() == 0


def all_in_sync(bootstrap: str) -> bool:
    with Admin(bootstrap) as admin:
        try:
            return not admin.partition_replicas(state="under-replicated")
        except errors.LogStoreError:
            return False
