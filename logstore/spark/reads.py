"""A topic as a DataFrame by offset range: sealed history from Delta, the tail from the store, each record once.

Rule R8, in order: (1) the ends are asked over HTTP; (2) the store's leader serves any offset of the tail for as long as
it is retained; (3) the sealed offsets and log starts come from one Delta snapshot, read after (1); (4) history is
``start <= offset < min(sealed, end)`` of that or any later version, and the tail is the rest. A roll at any moment,
also between two evaluations of the DataFrame, is not noticed: the border between the parts was fixed when the
DataFrame was made.
"""

import os
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec

from logstore.client.transport import Transport, topic_path
from logstore.errors import DataDirectoryError, InvalidRequestError, InvalidTopicError, UnknownTopicError
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.spark import tail_reader
from logstore.spark.offset_ranges import (
    FileRange,
    LogBounds,
    OffsetRange,
    OffsetSpec,
    check_offsets,
    plan_history,
    resolve,
    split_at_sealed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from logstore.delta.snapshot import TopicSnapshot

URL_VARIABLE = "LOGSTORE_URL"
#: As many tasks fetch the tail of a topic at once, at most; each goes through its share of the partitions.
TAIL_TASKS_MAX = 200
#: How long a store that does not answer is asked again while a DataFrame is made.
RETRY_SECONDS = 10.0

_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
_TOPIC_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")


class _Partition(msgspec.Struct):
    partition: int
    log_start_offset: int
    last_stable_offset: int


class _Topic(msgspec.Struct):
    """What of ``GET /topics/{topic}`` a read needs."""

    topic_id: str
    location: str
    partitions: list[_Partition]


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
    if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopicError(f"{topic!r} cannot be a topic's name: 1 to 249 of A-Z a-z 0-9 . _ -, not . or ..")
    check_offsets("starting_offsets", starting_offsets)
    check_offsets("ending_offsets", ending_offsets)
    if bootstrap is not None and storage is not None:
        raise InvalidRequestError("give bootstrap (a running store) or storage (its data root), not both")
    if storage is not None:
        path = _local_path(os.fspath(storage)) / "topics" / topic
        snapshot = _snapshot(path, UnknownTopicError(f"there is no topic {topic} in {storage} ({path})"))
        bounds = [LogBounds(p, s.log_start, max(s.sealed, s.log_start)) for p, s in sorted(snapshot.partitions.items())]
        history, _ = split_at_sealed(
            resolve(topic, starting_offsets, ending_offsets, bounds), {b.partition: b.end_offset for b in bounds}
        )
        return _joined(spark, topic, [_history(spark, path, history, snapshot)] if history else [])

    bootstrap = bootstrap or os.environ.get(URL_VARIABLE)
    if not bootstrap:
        raise InvalidRequestError(
            f'give bootstrap="host:port" (or set {URL_VARIABLE}) for a running store, '
            'or storage="<data root>" to read without one'
        )
    client_id = f"spark {spark.conf.get('spark.app.name', '')}".strip()
    with Transport(bootstrap, client_id=client_id, retry_timeout_s=RETRY_SECONDS) as transport:
        urls = transport.urls
        described = msgspec.json.decode(transport.request("GET", topic_path(topic)).content, type=_Topic)
    path = _local_path(described.location)
    invisible = DataDirectoryError(
        f"topic {topic} is stored at {described.location}, which is not visible from here: mount it where Spark runs, "
        "under the name that the store's setting data.location gives it"
    )
    snapshot = _snapshot(path, invisible)
    if str(snapshot.topic_id) != described.topic_id:
        raise DataDirectoryError(
            f"{path} holds another topic {topic} than the store at {bootstrap} serves (topic id {snapshot.topic_id}, "
            f"not {described.topic_id}): the data of another store, or of a topic that was just created anew"
        )
    bounds = []
    for p in described.partitions:
        log_start = max(p.log_start_offset, snapshot.partitions[p.partition].log_start)
        bounds.append(LogBounds(p.partition, log_start, max(p.last_stable_offset, log_start)))
    sealed = {p: state.sealed for p, state in snapshot.partitions.items()}
    history, tail = split_at_sealed(resolve(topic, starting_offsets, ending_offsets, bounds), sealed)
    parts = [_history(spark, path, history, snapshot)] if history else []
    if tail:
        parts.append(_tail(spark, urls, topic, described.topic_id, tail, client_id))
    return _joined(spark, topic, parts)


def _history(
    spark: "SparkSession", path: Path, ranges: Sequence[OffsetRange], snapshot: "TopicSnapshot"
) -> "DataFrame":
    files = (
        FileRange(r.partition, segment.min_offset, segment.max_offset)
        for r in ranges
        for segment in snapshot.segments(r.partition)
    )
    # Not Path.as_uri(): Hadoop takes the text after the scheme as it is.
    table = spark.read.format("delta").load(f"file://{path}").select(*_COLUMNS)
    scans = plan_history(ranges, files)
    return reduce(lambda a, b: a.union(b), (table.where(scan.condition()) for scan in scans))


def _tail(
    spark: "SparkSession", urls: Sequence[str], topic: str, topic_id: str, ranges: Sequence[OffsetRange], client_id: str
) -> "DataFrame":
    from pyspark import cloudpickle

    # The module travels with the query: executors need not have this package.
    cloudpickle.register_pickle_by_value(tail_reader)  # type: ignore[no-untyped-call]
    reader = tail_reader.tail_reader(urls, topic, topic_id, [(r.partition, r.start, r.end) for r in ranges], client_id)
    tasks = min(len(ranges), TAIL_TASKS_MAX)
    return spark.range(0, len(ranges), 1, tasks).mapInArrow(reader, tail_reader.TAIL_COLUMNS)


def _joined(spark: "SparkSession", topic: str, parts: Sequence["DataFrame"]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    records = reduce(lambda a, b: a.union(b), parts) if parts else spark.createDataFrame([], tail_reader.TAIL_COLUMNS)
    return records.select(F.lit(topic).alias("topic"), *_COLUMNS)


def _snapshot(path: Path, missing: Exception) -> "TopicSnapshot":
    from logstore.delta.topic_table import TopicTable
    from logstore.filesystem import FileSystem

    if not (path / "_delta_log").is_dir():
        raise missing
    # Not TopicTable.open, which makes durable what it sees: a reader may have the data mounted read-only.
    return TopicTable(path, FileSystem()).snapshot()


def _local_path(location: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(url2pathname(parts.path))
    if "://" in location:
        raise DataDirectoryError(
            f"{location} is not on a file system: topics are read from paths and file:// locations"
        )
    return Path(location).expanduser().absolute()
