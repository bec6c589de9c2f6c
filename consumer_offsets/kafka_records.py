"""Encodes records of ``__consumer_offsets`` as Kafka's coordinator writes them, for tools that decode the topic.

Keys and values begin with a version (int16), which in a key is the kind of the record. The messages are Kafka's
``OffsetCommitKey`` and ``OffsetCommitValue``, ``GroupMetadataKey`` and ``GroupMetadataValue``, and
``ConsumerGroupMetadataKey`` and ``ConsumerGroupMetadataValue``, in the versions of Kafka 4.

Each offset has one record. So a consumer group (KIP-848) becomes the record of its epoch. Kafka's records of its
members, targets and assignments, several for each member, have no offsets here, and are left out. The deletion of a
group is encoded as that of a classic group, whatever its kind was. Kafka has no consumer instances.
"""

import struct
from typing import Final

from consumer_offsets.groups.group_record import ClassicGroupValue, ClassicMemberValue, Tombstone, decode_group_record
from logstore.errors import CorruptionError
from logstore.records.offset_record import GroupKey, OffsetKey, decode_commit, decode_key

_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_CONSUMER_GROUP_KEY: Final = 3
_OFFSET_VALUE: Final = 3
_GROUP_VALUE: Final = 3
_CONSUMER_GROUP_VALUE: Final = 0

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TWO_INT32: Final = struct.Struct(">ii")
#: Version, offset, leader epoch.
_OFFSET: Final = struct.Struct(">hqi")
#: Version, epoch, and no tagged fields.
_EPOCH: Final = struct.Struct(">hix")
_STRING_MAX: Final = 0x7FFF
_NULL_STRING: Final = _INT16.pack(-1)


def kafka_record(key: bytes | None, value: bytes | None) -> tuple[bytes, bytes | None] | None:
    """Return key and value in Kafka's form; None for a record that Kafka does not have, or that cannot be read."""
    try:
        found = decode_key(key)
        if isinstance(found, OffsetKey):
            place = _string(found.group) + _string(found.topic) + _INT32.pack(found.partition)
            return _INT16.pack(_OFFSET_KEY) + place, _offset_value(key, value)
        if not isinstance(found, GroupKey):
            return None
        group = decode_group_record(key, value)
        name = _string(found.group)
        if isinstance(group, Tombstone):
            return _INT16.pack(_GROUP_KEY) + name, None
        if isinstance(group.value, ClassicGroupValue):
            return _INT16.pack(_GROUP_KEY) + name, _group_value(group.value)
        return _INT16.pack(_CONSUMER_GROUP_KEY) + name, _EPOCH.pack(_CONSUMER_GROUP_VALUE, group.value.epoch)
    except (CorruptionError, _TooLongError):
        return None


class _TooLongError(Exception):
    """A text is too long for a length of 16 bits."""


def _offset_value(key: bytes | None, value: bytes | None) -> bytes | None:
    commit = decode_commit(key, value)
    if commit is None:
        return None
    offset = _OFFSET.pack(_OFFSET_VALUE, commit.offset, commit.leader_epoch)
    return offset + _string(commit.metadata) + _INT64.pack(commit.commit_timestamp)


def _group_value(group: ClassicGroupValue) -> bytes:
    parts = [
        _INT16.pack(_GROUP_VALUE),
        _string(group.protocol_type or ""),
        _INT32.pack(group.generation),
        _nullable(group.protocol),
        _nullable(group.leader),
        _INT64.pack(group.state_timestamp),
        _INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            _string(member.member_id),
            _nullable(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _TWO_INT32.pack(member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(_metadata(member, group.protocol)),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def _metadata(member: ClassicMemberValue, protocol: str | None) -> bytes:
    return next((metadata for name, metadata in member.protocols if name == protocol), b"")


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > _STRING_MAX:
        raise _TooLongError
    return _INT16.pack(len(encoded)) + encoded


def _nullable(text: str | None) -> bytes:
    return _NULL_STRING if text is None else _string(text)


def _bytes(content: bytes) -> bytes:
    return _INT32.pack(len(content)) + content
