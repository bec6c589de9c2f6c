"""The DAGs as Airflow runs them, beside a running store."""

import json
import random
from pathlib import Path

import deltalake
import pytest

from logstore import Admin, Consumer, Producer, TopicPartition
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import TopicTable
from logstore.filesystem import FileSystem
from logstore.table_files import open_table
from tests.airflow.conftest import LOGSTORE, Airflow
from tests.support.cluster_processes import is_alive
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2400)]

DAY = "2026-01-02"
DAGS = ["logstore_compact", "logstore_merge", "logstore_retention", "logstore_vacuum"]
KEYS = [f"k{n}" for n in range(20)]
ROUNDS = 4
TAIL = b"still in the journal"

#: Offset, key and value, by partition and rising offset.
Rows = dict[int, list[tuple[int, bytes | None, bytes | None]]]


def in_table(table: Path) -> Rows:
    """Return the records that any Delta reader sees."""
    found: Rows = {}
    columns = ["partition", "offset", "key", "value"]
    read = deltalake.DeltaTable(table).to_pyarrow_table(columns=columns)
    for row in read.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist():
        found.setdefault(row["partition"], []).append((row["offset"], row["key"], row["value"]))
    return found


def in_store(url: str, topic: str) -> Rows:
    """Return the records of the running store, including those only in its journal."""
    with Admin(url) as admin, Consumer(url) as consumer:
        ends = {p.partition: p.high_watermark for p in admin.describe_topic(topic).partitions}
        consumer.assign(TopicPartition(topic, partition) for partition in ends)
        consumer.seek_to_beginning()
        found: Rows = {partition: [] for partition in ends}
        while any(consumer.position(TopicPartition(topic, partition)) < end for partition, end in ends.items()):
            records = consumer.poll(timeout_s=10)
            assert records, "the store does not answer"
            for r in records:
                found[r.partition].append((r.offset, r.key, r.value))
    return found


def only(rows: Rows, *, tail: bool) -> Rows:
    return {p: [row for row in of_partition if (row[2] == TAIL) is tail] for p, of_partition in rows.items()}


def latest(rows: Rows) -> Rows:
    return {p: sorted({row[1]: row for row in of_partition}.values()) for p, of_partition in rows.items()}


def together(sealed: Rows, tail: Rows) -> Rows:
    return {p: sealed[p] + tail[p] for p in sealed}


def snapshot(table: Path) -> TopicSnapshot:
    return TopicTable(open_table(table, FileSystem())).snapshot()


def files(table: Path) -> tuple[set[str], set[str]]:
    """Return the files of the table's last version, and the files on disk."""
    last = snapshot(table)
    active = {file.path for partition in last.partitions for file in last.segments(partition)}
    return active, {str(file.relative_to(table)) for file in table.glob("partition=*/*.parquet")}


def load(url: str) -> None:
    """Write ``prices`` with several values of each key, and ``orders``; both have ROUNDS segments and a tail."""
    # The store rolls nothing by itself, and removed files are deleted at once.
    configs = {"segment.ms": "86400000", "file.delete.delay.ms": "0"}
    with Admin(url) as admin, Producer(url) as producer:
        admin.create_topic("prices", partitions=2, configs={**configs, "cleanup.policy": "compact"})
        admin.create_topic("orders", partitions=1, configs=configs)
        for n in range(ROUNDS):
            # The latest value of the first key is in an earlier segment than those of the others.
            for key in KEYS if n == 1 else KEYS[1:]:
                producer.send("prices", f"{key} in round {n}", key)
            for _ in range(10):
                producer.send("orders", random.randbytes(500))
            producer.flush()
            admin.roll("prices")
            admin.roll("orders")
        for key in KEYS:
            producer.send("prices", TAIL, key)
        producer.send("orders", TAIL)


def test_the_dags_are_parsed_without_variables(airflow: Airflow):
    airflow.run("dags", "list-import-errors", "--local")
    listed = airflow.run("dags", "list", "--local", "--output", "json").splitlines()[-1]
    assert sorted(dag["dag_id"] for dag in json.loads(listed)) == DAGS


