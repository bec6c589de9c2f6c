"""The consumer's API: subscribe or assign, take records, commit.

Its parts are ``subscription_state`` (partitions and positions), ``offset_fetcher`` (where to begin), ``fetcher``
(threads that fetch ahead), ``fetch_collector`` (takes records out of the fetches), ``offset_committer`` (one thread
that commits) and ``group_member`` (one thread that speaks with the group). So ``poll`` keeps to its timeout even while
the store is away.

A consumer is for one thread. ``commit`` without offsets commits the positions; auto commit commits those of earlier
calls.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Never, Self

from logstore.client.addresses import DEFAULT_URL
from logstore.client.admin import Admin
from logstore.client.consumer.fetch_collector import FetchCollector
from logstore.client.consumer.fetcher import Fetcher
from logstore.client.consumer.group_member import GroupMember
from logstore.client.consumer.offset_committer import CommitCallback, OffsetCommitter, Offsets
from logstore.client.consumer.offset_fetcher import OffsetFetcher
from logstore.client.consumer.options import (
    DEFAULT_FETCH_MAX_BYTES,
    DEFAULT_MAX_PARTITION_FETCH_BYTES,
    AutoOffsetReset,
    ConsumerOptions,
    GroupProtocol,
)
from logstore.client.consumer.rebalance_listener import ConsumerRebalanceListener
from logstore.client.consumer.records import Deserializer, FetchedBatch, Record
from logstore.client.consumer.subscription_state import SubscriptionState, listed
from logstore.client.consumer.wakeup import Wakeup
from logstore.client.metadata import OffsetAndTimestamp, TopicPartition
from logstore.client.option_checks import refuse_unknown
from logstore.client.transport import Transport
from logstore.errors import InvalidRequestError, LogStoreError

# Seconds that the commit may take after the block of a consumer failed.
_LAST_COMMIT_SECONDS = 5.0


class Consumer:
    """Reads topics of one store. It is a context manager, which closes it. If its block fails or is interrupted, auto
    commit commits only the records that the program has finished, by asking for more.

    ``bootstrap`` is ``http(s)://host:port`` or ``host:port``, several separated by commas. Options have the names and,
    unless stated here, the defaults of Kafka's consumer:

    - ``group_id``: the group whose committed offsets the consumer begins at, and to which it commits. ``subscribe``
      makes it a member, and the members share the partitions.
    - ``group_protocol``: ``classic``, in which a member assigns, or ``consumer`` (KIP-848), in which the store does.
    - ``partition_assignment_strategy`` (classic): ``range``, ``roundrobin``, ``sticky``, ``cooperative-sticky``, or a
      list of these by preference; default ``["range", "cooperative-sticky"]``. ``group_remote_assignor`` (consumer):
      ``uniform`` or ``range``.
    - ``group_instance_id``: a name by which a member that comes back finds its partitions (static membership).
    - ``session_timeout_ms`` (45000), ``heartbeat_interval_ms`` (3000), both classic: the member is removed after this
      time without a heartbeat; how often it sends one. ``max_poll_interval_ms``: the member leaves the group after this
      time without a ``poll``.
    - ``auto_offset_reset``: where to begin without a committed offset, when a position is no longer in the log, or when
      the topic was deleted and created again: ``latest``, ``earliest``, or ``none`` for NoOffsetForPartitionError and
      OffsetOutOfRangeError.
    - ``enable_auto_commit`` (on if there is a group): commit positions every ``auto_commit_interval_ms``, and in
      ``close``.
    - ``key_deserializer``, ``value_deserializer``: functions from bytes to any object; not called for null.
    - ``fetch_min_bytes``, ``fetch_max_wait_ms``: how many bytes a response waits for at the end of the log, and for how
      long.
    - ``fetch_max_bytes`` (16 MiB): the size of one response; at most twice as much is held, plus a batch that is
      larger. ``max_partition_fetch_bytes`` (4 MiB): one partition's share of a response.
    - ``max_poll_records``: the default of ``poll`` and the stride of iteration.
    - ``consumer_timeout_ms``: iteration ends after this time without a record; None: never.
    - ``request_timeout_ms``: how long one response may take; ``default_api_timeout_ms``: how long the store may be away
      before that is an error.
    - ``metadata_max_age_ms``: how long new partitions of a subscribed topic may go unnoticed, and how old the known
      brokers and leaders may get.
    - ``where``: hand out only the records that this expression selects, such as ``'$.user == "ada"'``; the store
      evaluates it. Positions, and with a group committed offsets, pass over all others.

    Raises InvalidWhereError, InvalidGroupError, and InvalidConfigError naming an option that is wrong or unknown.
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
        group_instance_id: str | None = None,
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        partition_assignment_strategy: str | Sequence[str] | None = None,
        group_protocol: GroupProtocol = "classic",
        group_remote_assignor: str | None = None,
        where: str | None = None,
        ssl_cafile: str | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        ssl_password: str | None = None,
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
            group_instance_id=group_instance_id,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            partition_assignment_strategy=partition_assignment_strategy,
            group_protocol=group_protocol,
            group_remote_assignor=group_remote_assignor,
            where=where,
            ssl_cafile=ssl_cafile,
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            ssl_password=ssl_password,
        )
        self._options = options
        self._admin = Admin(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=default_api_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            ssl_cafile=ssl_cafile,
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            ssl_password=ssl_password,
        )
        self._metadata = self._admin.metadata
        transport = self._metadata.add(Transport(bootstrap, client_id=client_id, tls=options.tls))
        self._fetcher = Fetcher(transport, self._metadata, options)
        self._wakeup = Wakeup(self._fetcher.wake)
        self._state = SubscriptionState(self._fetcher, auto_offset_reset)
        self._member: GroupMember | None = None
        self._committer: OffsetCommitter | None = None
        if group_id is not None:
            transport = self._metadata.add(Transport(bootstrap, client_id=client_id, tls=options.tls))
            self._member = GroupMember(transport, self._metadata, self._state, options, self._fetcher.wake)
            self._committer = OffsetCommitter(
                self._admin, group_id, self._member, interval_s=options.auto_commit_interval_s
            )
        self._offset_fetcher = OffsetFetcher(self._admin, self._state, self._member, self._wakeup, options)
        self._collector = FetchCollector(
            self._fetcher, self._state, self._offset_fetcher, self._committer, self._member, self._wakeup, options
        )
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._close(failed=kind is not None)

    def close(self) -> None:
        """Commit the positions if auto commit is on, leave the group at once, and end.

        A static member stays in the group until its session ends. Raises the error of that commit, and what the
        rebalance listener raises.
        """
        self._close(failed=False)

    def _close(self, *, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._give_up(failed=failed)
        finally:
            self._metadata.close()
            self._fetcher.close()
            if failed:
                self._admin.close()
            if self._committer is not None:
                self._committer.close(cancel=failed)
            if self._member is not None:
                self._member.leave()
                self._member.close()
            self._admin.close()
            self._offset_fetcher.close()

    def _give_up(self, *, failed: bool) -> None:
        """Auto-commit the positions, and notify the rebalance listener that all partitions are given up.

        If the block of a ``with`` failed, records that it had in hand may not be processed, so they are not committed.
        The block's error is raised on, and does not wait any longer for a store that is away.
        """
        try:
            if self._committer is None or not self._committer.automatic:
                return
            if failed:
                with contextlib.suppress(LogStoreError, TimeoutError):
                    done = self._collector.done_positions()
                    self._committer.commit_automatically(*done).result(_LAST_COMMIT_SECONDS)
            else:
                self._committer.commit_automatically(*self._state.positions()).result()
        finally:
            if self._member is not None:
                self._member.give_up()

    def _leave_group(self) -> None:
        if self._member is not None and self._member.is_member:
            try:
                self._give_up(failed=False)
            finally:
                self._member.leave()

    def wakeup(self) -> None:
        """Make the ``poll`` that waits now, or else the next one, raise WakeupError. Any thread may call it."""
        self._wakeup.ask()

    # ---- the partitions to read -------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Read ``topics``, or those whose whole name matches a compiled pattern, and no others.

        Topics and partitions that are added later are also read, such partitions from their first record. With a
        ``group_id`` the consumer becomes a member of the group, which gives it its share of the partitions in ``poll``
        and notifies ``listener``. Without one it reads all partitions. The next ``poll`` creates a listed topic that
        does not exist, if the store creates topics; else it raises UnknownTopicError. Raises InvalidRequestError.
        """
        if isinstance(topics, str):
            raise InvalidRequestError(
                f"subscribe takes a list of topics: [{topics!r}]; or a pattern: re.compile({topics!r})."
            )
        if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
            raise InvalidRequestError(f"{listener!r} is no listener: derive it from ConsumerRebalanceListener.")
        if listener is not None and self._member is None:
            raise InvalidRequestError("A listener needs a group, of which this consumer is a member: give group_id.")
        pattern = _checked(topics) if isinstance(topics, re.Pattern) else None
        names = frozenset() if isinstance(topics, re.Pattern) else frozenset(topics)
        if self._member is not None and (names or pattern):
            if not self._member.is_member:
                self._state.assign(set())
            self._member.subscribe(None if pattern else names, None if pattern is None else pattern.pattern, listener)
            self._state.subscribe_as_member(names, pattern)
        else:
            self._leave_group()
            if pattern is None:
                self._state.subscribe(names)
            else:
                self._state.subscribe_pattern(pattern)
        self._offset_fetcher.begin_anew()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, and no others. Partitions that are read already keep their positions.

        This needs no membership: a member leaves its group, and commits are accepted while the group has no members.
        """
        assigned = set(listed(partitions))
        self._leave_group()
        self._state.assign(assigned)
        self._offset_fetcher.begin_anew()

    def unsubscribe(self) -> None:
        """Read nothing. A member leaves its group, as in ``close``."""
        self.assign(())

    def subscription(self) -> frozenset[str]:
        """Return the topics that are subscribed to."""
        return self._state.topics or frozenset()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read; those of a subscription are known after a ``poll``."""
        return frozenset(self._state.assignment)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of these partitions until ``resume``."""
        self._state.pause(self._state.require_assigned(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue where these partitions were paused."""
        self._state.resume(self._state.require_assigned(partitions))

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._state.paused)

    # ---- records ----------------------------------------------------------------------------------------------------

    def poll(self, max_records: int | None = None, timeout_s: float = 1.0) -> list[Record]:
        """Return the next records, at most ``max_records`` (``max_poll_records``); those of one partition by rising
        offset.

        Waits up to ``timeout_s`` seconds for the first; empty if none came. Raises, after the records before it:
        RecordDeserializationError (the position stays at that record), OffsetOutOfRangeError and
        NoOffsetForPartitionError (``auto_offset_reset="none"``), UnknownTopicError and UnknownPartitionError (it does
        not exist, or was deleted), StoreUnreachableError, NetworkError and RequestTimedOutError (the store was away for
        ``default_api_timeout_ms``), InvalidRequestError (nothing to read), and the error of a failed auto commit.
        WakeupError after ``wakeup``. For a member also FencedInstanceIdError (another consumer has its
        ``group_instance_id``), InconsistentGroupProtocolError, GroupMaxSizeReachedError, InvalidSessionTimeoutError,
        UnreleasedInstanceIdError, InvalidRegularExpressionError, and what the rebalance listener raises.
        """
        _check_max_records(max_records)
        return self._collector.records(
            self._options.max_poll_records if max_records is None else max_records, timeout_s
        )

    def poll_arrow(self, max_records: int | None = None, timeout_s: float = 1.0) -> FetchedBatch | None:
        """Return the next records of one partition as columns: one contiguous batch, at most ``max_records``.

        Returns None if none came within ``timeout_s`` seconds. Raises as ``poll``; deserializers are not applied.
        """
        _check_max_records(max_records)
        return self._collector.batch(max_records, timeout_s)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records for ever, or until none came for ``consumer_timeout_ms``. Raises as ``poll``.

        The position follows each record: ``commit`` in the loop covers the records seen so far, including the current
        one.
        """
        return iter(self._collector)

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to hand out. Asks the store for the position if it is not known yet."""
        (assigned,) = self._state.require_assigned((partition,))
        if not self._state.begins_somewhere(assigned):
            self._offset_fetcher.place_unplaced()
        return self._state.position(assigned)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue from ``offset`` in the topic that is read.

        An offset outside the log, or a topic that was created again, is noticed on reading: see ``auto_offset_reset``.
        """
        if offset < 0:
            raise InvalidRequestError(f"Offset {offset} is negative: offsets begin at 0.")
        (assigned,) = self._state.require_assigned((partition,))
        self._state.seek(assigned, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue from the first record of these partitions, or of all that are assigned."""
        self._offset_fetcher.place(self._state.require_assigned(partitions), lambda at: at.log_start_offset)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue with records that come from now on in these partitions, or in all that are assigned."""
        self._offset_fetcher.place(self._state.require_assigned(partitions), lambda at: at.high_watermark)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each. Raises UnknownTopicError, UnknownPartitionError."""
        return {p: found.log_start_offset for p, found in self._offset_fetcher.describe(partitions).items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last record (high watermark) of each. Raises as ``beginning_offsets``."""
        return {p: found.high_watermark for p, found in self._offset_fetcher.describe(partitions).items()}

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each partition at or after a time (ms since 1970 UTC), or None if there is none.

        Raises UnknownTopicError, UnknownPartitionError.
        """
        if not isinstance(timestamps_ms, Mapping):
            raise InvalidRequestError(
                f"{timestamps_ms!r}: pass a time for each partition, as {{TopicPartition('orders', 0): 1735689600000}}."
            )
        listed(timestamps_ms)
        return self._admin.offsets_for_times(timestamps_ms)

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of ``topic``. Raises UnknownTopicError, unless the store creates topics."""
        found = self._admin.find_partitions([topic], may_create=True)[topic]
        return [TopicPartition(topic, partition) for partition in range(found.count)]

    # ---- the group's offsets ----------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the group's committed offset of each partition: the next one to read, or None if there is none."""
        asked = listed(partitions)
        committed = self._offset_fetcher.committed()
        return {partition: committed.get(partition) for partition in asked}

    def commit(self, offsets: Offsets | None = None, *, metadata: str = "") -> None:
        """Commit ``offsets`` (the next ones to read), or the positions, all or none; return when that is durable.

        ``metadata`` is a text for the program's use. Raises UnknownTopicError, UnknownTopicIdError (a topic that is
        read was created again: the next ``poll`` begins again in it), UnknownPartitionError, OffsetOutOfRangeError
        (beyond the end), CommitFailedError (the group has given some of the partitions to others),
        FencedInstanceIdError, InvalidRequestError (no group), and as ``poll`` when the store is away.
        """
        self.commit_async(offsets, metadata=metadata).result()

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None, *, metadata: str = ""
    ) -> "Future[None]":
        """Commit as ``commit`` does, without waiting. Another thread calls ``callback(offsets, error or None)``.

        Commits of a consumer are carried out in the order of the calls.
        """
        if self._committer is None:
            raise InvalidRequestError("Committing needs a group: give group_id.")
        if offsets is None:
            positions, topic_ids = self._state.positions()
            self._collector.committed(positions)
            return self._committer.commit(positions, topic_ids, metadata, callback)
        self._collector.committed(offsets)
        return self._committer.commit(offsets, self._state.topics_meant(offsets), metadata, callback)


def _checked(pattern: re.Pattern[str]) -> re.Pattern[str]:
    if not isinstance(pattern.pattern, str):
        raise InvalidRequestError(f"{pattern!r} is of bytes: names of topics are text.")
    if re.compile(pattern.pattern).flags != pattern.flags:
        raise InvalidRequestError(f"{pattern!r}: write its flags into the pattern, as '(?i)orders.*'.")
    return pattern


def _check_max_records(max_records: object) -> None:
    if max_records is not None and (type(max_records) is not int or max_records < 1):
        raise InvalidRequestError(
            f"max_records = {max_records!r}: give a whole number from 1. Seconds to wait are timeout_s={max_records!r}."
        )
