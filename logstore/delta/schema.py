"""Names and forms of a topic table: application transactions, properties, add and remove actions.

All of them are part of the format, see ``docs/table-format.md``.
"""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from logstore.delta.actions import Add
from logstore.segments.writer import Segment

PROPERTY_PREFIX = "logstore."
PARTITIONS_PROPERTY = "logstore.partitions"
#: The topic's name. It distinguishes the topic from a copy of its directory under another name.
TOPIC_PROPERTY = "logstore.topic"
#: The property is refused: with it, Spark's checkpoints drop application transactions, which are this table's state.
FORBIDDEN_PROPERTY = "delta.setTransactionRetentionDuration"
PARTITION_COLUMNS = ["partition"]
#: Reader and writer version, without deletion vectors or column mapping.
PROTOCOL = (1, 2)

#: A property whose value comes from the topic's layout.
LOG_RETENTION_PROPERTY = "delta.logRetentionDuration"

_DAY_MS = 24 * 3_600_000
#: The log keeps a removal at least this long (Delta's default of the property is a week).
TOMBSTONES_KEPT_MS = 6 * _DAY_MS
TOMBSTONE_RETENTION_PROPERTY = "delta.deletedFileRetentionDuration"
_REMOVALS_KEPT_DAYS = 7
_DAYS = re.compile(r"(?:interval )?([1-9][0-9]{0,6}) days?", re.IGNORECASE)

#: These are set when a topic is created.
DELTA_PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.dataSkippingStatsColumns": "offset,timestamp",
    "delta.enableExpiredLogCleanup": "true",
}

SEALED, EPOCH, START, REWRITE, CLEANED = "sealed", "epoch", "start", "rewrite", "cleaned"
CLEAN_FILES = "clean_files"


def app_id(partition: int, fact: str) -> str:
    """Return the application id under which a commit stores one fact of a partition."""
    return f"logstore/{partition}/{fact}"


def removals_kept_ms(properties: Mapping[str, str]) -> int | None:
    """Return how long checkpoints keep the removal of a file; None if the property is not set to whole days."""
    text = properties.get(TOMBSTONE_RETENTION_PROPERTY) or f"{_REMOVALS_KEPT_DAYS} days"
    days = _DAYS.fullmatch(text)
    return None if days is None else int(days[1]) * _DAY_MS


def removals_kept_for(delay_ms: int) -> str:
    """Return the property's value with which a vacuum within a day after ``delay_ms`` still finds the removals."""
    return f"interval {max(-(-delay_ms // _DAY_MS) + 1, _REMOVALS_KEPT_DAYS)} days"


def timestamp_stat(timestamp_us: int) -> str:
    """Format a timestamp as in Delta statistics, exact to the µs: a rounded maximum would hide records from readers."""
    return f"{np.datetime64(timestamp_us, 'us')}Z"


def add_action(segment: Segment, now_ms: int, *, data_change: bool) -> Add:
    # With nullCount readers know that numRecords is complete, and skip an empty file for every query.
    nulls: dict[str, Any] = {"offset": 0, "timestamp": 0}
    stats: dict[str, object] = {"numRecords": segment.num_records, "nullCount": nulls}
    if segment.num_records:
        low: dict[str, Any] = {"offset": segment.min_offset, "timestamp": timestamp_stat(segment.min_timestamp_us)}
        high: dict[str, Any] = {"offset": segment.max_offset, "timestamp": timestamp_stat(segment.max_timestamp_us)}
        stats |= {"minValues": low, "maxValues": high}
        for column in segment.columns:
            *outer, name = column.path
            functools.reduce(lambda inner, part: inner.setdefault(part, {}), outer, nulls)[name] = column.nulls
            if column.low is not None:
                low[name] = column.low
            if column.high is not None:
                high[name] = column.high
    return Add(
        path=segment.path,
        size=segment.size,
        partition_values={"partition": str(segment.partition)},
        modification_time=now_ms,
        data_change=data_change,
        stats=json.dumps(stats, separators=(",", ":")),
    )