def test_the_topics_of_a_running_store_are_kept_small(airflow: Airflow, store: ServerProcess):
    load(store.url)
    orders, prices = (store.data / "topics" / topic for topic in ("orders", "prices"))
    orders_before, prices_before = in_store(store.url, "orders"), in_store(store.url, "prices")
    segments = snapshot(orders).segments(0)
    assert len(segments) == ROUNDS
    with Admin(store.url) as admin:
        admin.alter_configs("orders", {"retention.bytes": str(sum(segment.size for segment in segments[2:]))})
    jobs = airflow.with_variables(logstore_command=str(LOGSTORE), logstore_data=str(store.data), logstore_url=store.url)

    jobs.run("dags", "test", "logstore_retention", DAY)
    retained = {0: [row for row in only(orders_before, tail=False)[0] if row[0] >= segments[2].min_offset]}
    # The job made the store read the table, so its readers see the new log start; nothing is rolled for that.
    left = together(retained, only(orders_before, tail=True))
    assert in_table(orders) == retained
    assert in_store(store.url, "orders") == left
    assert in_table(prices) == only(prices_before, tail=False)

    asked = json.dumps({"topics": ["*s", "prices"], "dry_run": True})
    output = jobs.run("dags", "test", "logstore_compact", DAY, "--conf", asked)
    assert "compact would work on prices: partitions [0, 1], " in output
    assert "compact has nothing to do in orders: cleanup.policy is delete" in output
    assert in_table(prices) == only(prices_before, tail=False), "a dry run changes nothing"

    output = jobs.run("dags", "test", "logstore_compact", DAY, "--conf", json.dumps({"topics": ["*s", "prices"]}))
    assert "compact of prices: partitions [0, 1], " in output
    assert "compact of orders" not in output, "only topics with work have a task"
    compacted = latest(only(prices_before, tail=False))
    assert sorted(row[1] for rows in compacted.values() for row in rows) == sorted(key.encode() for key in KEYS)
    assert in_table(prices) == compacted
    assert in_table(orders) == retained

    for table in (orders, prices):
        active, on_disk = files(table)
        assert active < on_disk
    jobs.run("dags", "test", "logstore_vacuum", DAY)
    for table in (orders, prices):
        active, on_disk = files(table)
        assert active == on_disk
    assert in_table(orders) == retained
    assert in_table(prices) == compacted
    assert in_store(store.url, "orders") == left
    assert in_store(store.url, "prices") == together(compacted, only(prices_before, tail=True))


def test_small_segments_are_merged(airflow: Airflow, store: ServerProcess):
    with Admin(store.url) as admin, Producer(store.url) as producer:
        admin.create_topic("small", partitions=1, configs={"segment.ms": "86400000"})
        for n in range(12):
            producer.send("small", f"value {n}")
            producer.flush()
            admin.roll("small")
    before, table = in_store(store.url, "small"), store.data / "topics/small"
    jobs = airflow.with_variables(logstore_command=str(LOGSTORE), logstore_data=str(store.data), logstore_url=store.url)
    jobs.run("dags", "test", "logstore_merge", DAY)
    assert len(snapshot(table).segments(0)) < 12
    assert in_table(table) == in_store(store.url, "small") == before


def test_a_task_that_fails_says_why_in_the_words_of_the_job(airflow: Airflow, store: ServerProcess):
    load(store.url)
    orders, prices = (store.data / "topics" / topic for topic in ("orders", "prices"))
    with Admin(store.url) as admin:
        admin.alter_configs("prices", {"retention.bytes": "0", "cleanup.policy": "compact,delete"})
    TopicTable(open_table(orders, FileSystem())).alter_config({"retention.ms": "soon"})
    jobs = airflow.with_variables(logstore_command=str(LOGSTORE), logstore_data=str(store.data))
    output = jobs.run("dags", "test", "logstore_retention", DAY, code=1)
    message = "orders: retention.ms cannot be 'soon': it takes a whole number"
    # Each try of the task ends with this message, not with the exit code of a command.
    assert sum(message in line and "AirflowException" in line for line in output.splitlines()) >= 3, output[-20_000:]
    assert in_table(prices) == {}, "another topic has a task of its own"


def test_a_run_without_a_data_directory_fails(airflow: Airflow, tmp_path: Path):
    output = airflow.run("dags", "test", "logstore_retention", DAY, code=1)
    assert "no data directory: set the Airflow variable logstore_data" in output

    wrong = airflow.with_variables(logstore_command=str(LOGSTORE), logstore_data=str(tmp_path))
    output = wrong.run("dags", "test", "logstore_compact", DAY, code=1)
    assert f"{tmp_path} is not a store's data directory" in output
    assert "UP_FOR_RETRY" not in output.upper().replace(" ", "_"), "to try again would be of no use"


STOPPED = """
import logstore_jobs, pathlib, threading, time
operator = logstore_jobs.LogstoreJob(task_id="t", job="retention", topics=["a"])
def stop():
    while not pathlib.Path("pids").exists() or len(pathlib.Path("pids").read_text().split()) < 2:
        time.sleep(0.05)
    operator.on_kill()
threading.Thread(target=stop).start()
try:
    operator.execute({})
except logstore_jobs.AirflowException as error:
    print(error)
"""


def test_a_task_that_is_stopped_ends_its_job_and_the_jvm_of_it(airflow: Airflow, tmp_path: Path):
    command = tmp_path / "job"
    pids = airflow.home / "pids"
    command.write_text(f"#!/bin/sh\nsleep 1000 &\necho $$ $! > {pids}\nwait\n")
    command.chmod(0o755)
    output = airflow.with_variables(logstore_command=str(command), logstore_data=str(tmp_path)).python(STOPPED)
    assert "without a report" in output
    for pid in pids.read_text().split():
        eventually(lambda pid=int(pid): not is_alive(pid))
