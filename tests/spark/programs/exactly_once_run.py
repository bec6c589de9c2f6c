"""Runs a group into a Delta sink and ends at a step as a killed process does; ``test_exactly_once`` starts it.

Arguments: "group", the store, the topics (separated by commas), the group, the sink, the step ("task" ends the driver
from a task of the write); an optional last one, "without-sink", plans the batch without the sink. Or: "stream", a Delta
table to read, the sink, the checkpoint, the step.
"""

import os
import signal
import sys

from logstore.spark import delta_sink, delta_writer, group_read, session
from tests.spark.conftest import QUICK


def end_at(step: str) -> None:
    def reached(name: str) -> None:
        if name == step:
            os._exit(9)

    delta_sink.reached = reached


def run_group(store: str, topics: str, group: str, sink: str, step: str, *plan: str) -> None:
    end_at(step)
    driver = os.getpid()

    def killing(batches):
        for batch in batches:
            yield batch
            os.kill(driver, signal.SIGKILL)

    spark = session(app_name="killed", master="local[2]", config=QUICK)
    if plan:
        with group_read(spark, topics.split(","), group, store) as batch:
            batch.write_delta(sink)
        return
    with group_read(spark, topics.split(","), group, store, sink=sink) as batch:
        df = batch.df.mapInArrow(killing, batch.df.schema) if step == "task" else batch.df
        batch.write_delta(df=df)


def run_stream(source: str, sink: str, checkpoint: str, step: str) -> None:
    end_at(step)
    spark = session(app_name="killed", master="local[2]", config=QUICK)
    writer = spark.readStream.format("delta").load(source).writeStream.foreachBatch(delta_writer(sink))
    writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    {"group": run_group, "stream": run_stream}[sys.argv[1]](*sys.argv[2:])
