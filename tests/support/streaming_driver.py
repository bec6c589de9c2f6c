"""A driver of a streaming query, to be killed: ``python streaming_driver.py URL TOPIC CHECKPOINT OUT GROUP``.

Each batch is one file, ``OUT/<batch id>.json``: by partition, its first and last offset and its number of records. A
repeated batch overwrites its file, and must be the same.
"""

import json
import sys
from pathlib import Path

from logstore.spark import session
from logstore.spark.source.data_source import LogStoreSource


def main(url: str, topic: str, checkpoint: str, out: str, group: str) -> None:
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    spark = session(
        "killed",
        "local[2]",
        {
            "spark.driver.extraJavaOptions": quick,
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
        },
    )
    spark.dataSource.register(LogStoreSource)

    def write(frame, batch_id) -> None:
        rows = frame.groupBy("partition").agg({"offset": "min", "*": "count"}).collect()
        last = dict(frame.groupBy("partition").agg({"offset": "max"}).collect())
        found = {row.partition: [row["min(offset)"], last[row.partition], row["count(1)"]] for row in rows}
        text = json.dumps(dict(sorted(found.items())))
        file = Path(out, f"{batch_id}.json")
        if file.exists() and file.read_text() != text:
            Path(out, f"{batch_id}.changed").write_text(text)
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)

    source = spark.readStream.format("logstore").option("bootstrap.servers", url).option("subscribe", topic)
    source = source.option("startingOffsets", "earliest").option("group", group).option("maxOffsetsPerTrigger", 3000)
    write_stream = source.load().writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    write_stream.trigger(processingTime="100 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
