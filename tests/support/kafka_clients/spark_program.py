"""Spark with its own Kafka source and sink, in a separate process, because a JVM gets its jars when it starts.

It reads its arguments as JSON from stdin. It reads the topic ``read`` as a batch and prints its rows as JSON, and
copies it to ``batch`` as a batch and to ``stream`` as a stream that ends at the current end of the topic.
"""

import base64
import json
import sys
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

_COLUMNS = ("partition", "key", "value", "headers")


def main(given: dict[str, Any]) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(given["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    source = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": given["read"], "includeHeaders": "true"}
    source |= {"startingOffsets": "earliest"}
    rows: DataFrame = spark.read.format("kafka").options(**source).load()
    json.dump([_row(row) for row in rows.collect()], sys.stdout)

    def sink(topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": given["bootstrap"], "topic": topic}

    rows.select(*_COLUMNS).write.format("kafka").options(**sink(given["batch"])).save()
    stream = spark.readStream.format("kafka").options(**source, maxOffsetsPerTrigger="100").load().select(*_COLUMNS)
    writing = stream.writeStream.format("kafka").options(
        **sink(given["stream"]), checkpointLocation=given["checkpoint"]
    )
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination(300)
    query.stop()
    spark.stop()


def _row(row: Row) -> dict[str, Any]:
    return {
        "partition": row.partition,
        "offset": row.offset,
        "key": _text(row.key),
        "value": _text(row.value),
        "headers": [[header.key, _text(header.value)] for header in row.headers or ()],
        "timestamp_ms": round(row.timestamp.timestamp() * 1000),
        "timestamp_type": row.timestampType,
    }


def _text(data: bytearray | None) -> str | None:
    return None if data is None else base64.b64encode(bytes(data)).decode()


if __name__ == "__main__":
    main(json.load(sys.stdin))
