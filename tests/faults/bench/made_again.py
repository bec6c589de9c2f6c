"""A topic that is deleted and created again under consumers that have positions in it, and under a producer.

One consumer reads, one is paused, two are members of their groups, of either protocol. The topic is in no history,
because the checker knows a log by its name. So its guarantees are checked here: the new topic holds the records
acknowledged for it, from offset 0 on; each consumer, by ``auto_offset_reset``, reads those and nothing else; no
position in the old topic is committed to the new one.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from logstore import Consumer, Producer, TopicPartition
from logstore.client.admin import Admin
from logstore.errors import LogStoreError

_PATIENCE_S = 60.0
#: The consumers' positions lie within the new topic.
_OLD, _NEW = 20, 50


@dataclass(slots=True)
class _Reader:
    consumer: Consumer
    group: str
    paused: bool
    read: list[bytes] = field(default_factory=list)


class MadeAgain:
    """The topic: ``with MadeAgain(url, name) as topic`` creates it and reads it to its end.

    ``make_again`` and ``contradictions`` come after that. Raises LogStoreError of the producer.
    """

    def __init__(self, url: str, name: str) -> None:
        self._log = TopicPartition(name, 0)
        self._admin = Admin(url)
        self._producer = Producer(url)
        self._readers = [self._reader(url, how) for how in ("reading", "paused", "classic", "consumer")]

    def __enter__(self) -> Self:
        self._create()
        self._produce("old", _OLD)
        for reader in self._readers:
            self._read(reader, _OLD)
            reader.read.clear()
            reader.consumer.commit()
            if reader.paused:
                reader.consumer.pause([self._log])
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.consumer.close()
        self._producer.close(0)
        with contextlib.suppress(LogStoreError):
            self._admin.delete_topic(self._log.topic)
        self._admin.close()

    def make_again(self) -> None:
        self._admin.delete_topic(self._log.topic)
        self._create()
        self._produce("new", _NEW)

    def contradictions(self) -> Iterator[str]:
        for reader in self._readers:
            if before := self._committed(reader.group):
                yield f"{reader.group} has committed {before} in a topic of which it has read nothing"
            if reader.paused:
                # The commit is refused, or there is nothing to commit: the position is the old topic's.
                with contextlib.suppress(LogStoreError):
                    reader.consumer.commit()
                if old := self._committed(reader.group):
                    yield f"{reader.group} commits its old position, {old}, to the new topic"
                reader.consumer.resume([self._log])
            self._read(reader, _NEW)
            if reader.read != list(_values("new", _NEW)):
                yield f"{reader.group} reads {_shown(reader.read)} where a new topic has {_NEW} records"
                continue
            for _ in self._tries():
                with contextlib.suppress(LogStoreError):
                    reader.consumer.commit()
                    break
            if (now := self._committed(reader.group)) != _NEW:
                yield f"{reader.group} has read {_NEW} records of the new topic, and has committed {now}"

    def _reader(self, url: str, how: str) -> _Reader:
        group = f"{self._log.topic}-{how}"
        options: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        if how in ("reading", "paused"):
            consumer = Consumer(url, **options)
            consumer.assign([self._log])
        else:
            consumer = Consumer(url, **options, group_protocol=how, metadata_max_age_ms=1_000)
            consumer.subscribe([self._log.topic])
        return _Reader(consumer, group, how == "paused")

    def _create(self) -> None:
        self._admin.create_topic(self._log.topic, partitions=1, configs={"segment.ms": "300"})

    def _produce(self, what: str, count: int) -> None:
        """Produce in several requests, so that they carry sequences that the old topic has seen."""
        for value in _values(what, count):
            self._producer.send(self._log.topic, value, partition=0)
            if value.endswith(b"0"):
                self._producer.flush()
        self._producer.flush()

    def _read(self, reader: _Reader, count: int) -> None:
        for _ in self._tries():
            # The client reports a topic or store that is away for a moment.
            with contextlib.suppress(LogStoreError):
                reader.read += [record.value for record in reader.consumer.poll(timeout_s=0.2)]
            if len(reader.read) >= count:
                return

    def _committed(self, group: str) -> int:
        """Return the committed offset, 0 if there is none."""
        for _ in self._tries():
            with contextlib.suppress(LogStoreError):
                if group not in self._admin.groups():
                    return 0
                return max((found.offset for found in self._admin.group_offsets(group)), default=0)
        return 0

    @staticmethod
    def _tries() -> Iterator[None]:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            yield
            time.sleep(0.02)


def _values(what: str, count: int) -> Iterator[bytes]:
    return (f"{what} {n}".encode() for n in range(count))


def _shown(values: list[bytes]) -> str:
    return f"{len(values)} records, first {values[:1]}, last {values[-1:]}"
