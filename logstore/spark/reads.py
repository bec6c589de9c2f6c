"""A topic as a DataFrame by offset range: what ``read_offsets`` checks before ``topic_view`` reads."""

import os
from typing import TYPE_CHECKING

from logstore.spark.offset_ranges import OffsetSpec, check_offsets, resolve
from logstore.spark.topic_view import check_source, connect, view_of_storage, view_through_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_offsets(
    spark: "SparkSession",
    topic: str,
    starting_offsets: OffsetSpec = "earliest",
    ending_offsets: OffsetSpec = "latest",
    bootstrap: str | None = None,
    storage: str | os.PathLike[str] | None = None,
) -> "DataFrame":
    """Records of a topic with ``starting offset <= offset < ending offset``, in no particular order.

    Columns: ``topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, headers
    array<struct<key: string, value: binary>>``. "latest" is fixed when this is called; offsets may be missing where
    records were compacted. Filters on offset, timestamp and partition skip files of the history.

    ``starting_offsets`` and ``ending_offsets`` are "earliest", "latest", or a mapping that names every partition:
    ``{0: 10, 1: "earliest", 2: "latest"}`` (as in Spark's Kafka source also -2 and -1). ``bootstrap`` is the store:
    ``http(s)://host:port`` or ``host:port``, several separated by commas; by default what LOGSTORE_URL names.
    ``storage`` instead of it is the data root (``--data``): sealed history only, with no store running.

    Raises InvalidRequestError (an argument), UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError (with the
    valid range), DataDirectoryError (the topic's data is not visible from here), CorruptionError, and what
    ``logstore.client`` raises for a store that cannot be reached. A range that retention overtakes before the DataFrame
    is evaluated fails in the tail; in the history it has fewer records.
    """
    check_offsets("starting_offsets", starting_offsets)
    check_offsets("ending_offsets", ending_offsets)
    check_source(bootstrap, storage)
    if storage is not None:
        view = view_of_storage(storage, topic)
    else:
        with connect(spark, bootstrap) as store:
            view = view_through_store(store, topic)
    return view.records(spark, resolve(topic, starting_offsets, ending_offsets, view.bounds))
