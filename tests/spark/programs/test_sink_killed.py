"""Spark itself retries a write of the sink: after a failed task, and after the driver was killed before a commit."""

import os
import signal
import subprocess
import sys

import pytest

from logstore.spark.source.data_source import LogStoreSource
from tests.support.eventually import eventually
from tests.support.server_process import ROOT
from tests.support.stored_records import stored_records

pytestmark = pytest.mark.long

#: ``python -c DRIVER url topic directory`` gives each task up to three tries.
DRIVER = """
import pathlib, sys, time
from pyspark import TaskContext
from logstore.spark import session
from logstore.spark.sink.stream_writer import StreamWriter
from logstore.spark.source.data_source import LogStoreSource
from tests.spark.conftest import QUICK
from tests.support.eventually import eventually
from tests.support.stored_records import stored_records

url, topic, directory = sys.argv[1:]
marker = pathlib.Path(directory, "about-to-commit")

def fails_first(batches):
    context = TaskContext.get()
    for batch in batches:
        if context.attemptNumber() == 0 and batch.column(0)[0].as_py() >= 700:
            eventually(lambda: stored_records(url, topic), "nothing was stored before the failure")
            raise ValueError("the first try")
        yield batch

class Halting(LogStoreSource):
    @classmethod
    def name(cls):
        return "halting"

    def streamWriter(self, schema, overwrite):
        class Writer(StreamWriter):
            def commit(self, messages, batchId):
                marker.touch()
                time.sleep(600)
        return Writer(schema, self.options, overwrite=overwrite)

spark = session("driver", master="local[2,3]", config={**QUICK, "spark.sql.execution.arrow.maxRecordsPerBatch": "50"})
spark.dataSource.register(LogStoreSource)
spark.dataSource.register(Halting)
options = {"bootstrap.servers": url, "topic": topic, "kafka.max.request.size": "20000"}
rows = spark.range(0, 1000, 1, 2).mapInArrow(fails_first, "id bigint").selectExpr("rpad(id, 1000, '.') AS value")
rows.write.format("logstore").mode("append").options(**options).save()
print("written", flush=True)
frame = spark.readStream.format("text").load(directory + "/in")
frame.writeStream.format("halting").options(**options, checkpointLocation=directory + "/cp").start().awaitTermination()
"""


def values(store, topic) -> list[bytes]:
    return sorted(record.value for records in stored_records(store.url, topic).values() for record in records)


def test_a_retry_by_spark_is_stored_once(spark, store, tmp_path):
    topic = store.create("sink-killed", 2)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("".join(f"line {n}\n" for n in range(5_000)))
    batch = [f"{n}".ljust(1000, ".").encode() for n in range(1000)]
    lines = [b"line %d" % n for n in range(5_000)]
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, store.url, topic, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LOGSTORE_SPARK_LOG": str(tmp_path / "spark.log")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            assert driver.stdout.readline() == "written\n", (tmp_path / "spark.log").read_text()[-3000:]
            assert "the first try" in (tmp_path / "spark.log").read_text()
            assert values(store, topic) == sorted(batch)
            eventually((tmp_path / "about-to-commit").exists, "the query came to no commit", seconds=120)
        finally:
            # This kills the driver and its JVM.
            os.killpg(driver.pid, signal.SIGKILL)
    assert values(store, topic) == sorted(batch + lines)
    assert not (tmp_path / "cp/commits/0").exists()
    spark.dataSource.register(LogStoreSource)
    (tmp_path / "in/b.txt").write_text("one more\n")
    options = {"bootstrap.servers": store.url, "topic": topic, "checkpointLocation": str(tmp_path / "cp")}
    options["kafka.max.request.size"] = "20000"
    frame = spark.readStream.format("text").load(str(tmp_path / "in"))
    query = frame.writeStream.format("logstore").options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert (tmp_path / "cp/commits/0").exists()
    assert values(store, topic) == sorted([*batch, *lines, b"one more"])
