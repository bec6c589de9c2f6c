"""A driver whose tasks die: ``python killed_readers.py MASTER URL TOPIC DIRECTORY VICTIM``.

It reads a topic by the source, by a stream and by ``read_offsets``, and prints JSON: for each way of reading, the
partitions and offsets that it got. With the VICTIM "worker", each task that reads records kills itself between its
first two batches; with "executor", tasks that read the history of partition 0, or its tail by ``read_offsets``, kill
their executor. Each does it once, recorded by a file in DIRECTORY.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from logstore.spark import read_offsets, session, tail_reader
from logstore.spark.source.batch_reader import BatchReader
from logstore.spark.source.data_source import LogStoreSource
from logstore.spark.source.options import parse_read_options
from logstore.spark.source.slices import Slice
from logstore.spark.source.stream_reader import StreamReader

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONFIG = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


class Killer:
    """Kills a task's worker or executor. It is sent to tasks by value, as everything in this script."""

    def __init__(self, directory: str, victim: str) -> None:
        self._directory, self._victim = directory, victim

    def half_way(self, name: str, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 1:
                self._kill_once(name, partition)
            yield batch

    def _kill_once(self, name: str, partition: int) -> None:
        file = Path(self._directory, name)
        # A new executor takes seconds to start.
        if file.exists() or (self._victim == "executor" and (partition or "tail" in name)):
            return
        file.touch()
        # A worker is a child of Spark's daemon for workers, and the daemon is a child of the executor.
        executor = psutil.Process().parent().parent()
        os.kill(executor.pid if self._victim == "executor" else os.getpid(), signal.SIGKILL)


def dying(reader: type, killer: Killer) -> type:
    # Names in the body of a class that is sent by value are not sent with it.
    class Dying(reader):
        def read(self, part: "Slice") -> "Iterator[pa.RecordBatch]":
            way = "history" if part.files else "tail"
            name = f"{reader.__name__}-{way}-{part.partition}-{part.start}"
            return killer.half_way(name, part.partition, super().read(part))

    return Dying


def source(killer: Killer) -> type[LogStoreSource]:
    class DyingSource(LogStoreSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def reader(self, schema: "Any") -> "BatchReader":
            return dying(BatchReader, killer)(parse_read_options(self.options))

        def streamReader(self, schema: "Any") -> "StreamReader":  # noqa: N802
            return dying(StreamReader, killer)(parse_read_options(self.options))

    return DyingSource


def main(master: str, url: str, topic: str, directory: str, victim: str) -> None:
    spark = session("killed readers", master, CONFIG)
    killer = Killer(directory, victim)
    spark.dataSource.register(source(killer))
    options = {"bootstrap.servers": url, "subscribe": topic, "startingOffsets": "earliest"}
    places: dict[str, Any] = {}

    def keep(way: str, frame: Any) -> None:
        places.setdefault(way, []).extend([row.partition, row.offset] for row in frame.collect())

    keep("batch", spark.read.format("dying").options(**options).load().select("partition", "offset"))

    stream = spark.readStream.format("dying").options(**options).load().select("partition", "offset").writeStream
    stream = stream.foreachBatch(lambda frame, _: keep("stream", frame)).trigger(availableNow=True)
    stream.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()

    # The module goes to the tasks by value, including this replacement.
    records = tail_reader.Leader.records

    def dying_records(self: Any, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return killer.half_way(f"read_offsets-{partition}", partition, records(self, partition, start, end))

    tail_reader.Leader.records = dying_records  # type: ignore[method-assign]
    keep("read_offsets", read_offsets(spark, topic, bootstrap=url).select("partition", "offset"))
    print(json.dumps(places))


if __name__ == "__main__":
    main(*sys.argv[1:])
