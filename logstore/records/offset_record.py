"""The records of ``__consumer_offsets``: what a group has committed, as key and value and as columns.

Key: JSON ``{"group", "topic", "partition"}``, always in this one spelling, so that compaction by key meets its own.
Value: JSON ``{"offset", "leader_epoch", "metadata", "generation", "topic_id", "commit_timestamp"}``; null takes the
commit back. Both are part of the format, see ``docs/table-format.md``: fields may be added, none removed.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from logstore.errors import CorruptionError
from logstore.records.schema import WIRE_SCHEMA

OFFSETS_TOPIC = "__consumer_offsets"

#: ``leader_epoch`` when nobody knows which leader wrote the last record before the offset.
NO_LEADER_EPOCH = -1
#: ``generation`` of a commit that comes from no member of a group (Kafka's simple consumer).
NO_GENERATION = -1


class OffsetKey(msgspec.Struct, frozen=True):
    group: str
    topic: str
    partition: int


class OffsetCommit(msgspec.Struct, frozen=True):
    """``offset`` is the next one to read; ``leader_epoch`` that of the record before it; ``commit_timestamp`` in ms.

    ``topic_id`` keeps a topic of the same name, made later, from inheriting the offset.
    """

    offset: int
    leader_epoch: int
    metadata: str
    generation: int
    topic_id: UUID
    commit_timestamp: int


_KEY_COLUMNS = pa.schema(
    [pa.field("group", pa.string()), pa.field("topic", pa.string()), pa.field("partition", pa.int32())]
)
_VALUE_COLUMNS = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("metadata", pa.string()),
        pa.field("generation", pa.int32()),
    ]
)

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
    """WIRE_SCHEMA, one row each; None becomes a tombstone."""
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": [None] * len(records),
            "key": [_encoder.encode(key) for key, _ in records],
            "value": [_encoder.encode(commit) if commit else None for _, commit in records],
            "headers": [None] * len(records),
        },
        schema=WIRE_SCHEMA,
    )


def decode_offset_record(key: bytes, value: bytes | None) -> tuple[OffsetKey, OffsetCommit | None]:
    """CorruptionError for what no coordinator has written."""
    try:
        return _keys.decode(key), None if value is None else _values.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"A record of {OFFSETS_TOPIC} does not parse: {error}; its key is {key[:200]!r}") from error


def offset_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """OFFSET_COLUMNS of records with ``key`` and ``value`` columns; all of them parsed at once, in Arrow.

    CorruptionError for what no coordinator has written.
    """
    keys = _parse(batch.column("key"), _KEY_COLUMNS)
    values = _parse(batch.column("value"), _VALUE_COLUMNS)
    return [*keys, *values]


def _parse(texts: pa.BinaryArray, schema: pa.Schema) -> list[pa.Array]:
    """JSON objects, one a row, as columns; a row of nulls for a null."""
    if not len(texts):
        return [pa.array([], field.type) for field in schema]
    rows = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), pc.fill_null(texts, b"{}"))
    lines = pc.binary_join(rows, b"\n")[0].as_buffer()
    try:
        parsed = pyarrow.json.read_json(
            pa.BufferReader(lines),
            # One block: a line must not be longer than a block is.
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"Records of {OFFSETS_TOPIC} do not parse: {error}") from error
    if parsed.num_rows != len(texts):
        raise CorruptionError(f"{len(texts)} records of {OFFSETS_TOPIC} hold {parsed.num_rows} JSON objects")
    return [parsed.column(name).combine_chunks() for name in schema.names]
