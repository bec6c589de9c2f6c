"""The consumer's API: subscribe or assign, take records, commit.

The parts behind it: ``subscription_state`` (partitions and positions), ``offset_fetcher`` (where to begin),
``fetcher`` (one thread that fetches ahead), ``fetch_collector`` (records out of that) and ``offset_committer`` (one
thread that commits). So ``poll`` keeps to its time also while the store is away.

A consumer is for one thread. ``commit`` without offsets commits the positions; auto commit those of earlier calls.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import NamedTuple, Never, Self

from logstore.client.addresses import DEFAULT_URL
from logstore.client.admin import Admin
from logstore.client.consumer.fetch_collector import FetchCollector
from logstore.client.consumer.fetcher import Fetcher
from logstore.client.consumer.offset_committer import CommitCallback, OffsetCommitter, Offsets
from logstore.client.consumer.offset_fetcher import OffsetFetcher
from logstore.client.consumer.options import (
    DEFAULT_FETCH_MAX_BYTES,
    DEFAULT_MAX_PARTITION_FETCH_BYTES,
    AutoOffsetReset,
    ConsumerOptions,
)
from logstore.client.consumer.records import Deserializer, FetchedBatch, Record
from logstore.client.consumer.subscription_state import SubscriptionState, listed
from logstore.client.metadata import TopicPartition
from logstore.client.option_checks import refuse_unknown
from logstore.client.transport import Transport
from logstore.errors import InvalidRequestError


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time: its offset, and its own timestamp."""

    offset: int
    timestamp_ms: int


