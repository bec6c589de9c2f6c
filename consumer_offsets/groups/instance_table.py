"""The consumer instances of a partition of ``__consumer_offsets``, from their records. Pure: events in, effects out.

With these invariants an instance continues after a restart without skipping a record (decision 47):

* A start exists from before the first record that is read from it, until the first commit of its partition, and is
  removed in the frame of that commit.
* A start is removed before its partition is given up. It is void if its member has left the group, or if the partition
  is not assigned to that member: an id belongs to one membership only.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass

import msgspec

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.effects import AppendRecord, Effect, Respond
from consumer_offsets.groups.instance_record import InstanceRecord, InstanceValue
from logstore.errors import InstanceExistsError, LogStoreError, UnknownInstanceError
from logstore.limits import SHOWN_NAME_LENGTH_MAX
from logstore.records.offset_record import InstanceKey


@dataclass(frozen=True, slots=True)
class PutInstance:
    """Makes an instance (``id`` None), or changes or deletes (``value`` None) the one with ``id``. The response is
    None, InstanceExistsError or UnknownInstanceError.
    """

    request: int
    key: InstanceKey
    id: str | None
    value: InstanceValue | None


class InstanceTable:
    def __init__(self) -> None:
        self._instances: dict[InstanceKey, InstanceValue] = {}

    def __iter__(self) -> Iterator[InstanceKey]:
        return iter(list(self._instances))

    def get(self, key: InstanceKey) -> InstanceValue | None:
        return self._instances.get(key)

    def require(self, key: InstanceKey, id: str) -> InstanceValue:
        """Return the instance with that id. Raises UnknownInstanceError."""
        value = self._instances.get(key)
        if value is None or value.id != id:
            raise unknown_instance(key)
        return value

    def replay(self, key: InstanceKey, value: InstanceValue | None) -> None:
        """Apply a record of the log, in its order."""
        if value is None:
            self._instances.pop(key, None)
        else:
            self._instances[key] = value

    def put(self, event: PutInstance) -> Iterator[Effect]:
        """Yield the effects of the event."""
        error: LogStoreError | None = None
        if event.id is None:
            if event.key in self._instances:
                error = InstanceExistsError(
                    f"Group {event.key.group!r} has a consumer instance {event.key.instance!r}: choose another name, "
                    "or leave it out."
                )
        else:
            try:
                self.require(event.key, event.id)
            except UnknownInstanceError as unknown:
                error = unknown
        if error is None:
            self.replay(event.key, event.value)
            yield AppendRecord(InstanceRecord(event.key, event.value))
        yield Respond(event.request, error)

    def committed(self, key: InstanceKey, places: Container[TopicPartition]) -> Iterator[Effect]:
        """Drop the starts of ``places``, whose offsets the instance commits."""
        value = self._instances[key]
        kept = [start for start in value.starts if TopicPartition(start.topic, start.partition) not in places]
        if len(kept) < len(value.starts):
            changed = msgspec.structs.replace(value, starts=kept)
            self.replay(key, changed)
            yield AppendRecord(InstanceRecord(key, changed))


def unknown_instance(key: InstanceKey) -> UnknownInstanceError:
    group, instance = (name[:SHOWN_NAME_LENGTH_MAX] for name in (key.group, key.instance))
    return UnknownInstanceError(
        f"Consumer instance not found: group {group!r} has no {instance!r}. It was deleted, or not used for so long "
        "that it was removed (consumer.instance.timeout.ms): create it again."
    )
