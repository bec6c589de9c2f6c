"""Kafka's ConsumerProtocol: the messages that members of a classic group send each other through the coordinator.

They are encoded byte for byte as Kafka's clients write them, so that both can share a group.

A message is a version (int16) and the fields of ``ConsumerProtocolSubscription.json`` or
``ConsumerProtocolAssignment.json``, big-endian: strings with an int16 for their length, bytes with an int32 (-1: null),
arrays with an int32 for their number. Versions are 0 to 3; each adds fields at the end. As in Kafka, a newer version is
read as the newest known one, and the rest after its fields is ignored.

Every number of elements is compared with the bytes that are left before any object is made. So the memory for a message
is at most a multiple of its length.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from logstore.errors import InvalidRequestError
from logstore.protocol.assignors.assignor import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
NEWEST_VERSION: Final = 3

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_STRING_BYTES_MAX: Final = 0x7FFF


@dataclass(frozen=True, slots=True)
class Subscription:
    """``owned`` exists since version 1, ``generation`` since 2 (-1: none), ``rack`` since 3."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = NEWEST_VERSION) -> bytes:
    """Encode topics and owned partitions in order, as Kafka writes them. Fields that ``version`` does not have are left
    out. Raises InvalidRequestError for a string above 32,767 bytes.
    """
    message = _header(version)
    topics = sorted(subscription.topics)
    message += _INT32.pack(len(topics))
    for topic in topics:
        message += _string(topic)
    message += _nullable_bytes(subscription.user_data)
    if version >= 1:
        message += _topic_partitions(sorted(subscription.owned))
    if version >= 2:
        message += _INT32.pack(subscription.generation)
    if version >= 3:
        message += _INT16.pack(-1) if subscription.rack is None else _string(subscription.rack)
    return bytes(message)


def decode_subscription(message: bytes) -> Subscription:
    """Decode a subscription. Raises InvalidRequestError if ``message`` is none."""
    reader = _Reader(message, "subscription of the consumer protocol")
    version = reader.version()
    topics = tuple([reader.string() for _ in range(reader.count(at_least=2))])
    user_data = reader.nullable_bytes()
    owned = reader.topic_partitions() if version >= 1 else ()
    generation = reader.int32() if version >= 2 else -1
    rack = reader.nullable_string() if version >= 3 else None
    return Subscription(topics, user_data, owned, max(generation, -1), rack or None)


def version_of(message: bytes) -> int:
    """Return the version of a subscription or assignment, at most the newest. Raises InvalidRequestError if there is
    none.
    """
    return _Reader(message, "message of the consumer protocol").version()


def encode_assignment(assignment: Assignment, version: int = NEWEST_VERSION) -> bytes:
    """Encode topics in the order in which they first occur. Raises InvalidRequestError for a string above 32,767
    bytes.
    """
    message = _header(version)
    message += _topic_partitions(assignment.partitions)
    message += _nullable_bytes(assignment.user_data)
    return bytes(message)


def decode_assignment(message: bytes) -> Assignment:
    """Decode an assignment. Raises InvalidRequestError if ``message`` is none."""
    reader = _Reader(message, "assignment of the consumer protocol")
    reader.version()
    return Assignment(reader.topic_partitions(), reader.nullable_bytes())


def encode_sticky_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode the user data of the sticky assignor, version 1: the partitions that the member had, and the
    generation.
    """
    return bytes(_topic_partitions(owned) + _INT32.pack(generation))


def decode_sticky_user_data(user_data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Return owned partitions and generation, which is -1 for version 0. Raises InvalidRequestError if it is neither
    version.
    """
    reader = _Reader(user_data, "user data of the sticky assignor")
    owned = reader.topic_partitions()
    return owned, reader.int32() if reader.left >= _INT32.size else -1


def encode_partition_counts(counts: Mapping[str, int]) -> bytes:
    """Encode the user data of a leader's own assignment: the numbers of partitions with which it has assigned."""
    return bytes(_topic_partitions(counts.items()))


def decode_partition_counts(user_data: bytes) -> dict[str, int]:
    """Decode them. Raises InvalidRequestError if ``user_data`` has other content, as that of other clients may have."""
    reader = _Reader(user_data, "user data of a leader")
    counts = dict(reader.topic_partitions())
    if reader.left:
        raise InvalidRequestError(f"The user data has {reader.left} bytes behind the numbers of partitions")
    return counts


def _header(version: int) -> bytearray:
    if not 0 <= version <= NEWEST_VERSION:
        raise ValueError(f"The consumer protocol has the versions 0 to {NEWEST_VERSION}, not {version}")
    return bytearray(_INT16.pack(version))


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > _STRING_BYTES_MAX:
        raise InvalidRequestError(f"Shorten {text[:20]!r}...: the consumer protocol takes {_STRING_BYTES_MAX} bytes")
    return _INT16.pack(len(encoded)) + encoded


def _nullable_bytes(content: bytes | None) -> bytes:
    return _INT32.pack(-1) if content is None else _INT32.pack(len(content)) + content


def _topic_partitions(partitions: Iterable[TopicPartition]) -> bytearray:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    encoded = bytearray(_INT32.pack(len(by_topic)))
    for topic, numbers in by_topic.items():
        encoded += _string(topic)
        encoded += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return encoded


class _Reader:
    """Reads ``message`` from its begin. Raises InvalidRequestError, which calls it ``name``, if that fails."""

    def __init__(self, message: bytes, name: str) -> None:
        self._message = message
        self._name = name
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._message) - self._at

    def version(self) -> int:
        """Return the version, at most the newest known one."""
        version = self._int16()
        if version < 0:
            raise self._malformed(f"version {version}")
        return min(version, NEWEST_VERSION)

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(_INT32.size))[0])

    def count(self, *, at_least: int) -> int:
        """Return the number of elements of an array, each of which takes at least ``at_least`` bytes."""
        count = self.int32()
        if not 0 <= count <= self.left // at_least:
            raise self._malformed(f"{count} elements where {self.left} bytes are left")
        return count

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise self._malformed("null where a name is needed")
        return text

    def nullable_string(self) -> str | None:
        length = self._int16()
        if length == -1:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError:
            raise self._malformed("a name that is not UTF-8") from None

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length == -1 else self._take(length)

    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        partitions: list[TopicPartition] = []
        for _ in range(self.count(at_least=_INT16.size + _INT32.size)):
            topic = self.string()
            numbers = self.count(at_least=_INT32.size)
            partitions += zip(repeat(topic), struct.unpack(f">{numbers}i", self._take(4 * numbers)), strict=False)
        return tuple(partitions)

    def _int16(self) -> int:
        return int(_INT16.unpack(self._take(_INT16.size))[0])

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise self._malformed(f"{length} bytes are announced where {self.left} are left")
        self._at += length
        return self._message[self._at - length : self._at]

    def _malformed(self, what: str) -> InvalidRequestError:
        return InvalidRequestError(f"Send a {self._name} as Kafka's clients encode it: byte {self._at} has {what}")