class Consumer:
    """Reads topics of one store. A context manager, which closes it.

    ``bootstrap`` is ``http(s)://host:port`` or ``host:port``, several separated by commas. Options have the names and,
    where none is said, the defaults of Kafka's consumer:

    - ``group_id``: the group whose committed offsets the consumer begins at, and to which it commits. Partitions are
      not divided among the consumers of a group: each reads all that it subscribes to, or is assigned.
    - ``auto_offset_reset``: where to begin without a committed offset, when a position is no longer in the log, or when
      the topic was deleted and made again: ``latest``, ``earliest``, or ``none`` for NoOffsetForPartitionError and
      OffsetOutOfRangeError.
    - ``enable_auto_commit`` (with a group: on): commit positions every ``auto_commit_interval_ms``, and in ``close``.
    - ``key_deserializer``, ``value_deserializer``: from bytes to anything; not called for null.
    - ``fetch_min_bytes``, ``fetch_max_wait_ms``: how many bytes an answer waits for, and how long, at the
      end of the log.
    - ``fetch_max_bytes`` (16 MiB): of one answer; twice as much is held at most, beside a batch that is larger.
      ``max_partition_fetch_bytes`` (4 MiB): of one partition in an answer.
    - ``max_poll_records``: the default of ``poll`` and the stride of iteration.
    - ``consumer_timeout_ms``: iteration ends after so long without a record; None: never.
    - ``request_timeout_ms``: how long one answer may take; ``default_api_timeout_ms``: how long a store that is away is
      waited for before that is an error.
    - ``metadata_max_age_ms``: how long new partitions of a topic that is subscribed to may go unnoticed.

    Raises InvalidConfigError naming an option that is wrong or that there is not, InvalidGroupError.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_URL,
        *,
        group_id: str | None = None,
        client_id: str | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        auto_offset_reset: AutoOffsetReset = "latest",
        enable_auto_commit: bool | None = None,
        auto_commit_interval_ms: int = 5_000,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = DEFAULT_FETCH_MAX_BYTES,
        max_partition_fetch_bytes: int = DEFAULT_MAX_PARTITION_FETCH_BYTES,
        max_poll_records: int = 500,
        consumer_timeout_ms: int | None = None,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        metadata_max_age_ms: int = 300_000,
        **unknown: Never,
    ) -> None:
        refuse_unknown("consumer", ConsumerOptions, unknown)
        options = ConsumerOptions(
            group_id=group_id,
            client_id=client_id,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            max_poll_records=max_poll_records,
            consumer_timeout_ms=consumer_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=default_api_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
        )
        self._options = options
        self._admin = Admin(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=default_api_timeout_ms,
        )
        self._committer: OffsetCommitter | None = None
        if group_id is not None:
            self._committer = OffsetCommitter(self._admin, group_id, interval_s=options.auto_commit_interval_s)
        self._fetcher = Fetcher(Transport(bootstrap, client_id=client_id), options)
        self._state = SubscriptionState(self._fetcher, auto_offset_reset)
        self._offset_fetcher = OffsetFetcher(self._admin, self._state, options)
        self._collector = FetchCollector(self._fetcher, self._state, self._offset_fetcher, self._committer, options)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        # If the block failed, the records handed out last may not be processed: do not commit them.
        self._close(commit=kind is None)

    def close(self) -> None:
        """With auto commit, commit the positions; then end. Raises the error of that commit."""
        self._close(commit=True)

    def _close(self, *, commit: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if commit and self._committer is not None and self._committer.automatic:
                self._committer.commit_automatically(*self._state.positions()).result()
        finally:
            self._fetcher.close()
            if not commit:
                self._admin.close()
            if self._committer is not None:
                self._committer.close(cancel=not commit)
            self._admin.close()
            self._offset_fetcher.close()

    # ---- the partitions to read -------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read all partitions of ``topics``, and no others; also those that are added later, from their first record.

        A topic that is not there is UnknownTopicError from the next ``poll``.
        """
        if isinstance(topics, str):
            raise InvalidRequestError(f"subscribe takes a list of topics: [{topics!r}].")
        self._state.subscribe(frozenset(topics))
        self._offset_fetcher.begin_anew()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, and no others. Partitions that are read already keep their positions."""
        self._state.assign(set(listed(partitions)))
        self._offset_fetcher.begin_anew()

    def unsubscribe(self) -> None:
        """Read nothing."""
        self.assign(())

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to."""
        return self._state.topics or frozenset()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read; those of a subscription are known from the first ``poll`` on."""
        return frozenset(self._state.assignment)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of these partitions until ``resume``."""
        self._state.pause(self._state.require_assigned(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on where these partitions were paused."""
        self._state.resume(self._state.require_assigned(partitions))

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._state.paused)

    # ---- records ----------------------------------------------------------------------------------------------------

    def poll(self, max_records: int | None = None, timeout_s: float = 1.0) -> list[Record]:
        """The next records, at most ``max_records`` (``max_poll_records``); those of one partition by rising offset.

        Waits up to ``timeout_s`` seconds for the first; empty if none came. Raises, after the records before it:
        RecordDeserializationError (the position stays at that record), OffsetOutOfRangeError and
        NoOffsetForPartitionError (``auto_offset_reset="none"``), UnknownTopicError and UnknownPartitionError (there is
        none, or it was deleted), StoreUnreachableError, NetworkError and RequestTimedOutError (the store was away for
        ``default_api_timeout_ms``), InvalidRequestError (nothing to read), and why positions could not be committed.
        """
        _check_max_records(max_records)
        return self._collector.records(
            self._options.max_poll_records if max_records is None else max_records, timeout_s
        )

    def poll_arrow(self, max_records: int | None = None, timeout_s: float = 1.0) -> FetchedBatch | None:
        """The next records of one partition as columns: what there is in one piece, at most ``max_records``.

        None if none came within ``timeout_s`` seconds. Raises as ``poll``; deserializers are not applied.
        """
        _check_max_records(max_records)
        return self._collector.batch(max_records, timeout_s)

    def __iter__(self) -> Iterator[Record]:
        """Record by record, for ever or until none came for ``consumer_timeout_ms``. Raises as ``poll``.

        The position follows each record: ``commit`` in the loop counts those that were seen so far, this one too.
        """
        return iter(self._collector)

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out. Asks the store where to begin if that is not known yet."""
        (assigned,) = self._state.require_assigned((partition,))
        if not self._state.begins_somewhere(assigned):
            self._offset_fetcher.place_unplaced()
        return self._state.position(assigned)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on from ``offset`` in the topic that is read. An offset outside the log, or a topic that was made again,
        is noticed when it is read: see ``auto_offset_reset``.
        """
        if offset < 0:
            raise InvalidRequestError(f"Offset {offset} is negative: offsets begin at 0.")
        (assigned,) = self._state.require_assigned((partition,))
        self._state.seek(assigned, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the first record of these partitions, or of all that are assigned."""
        self._offset_fetcher.place(self._state.require_assigned(partitions), lambda at: at.log_start_offset)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on with records that come from now on in these partitions, or in all that are assigned."""
        self._offset_fetcher.place(self._state.require_assigned(partitions), lambda at: at.high_watermark)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record of each; UnknownTopicError, UnknownPartitionError."""
        return {p: found.log_start_offset for p, found in self._offset_fetcher.describe(partitions).items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record of each (the high watermark); UnknownTopicError, UnknownPartitionError."""
        return {p: found.high_watermark for p, found in self._offset_fetcher.describe(partitions).items()}

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time (ms since 1970 UTC); None where there is none.

        Raises UnknownTopicError, UnknownPartitionError.
        """
        if not isinstance(timestamps_ms, Mapping):
            raise InvalidRequestError(
                f"{timestamps_ms!r}: pass a time for each partition, as {{TopicPartition('orders', 0): 1735689600000}}."
            )
        listed(timestamps_ms)
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition, timestamp_ms in timestamps_ms.items():
            at = self._admin.offsets(*partition, timestamp_ms=timestamp_ms)
            known = at.offset is not None and at.timestamp is not None
            found[partition] = OffsetAndTimestamp(at.offset, at.timestamp) if known else None  # type: ignore[arg-type]
        return found

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """All partitions of ``topic``, to be given to ``assign``; UnknownTopicError."""
        return [TopicPartition(topic, found.partition) for found in self._admin.describe_topic(topic).partitions]

    # ---- the group's offsets ----------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The group's committed offset of each partition: the next one to read; None without one."""
        asked = listed(partitions)
        committed = self._offset_fetcher.committed()
        return {partition: committed.get(partition) for partition in asked}

    def commit(self, offsets: Offsets | None = None, *, metadata: str = "") -> None:
        """Commit ``offsets`` (the next ones to read), or the positions; returns when that is durable.

        All or none. ``metadata`` is a text of the program's own. Raises UnknownTopicError, UnknownTopicIdError (a topic
        that is read was made again: the next ``poll`` begins anew in it), UnknownPartitionError, OffsetOutOfRangeError
        (beyond the end), InvalidRequestError (no group), and as ``poll`` when the store is away.
        """
        self.commit_async(offsets, metadata=metadata).result()

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None, *, metadata: str = ""
    ) -> "Future[None]":
        """As ``commit``, without waiting. ``callback(offsets, error or None)`` is called from another thread.

        Commits of a consumer are carried out in the order of the calls.
        """
        if self._committer is None:
            raise InvalidRequestError("Committing needs a group: give group_id.")
        if offsets is None:
            return self._committer.commit(*self._state.positions(), metadata, callback)
        return self._committer.commit(offsets, self._state.topics_meant(offsets), metadata, callback)


def _check_max_records(max_records: object) -> None:
    if max_records is not None and (type(max_records) is not int or max_records < 1):
        raise InvalidRequestError(
            f"max_records = {max_records!r}: give a whole number from 1. Seconds to wait are timeout_s={max_records!r}."
        )
