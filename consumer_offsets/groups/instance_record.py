"""The record of a consumer instance in ``__consumer_offsets``: the last one of its key counts.

The key is JSON ``{"group", "instance"}``, always in this one spelling. The value is JSON of InstanceValue; a null value
deletes the instance. Fields may be added, but not removed.
"""

from typing import NamedTuple

import msgspec

from logstore.broker.context import ANONYMOUS, Principal, RequestContext
from logstore.errors import CorruptionError
from logstore.records.offset_record import OFFSETS_TOPIC, InstanceKey


class InstanceConfig(msgspec.Struct, frozen=True):
    """``format`` is the embedded one, "binary" or "json"; ``auto_offset_reset`` is "earliest" or "latest"."""

    format: str
    auto_offset_reset: str
    auto_commit: bool
    fetch_min_bytes: int
    request_timeout_ms: int
    isolation: int


class Assigned(msgspec.Struct, frozen=True, array_like=True):
    """A partition that the client has assigned to its instance, of the topic with that id."""

    topic: str
    partition: int
    topic_id: str


class Start(msgspec.Struct, frozen=True, array_like=True):
    """The offset where the instance began to read a partition that it holds, while nothing was committed since."""

    topic: str
    partition: int
    topic_id: str
    offset: int


class Subscriber(msgspec.Struct, frozen=True):
    """The principal that subscribed. Only topics that it may describe match a pattern."""

    principal: Principal
    host: str

    @property
    def context(self) -> RequestContext:
        return RequestContext("", "", "INTERNAL", self.host, None, self.principal)


class InstanceValue(msgspec.Struct, frozen=True):
    """``id`` distinguishes the instance from others that had its name. It is subscribed (to ``topics`` or to those that
    match ``pattern``), has ``assigned``, or neither.

    ``seen`` has the topics of a subscription when it was made, with their ids and numbers of partitions: later ones are
    read from their beginning. ``member_id`` is that of its membership in the group.
    """

    id: str
    config: InstanceConfig
    topics: list[str] | None = None
    pattern: str | None = None
    subscriber: Subscriber = Subscriber(ANONYMOUS, "")
    seen: dict[str, tuple[str, int]] = {}
    assigned: list[Assigned] | None = None
    member_id: str | None = None
    starts: list[Start] = []

    @property
    def is_subscribed(self) -> bool:
        return self.topics is not None or self.pattern is not None


class InstanceRecord(NamedTuple):
    """A record of the instance; a ``value`` of None deletes it."""

    key: InstanceKey
    value: InstanceValue | None

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Return key and value."""
        return _encoder.encode(self.key), None if self.value is None else _encoder.encode(self.value)


_encoder = msgspec.json.Encoder()
_values = msgspec.json.Decoder(InstanceValue)


def decode_instance(key: bytes | None, value: bytes | None) -> InstanceValue | None:
    """Decode a record's value; None if the instance is deleted. Raises CorruptionError if no coordinator wrote it."""
    try:
        return None if value is None else _values.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"An instance's record in {OFFSETS_TOPIC} does not parse: {error}; its key is {(key or b'')[:200]!r}"
        ) from error
