"""A job runs by spark-submit on a cluster whose executors die while they work for it."""

import json
import threading

import psutil
import pytest

from tests.support.eventually import eventually
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.spark_cluster import SparkCluster, standalone_cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

KEYS, SEGMENTS, RECORDS = 500, 24, 2_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with standalone_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


def kill_one(cluster: SparkCluster) -> psutil.Process:
    def found() -> psutil.Process | None:
        return next(iter(cluster.executors_at_work()), None)

    executor = eventually(found, "no executor had a task", seconds=240, every_s=0.01)
    executor.kill()
    return executor


def test_an_executor_killed_in_the_middle_costs_time_and_nothing_else(cluster, tmp_path):
    topic = KeyedTopic.create(tmp_path / "data", "events", 2, cleanup_policy="compact")
    for n in range(SEGMENTS):
        topic.roll(
            {
                p: [Record(f"k{(7 * n + at) % KEYS}".encode(), f"{n}-{at}".encode(), n) for at in range(RECORDS)]
                for p in range(2)
            }
        )
    whole = {p: topic.contents(p) for p in range(2)}
    version = topic.table.snapshot().version
    with cluster.submit(
        "compact", "--data", tmp_path / "data", "--topic", "ev*", "--spark-above", "0", "--json"
    ) as process:
        killed: list[psutil.Process] = []
        lines: list[str] = []
        assert process.stdout
        guard = threading.Timer(900, process.kill)
        guard.start()
        for line in process.stdout:
            lines.append(line)
            # Each of the two passes over the records loses an executor, together with its part of the shuffle.
            if "reading keys of" in line or ("writing" in line and "segments" in line):
                killed.append(kill_one(cluster))
                assert topic.table.snapshot().version == version, "nothing is committed before the end"
        code = process.wait()
        guard.cancel()
    output = "".join(lines)
    assert code == 0, output[-5_000:]
    assert len({executor.pid for executor in killed}) == 2
    report = json.loads(output[output.index("{\n") :])
    assert report["topics"][0]["versions"] == [version + 1]
    for partition, before in whole.items():
        latest = {record.key: (offset, record) for offset, record in before.items()}
        assert list(topic.contents(partition).items()) == sorted(latest.values())
