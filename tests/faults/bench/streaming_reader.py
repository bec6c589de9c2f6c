"""Streaming queries of a real Spark on topics of a run, as their owners would run them: restarted whenever they end.

``python -m tests.faults.bench.streaming_reader DATA HISTORY --url URL --topic NAME ...`` runs one query of
``format("logstore")`` on all topics and one of ``format("delta")`` on the table of each, until its standard input is
closed and all have read to the end. Each batch is a line of the history for each of its topics; then a line with the
query's name is printed. Checkpoints lie beside the history: a reader that is started again continues from them.

The Delta queries take ``ignoreDeletes`` alone: a commit that brings records again stops them.
"""

import argparse
import functools
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from logstore.spark import session
from tests.faults.bench.history import Recorder
from tests.faults.bench.records import rows_of_table

#: Small batches spend most of their time on compilation, and the load leaves little memory and processor time. Spark
#: reads the error of a stopped batch with a regular expression that needs a deep stack.
_SMALL = {
    "spark.driver.memory": "640m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss8m",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_COLUMNS = ("partition", "offset", "timestamp", "headers", "key", "value")
_TRIGGER = "500 milliseconds"
_LOOK_S = 0.5
#: A failed query is started again after this time.
_AGAIN_S = 2.0
_LAST_TRIES = 5


class Stream:
    """A query, and the history of its batches. ``name`` is the query's: ``logstore`` or ``delta``."""

    def __init__(
        self, name: str, topics: Sequence[str], source: DataFrame, checkpoint: Path, recorder: Recorder
    ) -> None:
        self.name = name
        self._topics = topics
        self._source = source
        self._checkpoint = checkpoint
        self._recorder = recorder
        self._failed_at = 0.0
        self._query: StreamingQuery | None = None

    def look_after(self) -> None:
        """Start the query if it does not run."""
        if self._query is not None and self._query.isActive:
            return
        if self._query is not None:
            self._failed_at = time.monotonic()
            self._tell_error(self._query.exception())
            self._query = None
        if time.monotonic() >= self._failed_at + _AGAIN_S:
            self._query = self._writer().trigger(processingTime=_TRIGGER).start()

    def finish(self) -> None:
        """Read to the end. Raises PySparkException if that fails again and again."""
        if self._query is not None:
            self._query.stop()
        for left in reversed(range(_LAST_TRIES)):
            try:
                self._writer().trigger(availableNow=True).start().awaitTermination()
            except PySparkException as error:
                self._tell_error(error)
                if not left:
                    raise
                time.sleep(_AGAIN_S)
            else:
                return

    def _writer(self) -> DataStreamWriter:
        return self._source.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self._checkpoint))

    def _keep(self, batch: DataFrame, number: int) -> None:
        # One job reads the batch for all topics: a second look at the batch might see another one.
        table = batch.toArrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
        rows = rows_of_table(table)
        named = table["topic"].to_pylist() if "topic" in table.column_names else [self._topics[0]] * len(rows)
        for topic in self._topics:
            of_topic = [row for row, name in zip(rows, named, strict=True) if name == topic]
            self._tell("ok", topic, batch=number, rows=of_topic)
        print(self.name, flush=True)

    def _tell_error(self, error: BaseException | None) -> None:
        print(f"{self.name}: {str(error)[:1000]}", file=sys.stderr, flush=True)
        for topic in self._topics:
            self._tell("info", topic, error=str(error)[:1000])

    def _tell(self, phase: str, topic: str, **fields: object) -> None:
        self._recorder.tell(f"stream-{self.name}", "stream", phase, query=self.name, topic=topic, **fields)  # type: ignore[arg-type]


def streams_of(
    spark: SparkSession, url: str, data: Path, topics: Sequence[str], checkpoints: Path, recorder: Recorder
) -> list[Stream]:
    source = spark.readStream.format("logstore").option("bootstrap.servers", url).option("subscribe", ",".join(topics))
    # Retention may remove records before they are read; the checker knows which ones may be missing.
    source = source.options(startingOffsets="earliest", includeHeaders="true", failOnDataLoss="false")
    make = functools.partial(Stream, recorder=recorder)
    found = [make("logstore", topics, source.load().select("topic", *_COLUMNS), checkpoints / "logstore")]
    for topic in topics:
        table = spark.readStream.format("delta").option("ignoreDeletes", "true").load(str(data / "topics" / topic))
        found.append(make("delta", [topic], table.select(*_COLUMNS), checkpoints / f"delta-{topic}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("history", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", action="append", required=True)
    given = parser.parse_args()
    spark = session("streams", "local[1]", _SMALL)
    with Recorder(given.history) as recorder:
        checkpoints = given.history.with_name("checkpoints").absolute()
        streams = streams_of(spark, given.url, given.data.absolute(), given.topic, checkpoints, recorder)
        ending = False
        while not ending:
            for stream in streams:
                stream.look_after()
            ending = bool(select.select([sys.stdin], [], [], _LOOK_S)[0])
        for stream in streams:
            stream.finish()


if __name__ == "__main__":
    main()
