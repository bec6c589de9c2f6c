"""A topic as a DataFrame by offset range: ``read_offsets`` checks its arguments, ``topic_frame`` reads."""

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from logstore.errors import InvalidRequestError
from logstore.spark.offset_ranges import OffsetSpec, check_offsets, resolve
from logstore.spark.topic_frame import client_id, topic_frame
from logstore.spark.topic_view import check_source, connect, view_of_storage, view_through_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Offsets of several topics: a word or a time for all, or an ``OffsetSpec`` for each by its name.
TopicOffsets = OffsetSpec | Mapping[str, OffsetSpec]


def read_offsets(
    spark: "SparkSession",
    topic: str | Sequence[str],
    starting_offsets: TopicOffsets = "earliest",
    ending_offsets: TopicOffsets = "latest",
    bootstrap: str | None = None,
    storage: str | os.PathLike[str] | None = None,
) -> "DataFrame":
    """Return records of one or several topics with ``starting offset <= offset < ending offset``, in no particular
    order.

    Columns: ``topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, headers
    array<struct<key: string, value: binary>>``. "latest" is fixed when this is called; offsets may be missing where
    records were compacted. Filters on offset, timestamp and partition skip files of the history.

    ``starting_offsets`` and ``ending_offsets`` are "earliest", "latest", a time, or a mapping that names every
    partition: ``{0: 10, 1: "earliest", 2: "yesterday"}`` (also -2 and -1, as in Spark's Kafka source); for a list of
    topics, a mapping that names each: ``{"orders": {0: 10}, "users": "earliest"}``. A time is a datetime, or text such
    as "2026-11-21T08:00:00Z", "2026-11-21", "-1h"; UTC without a zone. It means the first offset at or after that time,
    or the end of the log if there is none. ``bootstrap`` is the store: ``http(s)://host:port`` or ``host:port``,
    several separated by commas; by default LOGSTORE_URL. ``storage`` in its place is the data root (``--data``): sealed
    history only, with no store running.

    Raises InvalidRequestError (an argument), UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError (with the
    valid range), DataDirectoryError (the topic's data is not visible from here), CorruptionError, and the errors of
    ``logstore.client`` for a store that cannot be reached. A range that retention overtakes before the DataFrame is
    evaluated fails in the tail; in the history it has fewer records.
    """
    starts = _by_topic("starting_offsets", topic, starting_offsets)
    ends = _by_topic("ending_offsets", topic, ending_offsets)
    check_source(bootstrap, storage)
    if storage is not None:
        views = [view_of_storage(storage, name) for name in starts]
    else:
        with connect(bootstrap, client_id(spark)) as store:
            views = [view_through_store(store, name) for name in starts]
    frames = [
        topic_frame(spark, v, resolve(v.topic, starts[v.topic], ends[v.topic], v.bounds, v.offsets_of_times))
        for v in views
    ]
    return reduce(lambda a, b: a.union(b), frames)


def _by_topic(argument: str, topic: str | Sequence[str], offsets: TopicOffsets) -> dict[str, OffsetSpec]:
    """Return each topic's ``OffsetSpec``. Raises InvalidRequestError if ``offsets`` omits a topic, or names another."""
    if not isinstance(topic, (str, list, tuple)) or not topic or not all(isinstance(name, str) for name in topic):
        raise InvalidRequestError(f"topic={topic!r}: give the name of a topic, or a list of names")
    names = [topic] if isinstance(topic, str) else list(topic)
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"topic={names}: name each one once")
    specs: dict[Any, Any] = dict.fromkeys(names, offsets)
    if not isinstance(topic, str) and isinstance(offsets, Mapping):
        specs = dict(offsets)
        if specs.keys() != set(names):
            raise InvalidRequestError(
                f'{argument} of several topics is "earliest", "latest", a time, or a mapping that names each of them: '
                f'{{"{names[0]}": {{0: 10, 1: "earliest"}}, ...}}'
            )
    for spec in specs.values():
        check_offsets(argument, spec)
    return {name: specs[name] for name in names}
