"""The lag of a streaming query behind the ends of the logs that it reads, from its progress."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logstore.errors import InvalidRequestError
from logstore.spark.source.stream_offset import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class RecordsBehind:
    """Records that a query had not read when its last batch was made; ``by_topic`` has them by partition."""

    total: int
    by_topic: Mapping[str, Mapping[int, int]]


def records_behind(
    progress: "StreamingQuery | StreamingQueryProgress | Mapping[str, Any] | str",
) -> RecordsBehind | None:
    """Return the lag between the end of a batch and the latest offsets at that time; None before the first batch.

    ``progress`` is a streaming query, a ``StreamingQueryProgress`` (``query.lastProgress``, or that of a
    ``StreamingQueryListener``), or its JSON. It counts offsets: compaction and aborted transactions leave gaps, so
    there may be fewer records. Sources of other formats do not count. Raises InvalidRequestError if no source has
    offsets of topics.
    """
    found = _progress(progress)
    if found is None:
        return None
    behind: dict[str, dict[int, int]] = {}
    is_known = False
    for source in found.get("sources", ()):
        end, latest = _position(source.get("endOffset")), _position(source.get("latestOffset"))
        if end is None or latest is None:
            continue
        is_known = True
        for (topic, partition), offset in latest.offsets.items():
            # A topic that was created again has none of the records that were read.
            is_same = end.is_of(topic, latest.topic_ids.get(topic, end.topic_ids.get(topic, "")))
            read = end.offsets.get((topic, partition), 0) if is_same else 0
            by_partition = behind.setdefault(topic, {})
            by_partition[partition] = by_partition.get(partition, 0) + max(0, offset - read)
    if not is_known:
        raise InvalidRequestError('the query reads no topics: no source of its progress is of format("logstore")')
    return RecordsBehind(sum(sum(topic.values()) for topic in behind.values()), behind)


def _progress(given: Any) -> Mapping[str, Any] | None:
    if not isinstance(given, (str, Mapping)):
        given = getattr(given, "lastProgress", given)
    if given is None:
        return None
    # StreamingQueryProgress is also a mapping, of Spark's objects.
    text = given if isinstance(given, str) else getattr(given, "json", None)
    value = json.loads(text) if isinstance(text, str) else given
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{given!r} is no streaming query, and no progress of one")
    return value


def _position(offset: Any) -> StreamOffset | None:
    """Return the offset of a source, or None if it is not an offset of topics."""
    value = json.loads(offset) if isinstance(offset, str) else offset
    try:
        return StreamOffset.of(value) if isinstance(value, Mapping) else None
    except InvalidRequestError:
        return None
