"""One Spark session for all tests, topics written by the real committer, and a count of opened files."""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.free_port import free_port
from logstore.delta.topic_table import RollPart, TopicTable
from logstore.records.schema import LOG_SCHEMA
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.spark.store import EPOCH_MS, Store
from tests.support.server_process import ServerProcess
from tests.support.table_paths import create_table
from tests.support.topics import empty_segment

#: Most of the time of small queries is compilation: code generation and adaptive planning are off, and the JVM's quick
#: compiler is enough for the rest.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # A Python worker has 15 s by default to connect, and a busy machine may need longer to start it.
    "spark.python.authenticate.socketTimeout": "120s",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from logstore.spark import session

    os.environ["LOGSTORE_SPARK_LOG"] = str(tmp_path_factory.mktemp("spark") / "spark.log")
    try:
        session = session(app_name="tests", master="local[2]", config=QUICK)
    finally:
        del os.environ["LOGSTORE_SPARK_LOG"]
    yield session
    session.stop()


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Run one store for all tests, at an address that stays the same after a restart; each test has its own topics."""
    with ServerProcess(tmp_path_factory.mktemp("store") / "data", port=free_port()) as server:
        store = Store(server)
        yield store
        store.http.close()


def log_batch(start: int, end: int, *, marker: str = "") -> pa.RecordBatch:
    """Return offsets [start, end): every 7th key and every 11th value is null, every 5th record has headers."""
    offsets = range(start, end)
    return pa.RecordBatch.from_pydict(
        {
            "offset": offsets,
            "timestamp": [EPOCH_MS + 1000 * o for o in offsets],
            "key": [None if o % 7 == 0 else f"k{o % 3}".encode() for o in offsets],
            "value": [None if o % 11 == 0 else f"{marker}{o}".encode() for o in offsets],
            "headers": [
                [{"key": "h", "value": b"1"}, {"key": "n", "value": None}] if o % 5 == 0 else None for o in offsets
            ],
        },
        schema=LOG_SCHEMA,
    )


@dataclass
class WrittenTopic:
    """A topic's table under ``<data>/topics``, rolled as the store does it, but without a running store."""

    data: Path
    name: str
    table: TopicTable

    @classmethod
    def create(cls, data: Path, name: str, partitions: int) -> "WrittenTopic":
        path = data / "topics" / name
        return cls(data, name, create_table(path, num_partitions=partitions, config_overrides={}))

    def roll(self, partition: int, start: int, end: int, *, file_offsets: int = 100) -> None:
        """Seal [start, end) of a partition in files of ``file_offsets``, in one commit."""
        segments = []
        for first in range(start, end, file_offsets):
            last = min(first + file_offsets, end)
            with SegmentWriter(open_table(self.table.files.uri), partition, first, last, 0) as writer:
                writer.write(log_batch(first, last, marker=f"{partition}-"))
                segments.append(writer.finish())
        done = self.table.commit_roll([RollPart(partition, start, end, 0, tuple(segments))])
        assert done.committed == (partition,)

    def roll_empty(self, partition: int, start: int, end: int) -> None:
        """Seal [start, end) without a record, as where all of it was aborted."""
        part = RollPart(partition, start, end, 0, (empty_segment(self.table, partition, start, end),))
        assert self.table.commit_roll([part]).committed == (partition,)


@pytest.fixture
def topic(tmp_path):
    """Return a function that creates a topic: ``topic(partitions)``."""

    def create(partitions: int = 1, name: str | None = None) -> WrittenTopic:
        return WrittenTopic.create(tmp_path / "data", name or f"t-{uuid.uuid4().hex[:8]}", partitions)

    return create


def files_opened(frame) -> int:
    """Return the number of files that the scans of a query read, as counted by Spark itself."""
    frame.collect()

    def walk(node) -> int:
        kind = node.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            return walk(node.executedPlan())
        if kind.endswith("QueryStageExec"):
            return walk(node.plan())
        here = node.metrics().apply("numFiles").value() if kind == "FileSourceScanExec" else 0
        children = node.children()
        return here + sum(walk(children.apply(i)) for i in range(children.size()))

    return walk(frame._jdf.queryExecution().executedPlan())


def offsets(frame, partition: int) -> list[int]:
    return sorted(row.offset for row in frame.where(f"partition = {partition}").select("offset").collect())
