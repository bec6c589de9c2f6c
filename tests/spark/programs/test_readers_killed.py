"""Tasks die in the middle of a read: Spark retries them, and each record is read once."""

import json

import pytest

from logstore.client.admin import Admin
from logstore.client.producer import Producer
from tests.support.server_process import ROOT
from tests.support.spark_cluster import standalone_cluster
from tests.support.spark_programs import output_of

pytestmark = pytest.mark.long

PARTITIONS, HISTORY, TAIL = 2, 6_000, 4_000
#: Values are long enough that a read has several batches, of history and of the tail.
VALUE = b"v" * 1_000


@pytest.fixture(scope="module")
def topic(store):
    name = "readers-killed"
    with Admin(store.url) as admin, Producer(store.url) as producer:
        admin.create_topic(name, partitions=PARTITIONS, configs={"segment.ms": 86_400_000})
        for records in (HISTORY, TAIL):
            for partition in range(PARTITIONS):
                for _ in range(records):
                    producer.send(name, VALUE, partition=partition)
            producer.flush()
            if records == HISTORY:
                admin.roll(name)
    return name


def killed_reads(master: str, store, topic: str, directory, victim: str) -> set[str]:
    """Check that all ways of reading gave each record once; return the killed processes."""
    (directory / "killed").mkdir()
    script = ROOT / "tests/support/killed_readers.py"
    printed = output_of(
        script, master, store.url, topic, directory / "killed", victim, directory=directory, timeout_s=400
    )
    expected = [[partition, offset] for partition in range(PARTITIONS) for offset in range(HISTORY + TAIL)]
    places = json.loads(printed.splitlines()[-1])
    assert set(places) == {"batch", "stream", "read_offsets"}
    for way, found in places.items():
        assert sorted(found) == expected, way
    return {file.name for file in (directory / "killed").iterdir()} - {"checkpoint"}


def killed_in(partition: int) -> set[str]:
    places = [f"history-{partition}-0", f"tail-{partition}-{HISTORY}"]
    return {f"{reader}-{place}" for reader in ("BatchReader", "StreamReader") for place in places} | {
        f"read_offsets-{partition}"
    }


def test_a_worker_killed_in_the_middle_of_a_read_doubles_and_loses_nothing(store, topic, tmp_path):
    killed = killed_reads("local[2,4]", store, topic, tmp_path, "worker")
    assert killed == killed_in(0) | killed_in(1)


def test_an_executor_killed_in_the_middle_of_a_read_doubles_and_loses_nothing(store, topic, tmp_path):
    with standalone_cluster(tmp_path) as cluster:
        killed = killed_reads(cluster.master, store, topic, tmp_path, "executor")
    assert killed == {name for name in killed_in(0) if "tail" not in name}
