"""The records of ``__consumer_offsets`` that hold a group's membership: one per group, the last one counts.

The key is JSON ``{"group"}``, always in this one spelling; a key with ``topic`` is that of an offset
(``logstore/records/offset_record.py``). The value is JSON whose ``kind`` is "classic" or "consumer"; a null value
deletes the group. Bytes are base64. Fields may be added, but not removed.

Kafka writes up to six records for each member of a consumer group, so that a heartbeat writes one member only. Here the
whole group is one record: a replay needs no order among records, compaction and a change of kind leave nothing behind,
and what is read back is exactly a state that the group was in.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from logstore.errors import CorruptionError
from logstore.limits import GROUP_MEMBER_BYTES
from logstore.protocol.messages.members import Protocol
from logstore.records.offset_record import OFFSETS_TOPIC

Partitions = dict[UUID, list[int]]

# These bytes of a record come on top of a topic's name, and of a protocol's name and metadata.
_TOPIC_NAME_BYTES: Final = 8
_PROTOCOL_BYTES: Final = 8


class ClassicMemberValue(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    assignment: bytes


class ClassicGroupValue(msgspec.Struct, frozen=True, tag_field="kind", tag="classic"):
    """``state`` is Empty, CompletingRebalance (the leader's assignment is still to come), Stable, or PreparingRebalance
    (the group was a consumer group, and its members are to join again). ``state_timestamp`` is the time in ms when the
    state began.
    """

    generation: int
    state: str
    state_timestamp: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: list[ClassicMemberValue]


class ClassicProtocolValue(msgspec.Struct, frozen=True):
    """Kafka's ClassicMemberMetadata: the protocols of a consumer group's member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: list[tuple[str, bytes]]


class ConsumerMemberValue(msgspec.Struct, frozen=True):
    """A member with its partitions by topic id: those that it may hold, is to revoke, and is to have in the end
    (KIP-848).

    ``classic`` is None for a member of the consumer protocol.
    """

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    subscribed_topics: list[str]
    subscribed_regex: str
    server_assignor: str | None
    member_epoch: int
    previous_member_epoch: int
    state: str
    assigned: Partitions
    pending_revocation: Partitions
    target: Partitions
    classic: ClassicProtocolValue | None = None


class ConsumerGroupValue(msgspec.Struct, frozen=True, tag_field="kind", tag="consumer"):
    """``epoch`` is the group's, ``target_epoch`` that of the target assignment. ``topics`` has the subscribed topics
    with id and number of partitions, ``regexes`` the topics that each regex matched, ``names`` the names of assigned
    topics.
    """

    epoch: int
    target_epoch: int
    state_timestamp: int
    topics: dict[str, tuple[UUID, int]]
    regexes: dict[str, list[str]]
    names: dict[UUID, str]
    members: list[ConsumerMemberValue]


def names_bytes(*names: str | None) -> int:
    """Return the bytes that count for a member's names and fixed fields, beside its subscription or protocols. Ordinary
    names count the same: a static member that returns from another host is no larger.
    """
    return max(GROUP_MEMBER_BYTES, sum(len(name) for name in names if name is not None))


def topic_names_bytes(names: Collection[str]) -> int:
    """Return the bytes that count for names of topics."""
    return sum(map(len, names)) + _TOPIC_NAME_BYTES * len(names)


def protocols_bytes(protocols: Iterable[Protocol]) -> int:
    """Return the bytes that count for the protocols of a classic member: names and metadata."""
    return sum(_PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols)


class GroupRecord(NamedTuple):
    group: str
    value: ClassicGroupValue | ConsumerGroupValue

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Return key and value."""
        return _encoder.encode(_Key(self.group)), _encoder.encode(self.value)


class Tombstone(NamedTuple):
    group: str

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Return key and value."""
        return _encoder.encode(_Key(self.group)), None


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: str


_encoder = msgspec.json.Encoder()
_keys = msgspec.json.Decoder(_Key)
_values: msgspec.json.Decoder[ClassicGroupValue | ConsumerGroupValue] = msgspec.json.Decoder(
    ClassicGroupValue | ConsumerGroupValue
)


def decode_group_record(key: bytes | None, value: bytes | None) -> GroupRecord | Tombstone:
    """Decode a record. Raises CorruptionError if no coordinator wrote it."""
    try:
        group = _keys.decode(key or b"").group
        return Tombstone(group) if value is None else GroupRecord(group, _values.decode(value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"A group's record in {OFFSETS_TOPIC} does not parse: {error}; its key is {(key or b'')[:200]!r}"
        ) from error
