"""The records of ``__consumer_offsets``: a group's committed offsets, as key and value and as columns.

Key: JSON ``{"group", "topic", "partition"}``, always in this spelling, so that compaction by key finds equal keys.
Value: JSON ``{"offset", "leader_epoch", "metadata", "generation", "topic_id", "commit_timestamp"}``; a null value
deletes the commit. A key with only ``group`` is that of the group's metadata, one with ``instance`` that of a consumer
instance; their values are JSON of the group coordinator. All are part of the format, see ``docs/table-format.md``:
fields may be added, none removed.
"""

import itertools
import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import pyarrow as pa

from logstore.errors import CorruptionError
from logstore.records.schema import WIRE_SCHEMA, null_headers

OFFSETS_TOPIC = "__consumer_offsets"

#: The ``leader_epoch`` if the leader of the last record before the offset is not known.
NO_LEADER_EPOCH = -1
#: The ``generation`` of a commit that comes from no member of a group (Kafka's simple consumer).
NO_GENERATION = -1


_Int32 = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Uuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class OffsetKey(msgspec.Struct, frozen=True, gc=False):
    group: str
    topic: str
    partition: _Int32


class GroupKey(msgspec.Struct, frozen=True, gc=False):
    """The key of a group's metadata."""

    group: str


class InstanceKey(msgspec.Struct, frozen=True, gc=False):
    """The key of a consumer instance of the group."""

    group: str
    instance: str


class OffsetCommit(msgspec.Struct, frozen=True, gc=False):
    """A committed offset. ``offset`` is the next one to read; ``leader_epoch`` that of the record before it;
    ``commit_timestamp`` is in ms. ``topic_id``, the text of a UUID, keeps a topic of the same name, created later, from
    inheriting the offset.
    """

    offset: _Int64
    leader_epoch: _Int32
    metadata: str
    generation: _Int32
    topic_id: _Uuid
    commit_timestamp: _Int64


class OffsetRecord(NamedTuple):
    """A commit of an offset, or its deletion (None)."""

    key: OffsetKey
    commit: OffsetCommit | None

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Return key and value."""
        return _encoder.encode(self.key), None if self.commit is None else _encoder.encode(self.commit)


class _AnyKey(msgspec.Struct, gc=False):
    group: str
    topic: str | None = None
    partition: _Int32 | None = None
    instance: str | None = None


#: Typed columns beside the log's columns in the table of ``__consumer_offsets``. A tombstone fills only the key's
#: columns; group metadata and instances fill only ``group``.
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
_keys = msgspec.json.Decoder(_AnyKey)
_values = msgspec.json.Decoder(OffsetCommit)


def encode_offset_records(records: Sequence[tuple[OffsetKey, OffsetCommit | None]]) -> pa.RecordBatch:
    """Return a batch of WIRE_SCHEMA with one row each; None becomes a tombstone."""
    return wire_batch([OffsetRecord(*record).encoded() for record in records])


def wire_batch(records: Sequence[tuple[bytes, bytes | None]]) -> pa.RecordBatch:
    """Return a batch of WIRE_SCHEMA of keys and values."""
    rows = len(records)
    columns = [
        pa.nulls(rows, WIRE_SCHEMA.field("timestamp").type),
        _binary([key for key, _ in records]),
        _binary([value for _, value in records]),
        null_headers(rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA)


def _binary(values: Sequence[bytes | None]) -> pa.Array:
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return pa.array(values, pa.binary())
    # ``pa.array`` takes ten times as long for a single value, which most commits are.
    ends = [0, *itertools.accumulate(map(len, present))]
    offsets = struct.pack(f"<{len(ends)}i", *ends)
    return pa.Array.from_buffers(
        pa.binary(), len(present), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    )


def decode_key(text: bytes | None) -> OffsetKey | GroupKey | InstanceKey:
    """Return what a record is about. Raises CorruptionError if no coordinator wrote it."""
    try:
        group, topic, partition, instance = msgspec.structs.astuple(_keys.decode(text or b""))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(text, error) from error
    if topic is None and partition is None:
        return GroupKey(group) if instance is None else InstanceKey(group, instance)
    if topic is None or partition is None or instance is not None:
        raise _corrupt(text, "it needs both a topic and a partition, an instance, or none of them")
    return OffsetKey(group, topic, partition)


def decode_commit(key: bytes | None, value: bytes | None) -> OffsetCommit | None:
    """Return the commit in the value of an offset's record; None for a tombstone. Raises CorruptionError like
    ``decode_key``.
    """
    try:
        return None if value is None else _values.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(key, error) from error


def decode_offset_record(key: bytes | None, value: bytes | None) -> OffsetRecord:
    """Decode the record of an offset. Raises CorruptionError if it is something else."""
    found = decode_key(key)
    if not isinstance(found, OffsetKey):
        raise _corrupt(key, "it is about no offset")
    return OffsetRecord(found, decode_commit(key, value))


def _corrupt(key: bytes | None, error: object) -> CorruptionError:
    return CorruptionError(f"A record of {OFFSETS_TOPIC} does not parse: {error}; its key is {(key or b'')[:200]!r}")


def offset_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return OFFSET_COLUMNS of records with ``key`` and ``value``. Raises CorruptionError for a record that no
    coordinator wrote.
    """
    texts = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    rows = [_row(*texts_of_one) for texts_of_one in texts]
    columns = zip(*rows, strict=True) if rows else [()] * len(OFFSET_COLUMNS)
    return [pa.array(column, field.type) for column, field in zip(columns, OFFSET_COLUMNS, strict=True)]


def _row(text: bytes | None, value: bytes | None) -> tuple[str | int | None, ...]:
    key = decode_key(text)
    if not isinstance(key, OffsetKey):
        return key.group, None, None, None, None, None, None
    commit = decode_commit(text, value)
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
