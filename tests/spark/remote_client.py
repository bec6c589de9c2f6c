"""A driver in a separate process, on a cluster or with Spark Connect: a process can have only one of them, and once.

``python remote_client.py <master> <store> <topic>`` prints as JSON what it read of the topic.
"""

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkException

import logstore
from logstore.spark import parse_json, register, session


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import logstore

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [logstore.__file__]})


#: Settings for a cluster that make small work quick.
QUICK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def main(master: str, url: str, topic: str) -> None:
    spark = session("a client", master, {} if master.startswith("sc://") else QUICK)
    register(spark)
    options = {"kafka.bootstrap.servers": url, "subscribe": topic, "includeHeaders": "true"}
    batch = spark.read.format("logstore").options(**options).load()
    stream = spark.readStream.format("logstore").options(**options, startingOffsets="earliest").load()
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination(120)
    error = ""
    try:
        spark.read.format("logstore").option("subscribe", topic).load().collect()
    except PySparkException as refused:
        error = str(refused)
    answers = {
        "driver": logstore.__file__,
        "workers": [row.path for row in spark.range(1).mapInArrow(where, "path string").collect()],
        "batch": sorted(row.offset for row in batch.where("offset >= 10").collect()),
        "headers": batch.where("headers IS NOT NULL").count(),
        "function": sorted(
            row.offset
            for row in spark.sql(
                f"SELECT * FROM logstore_topic('{topic}', starting => '{{\"0\": 25}}', bootstrap => '{url}')"
            ).collect()
        ),
        "stream": sorted(row.offset for row in spark.table("seen").collect()),
        "end_offset": query.lastProgress["sources"][0]["endOffset"],
        "json": [row.a for row in parse_json(batch.where("offset = 1"), "a int").select("value.a").collect()],
        "error": error,
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
