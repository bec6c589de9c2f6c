"""The records of ``__consumer_offsets``: a group's committed offsets, as key and value and as columns.

Key: JSON ``{"group", "topic", "partition"}``, always in this one spelling, so that compaction by key meets its own.
Value: JSON ``{"offset", "leader_epoch", "metadata", "generation", "topic_id", "commit_timestamp"}``; a null value
deletes the commit. Both are part of the format, see ``docs/table-format.md``: fields may be added, none removed.
"""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec
import pyarrow as pa

from logstore.errors import CorruptionError
from logstore.records.schema import WIRE_SCHEMA

OFFSETS_TOPIC = "__consumer_offsets"

#: ``leader_epoch`` when the leader of the last record before the offset is not known.
NO_LEADER_EPOCH = -1
#: ``generation`` of a commit that comes from no member of a group (Kafka's simple consumer).
NO_GENERATION = -1


_Int32 = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class OffsetKey(msgspec.Struct, frozen=True):
    group: str
    topic: str
    partition: _Int32


class OffsetCommit(msgspec.Struct, frozen=True):
    """``offset`` is the next one to read; ``leader_epoch`` that of the record before it; ``commit_timestamp`` in ms.

    ``topic_id`` keeps a topic of the same name, made later, from inheriting the offset.
    """

    offset: _Int64
    leader_epoch: _Int32
    metadata: str
    generation: _Int32
    topic_id: UUID
    commit_timestamp: _Int64


#: Typed columns beside the log's own in the table of ``__consumer_offsets``; of a null value only the key's are set.
OFFSET_COLUMNS = pa.schema(
    [
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("topic_partition", pa.int32()),
        pa.field("committed_offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("metadata", pa.string()),
        pa.field("generation", pa.int32()),
    ]
)

_encoder = msgspec.json.Encoder()
_keys = msgspec.json.Decoder(OffsetKey)
_values = msgspec.json.Decoder(OffsetCommit)


def encode_offset_records(records: Sequence[tuple[OffsetKey, OffsetCommit | None]]) -> pa.RecordBatch:
    """A batch of WIRE_SCHEMA with one row each; None becomes a tombstone."""
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": [None] * len(records),
            "key": [_encoder.encode(key) for key, _ in records],
            "value": [_encoder.encode(commit) if commit else None for _, commit in records],
            "headers": [None] * len(records),
        },
        schema=WIRE_SCHEMA,
    )


def decode_offset_record(key: bytes | None, value: bytes | None) -> tuple[OffsetKey, OffsetCommit | None]:
    """The key and the commit of a record, None for a tombstone. CorruptionError if no coordinator wrote it."""
    try:
        return _keys.decode(key or b""), None if value is None else _values.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"A record of {OFFSETS_TOPIC} does not parse: {error}; its key is {(key or b'')[:200]!r}"
        ) from error


def offset_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """OFFSET_COLUMNS of records with ``key`` and ``value``; CorruptionError for a record that no coordinator wrote."""
    texts = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    rows = [_row(*decode_offset_record(key, value)) for key, value in texts]
    columns = zip(*rows, strict=True) if rows else [()] * len(OFFSET_COLUMNS)
    return [pa.array(column, field.type) for column, field in zip(columns, OFFSET_COLUMNS, strict=True)]


def _row(key: OffsetKey, commit: OffsetCommit | None) -> tuple[str | int | None, ...]:
    if commit is None:
        return key.group, key.topic, key.partition, None, None, None, None
    return (
        key.group,
        key.topic,
        key.partition,
        commit.offset,
        commit.leader_epoch,
        commit.metadata,
        commit.generation,
    )
