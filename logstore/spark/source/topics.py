"""The current state of the topics that a read subscribes to: their ids, and the offsets of their partitions.

It comes from a running store over HTTP; with the option ``storage`` from the tables, which have sealed records only.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from logstore.client.admin import Admin
from logstore.errors import (
    LogStoreError,
    NetworkError,
    RequestTimedOutError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.names import is_internal
from logstore.protocol.messages.topics import Partition
from logstore.spark.offset_ranges import LogBounds
from logstore.spark.option_checks import HTTP_PORT
from logstore.spark.source.options import ReadOptions, TopicPartition
from logstore.spark.topic_view import storage_root, view_of_storage

#: A working store responds in less, so short timeouts in the options do not matter.
_REQUEST_MS_MIN = 1_000


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic with the partitions that are read. Their ends depend on ``isolation``."""

    topic: str
    topic_id: str
    bounds: tuple[LogBounds, ...]


class SourceTopics:
    """Looks up the topics of ``options.subscription``. Not safe from several threads."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._admin: Admin | None = None

    def look(self, *, missing_ok: bool = False) -> list[SourceTopic]:
        """Return the current topics, by name; with ``missing_ok`` without those that are missing.

        Raises UnknownTopicError for a named topic that is missing, UnknownPartitionError for an assigned partition that
        is missing, DataDirectoryError for a missing data root; a pattern may match nothing. A store that does not
        respond is asked again for ``retry_seconds``, then raises StoreUnreachableError, NetworkError or
        RequestTimedOutError.
        """
        wanted = self._options.subscription
        found = []
        for topic in self._names():
            try:
                found.append(self._topic(topic))
            except UnknownTopicError:
                # A topic that matched a pattern can be deleted before it is looked up.
                if not wanted.pattern and not missing_ok:
                    raise
        return found

    def offsets_of_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return by partition the first offset at or after a time (ms), None if there is none. Raises as ``look``."""
        if self._options.storage:
            return self._offsets_in_storage(times_ms)
        with _naming_the_port():
            found = self._store().offsets_for_times(times_ms)
        return {place: None if at is None else at.offset for place, at in found.items()}

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    # ---- the names ----------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        wanted = self._options.subscription
        if not wanted.pattern:
            return sorted(wanted.topics or wanted.assigned or ())
        matches = re.compile(wanted.pattern).fullmatch
        return [name for name in self._all_names() if matches(name)]

    def _all_names(self) -> list[str]:
        """Return all names but those of internal topics, like Kafka's ``exclude.internal.topics``."""
        if self._options.storage:
            tables = storage_root(self._options.storage).tables()
            return [name for name in tables if not is_internal(name)]
        with _naming_the_port():
            return [topic.topic_name for topic in self._store().topics()]

    # ---- one topic ----------------------------------------------------------------------------------------------

    def _topic(self, topic: str) -> SourceTopic:
        if self._options.storage:
            view = view_of_storage(self._options.storage, topic)
            return SourceTopic(topic, view.topic_id, self._wanted(topic, view.bounds))
        assigned = self._options.subscription.assigned
        with _naming_the_port():
            described = self._store().describe_by_leaders(topic, None if assigned is None else assigned[topic])
        bounds = tuple(LogBounds(p.partition, p.log_start_offset, self._end(p)) for p in described.partitions)
        return SourceTopic(topic, described.topic_id, self._wanted(topic, bounds))

    def _end(self, partition: Partition) -> int:
        is_committed = self._options.isolation == "read_committed"
        end = partition.last_stable_offset if is_committed else partition.high_watermark
        return max(end, partition.log_start_offset)

    def _wanted(self, topic: str, bounds: tuple[LogBounds, ...]) -> tuple[LogBounds, ...]:
        assigned = self._options.subscription.assigned
        if assigned is None:
            return bounds
        if missing := sorted(set(assigned[topic]) - {has.partition for has in bounds}):
            raise UnknownPartitionError(
                f"option assign: topic {topic} has no partition {', '.join(map(str, missing))}; it has {len(bounds)} "
                "partitions, from 0"
            )
        return tuple(has for has in bounds if has.partition in assigned[topic])

    def _offsets_in_storage(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for topic in {topic for topic, _ in times_ms}:
            times = {partition: time_ms for (name, partition), time_ms in times_ms.items() if name == topic}
            offsets = view_of_storage(self._options.storage, topic).offsets_of_times(times)
            found |= {(topic, partition): offset for partition, offset in offsets.items()}
        return found

    # ---- the store ----------------------------------------------------------------------------------------------

    def _store(self) -> Admin:
        if self._admin is None:
            self._admin = connect_store(self._options)
        return self._admin


def connect_store(options: ReadOptions) -> Admin:
    """Connect to the store of ``options.bootstrap``; retries last for ``options.retry_seconds``."""
    wait_ms = round(1000 * options.retry_seconds)
    return Admin(
        options.bootstrap,
        client_id=options.client_id,
        request_timeout_ms=max(wait_ms, _REQUEST_MS_MIN),
        default_api_timeout_ms=wait_ms,
    )


@contextlib.contextmanager
def _naming_the_port() -> Iterator[None]:
    """Add a hint to errors for users who give the port of a Kafka broker out of habit."""
    try:
        yield
    except LogStoreError as error:
        # A response that is not a store's raises LogStoreError itself, and none of its subclasses.
        if isinstance(error, (NetworkError, RequestTimedOutError)) or type(error) is LogStoreError:
            raise type(error)(f"{error.message}. {HTTP_PORT}") from None
        raise
