"""Spark merges a backlog of segments, and its own readers read beside the merge."""

import json

import pytest

from compaction_jobs import segment_merge
from compaction_jobs.jobs import run_job, topics_of
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.table_paths import path_of

pytestmark = pytest.mark.spark

NOW_MS = 1_700_000_000_000


def test_spark_joins_a_backlog_and_its_streams_see_no_row_again(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(segment_merge, "LOCAL_BYTES_MAX", 0)
    topic = KeyedTopic.create(tmp_path, "events", 2)
    for at in range(12):
        topic.roll({p: [Record(b"%d" % at, b"v", NOW_MS + at)] * 3 for p in (0, 1)})
    path, whole = str(path_of(topic.table)), [topic.contents(p) for p in (0, 1)]
    stream = spark.readStream.format("delta").load(path).select("partition", "offset")

    def read_on() -> int:
        """Return the number of rows that the stream has got so far."""
        sink = stream.writeStream.format("parquet").option("path", str(tmp_path / "sink"))
        sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        return spark.read.parquet(str(tmp_path / "sink")).count()

    assert read_on() == 72
    with job_context(NOW_MS) as context:
        (report,) = run_job("merge", topics_of("merge", open_root(topic.data), [], {}), context).topics
    assert (report.error, report.partitions, report.after.segments) == (None, (0, 1), 10)
    assert [topic.contents(p) for p in (0, 1)] == whole
    topic.roll({0: [Record(b"new", b"v", NOW_MS)]})
    assert read_on() == 73
    assert spark.read.format("delta").load(path).count() == 73
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 2").collect()
    assert history[0].operation == "WRITE"
    assert json.loads(history[1].userMetadata)["operation"] == "merge"
