"""Read topics: partitions, positions in them, and the offsets of a group, over records that were fetched ahead.

Invariants:

- A partition's position is the offset after the last record that was handed out, or where it was put; what is committed
  without saying what is the position.
- What is committed by itself is the position of *earlier* calls: a record that was handed out counts as done when the
  program comes back for more, or closes the consumer, not before.
- A position is one in a certain topic, not in whichever has the name: fetches and commits say which. Once a topic is
  found to have been made again, nothing that was fetched of the one before is handed out, and its partitions begin
  anew where the group is in the new one, else as ``auto_offset_reset`` says. Paused ones stay paused.

One thread fetches (``prefetcher``), one commits (``offset_committer``), one finds partitions and where to begin: so
``poll`` keeps to its time also while the store is away. The consumer itself is not for several threads.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, NamedTuple, Never, Self

from logstore.client.addresses import DEFAULT_URL
from logstore.client.admin import Admin
from logstore.client.consumer.fetcher import Prefetched, Prefetcher
from logstore.client.consumer.offset_committer import CommitCallback, OffsetCommitter, Offsets
from logstore.client.consumer.options import (
    DEFAULT_FETCH_MAX_BYTES,
    DEFAULT_MAX_PARTITION_FETCH_BYTES,
    AutoOffsetReset,
    ConsumerOptions,
)
from logstore.client.consumer.records import Deserializer, FetchedBatch, Record
from logstore.client.metadata import PartitionDescription, TopicDescription, TopicPartition
from logstore.client.option_checks import refuse_unknown
from logstore.client.transport import Transport
from logstore.errors import (
    InvalidRequestError,
    NoOffsetForPartitionError,
    UnknownGroupError,
    UnknownPartitionError,
)

_WAIT_SECONDS_MAX = 60.0


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time: its offset, and its own timestamp."""

    offset: int
    timestamp_ms: int


class Consumer:
    """Reads topics of one store. A context manager, which closes it.

    ``bootstrap`` is ``http(s)://host:port`` or ``host:port``, several separated by commas. Options have the names and,
    where none is said, the defaults of Kafka's consumer:

    - ``group_id``: whose committed offsets are gone on from, and where ``commit`` puts them. Partitions are not divided
      among the consumers of a group: each reads what it was told to.
    - ``auto_offset_reset``: where to begin without a committed offset, when a position is no longer in the log, or when
      the topic was deleted and made again: ``latest``, ``earliest``, or ``none`` for NoOffsetForPartitionError and
      OffsetOutOfRangeError.
    - ``enable_auto_commit`` (with a group: on): commit positions every ``auto_commit_interval_ms``, and in ``close``.
    - ``key_deserializer``, ``value_deserializer``: from bytes to anything; null is not given to them.
    - ``fetch_min_bytes``, ``fetch_max_wait_ms``: what an answer at the end of the log waits for, and how long.
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
        self._prefetcher = Prefetcher(Transport(bootstrap, client_id=client_id), options)
        self._committer: OffsetCommitter | None = None
        if group_id is not None:
            self._committer = OffsetCommitter(self._admin, group_id, interval_s=options.auto_commit_interval_s)
        # However long a wait is, what is done has to be committed meanwhile.
        self._wait_s = max(0.1, min(_WAIT_SECONDS_MAX, auto_commit_interval_ms / 1000))
        self._subscription: frozenset[str] | None = None
        self._refresh_at = math.inf
        self._assignment: set[TopicPartition] = set()
        # Assigned, and not yet known where to begin, or in which topic: at an offset; else where the group was, else as
        # this says.
        self._unplaced: dict[TopicPartition, int | AutoOffsetReset] = {}
        # What was asked of the store and is to be applied here, when it has come.
        self._lookup: Future[Callable[[], None]] | None = None
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="logstore-lookup")
        # Of the others. While rows of a batch are handed out it is the position before that batch.
        self._positions: dict[TopicPartition, int] = {}
        # By name, the topics that these positions are in.
        self._topic_ids: dict[str, str] = {}
        # Of partitions that began anew, with nothing handed out since: the topic that was read before.
        self._read_before: dict[TopicPartition, str] = {}
        self._paused: set[TopicPartition] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        # What was handed out last may not be done when the block failed.
        self._close(commit=kind is None)

    def close(self) -> None:
        """With auto commit, commit the positions; then end. Raises why that could not be committed."""
        self._close(commit=True)

    def _close(self, *, commit: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if commit and self._committer is not None and self._committer.automatic:
                self._committer.commit_automatically(*self._known_positions()).result()
        finally:
            self._prefetcher.close()
            if not commit:
                self._admin.close()
            if self._committer is not None:
                self._committer.close(cancel=not commit)
            self._admin.close()
            self._lookups.shutdown(cancel_futures=True)

    # ---- what to read -----------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read all partitions of ``topics``, and no others; also those that are added later, from their first record.

        A topic that is not there is UnknownTopicError from the next ``poll``.
        """
        if isinstance(topics, str):
            raise InvalidRequestError(f"subscribe takes a list of topics: [{topics!r}].")
        self._subscription = frozenset(topics)
        self._refresh_at, self._lookup = 0.0, None
        self._keep({partition for partition in self._assignment if partition.topic in self._subscription})

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, and no others. Those that are read already go on where they are."""
        chosen = set(_listed(partitions))
        self._subscription, self._refresh_at, self._lookup = None, math.inf, None
        self._keep(chosen)
        self._unplaced |= dict.fromkeys(chosen - self._assignment, self._options.auto_offset_reset)
        self._assignment |= chosen

    def unsubscribe(self) -> None:
        """Read nothing."""
        self.assign(())

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to."""
        return self._subscription or frozenset()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read; those of a subscription are known from the first ``poll`` on."""
        return frozenset(self._assignment)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of these partitions until ``resume``."""
        pausing = self._assigned(partitions)
        for partition in pausing & self._positions.keys():
            self._positions[partition] = self._handed_out(partition)
        self._paused |= pausing
        self._prefetcher.stop_reading(pausing)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on where these partitions were paused."""
        resuming = self._assigned(partitions) & self._paused
        self._paused -= resuming
        self._read_on(resuming & self._positions.keys())

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused)

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
        wanted = self._options.max_poll_records if max_records is None else max_records
        records: list[Record] = []
        head = self._next(timeout_s)
        while head is not None and head.batch is not None and len(records) < wanted:
            rows = head.batch.slice(head.row, head.row + wanted - len(records))
            found, error = rows.deserialized(self._options.key_deserializer, self._options.value_deserializer)
            records += found
            self._advance(head, len(found))
            if error is not None:
                if records:
                    break
                raise error
            head = self._prefetcher.begun()
        return records

    def poll_arrow(self, max_records: int | None = None, timeout_s: float = 1.0) -> FetchedBatch | None:
        """The next records of one partition as columns: what there is in one piece, at most ``max_records``.

        None if none came within ``timeout_s`` seconds. Raises as ``poll``; deserializers are not applied.
        """
        _check_max_records(max_records)
        head = self._next(timeout_s)
        if head is None or head.batch is None:
            return None
        end = len(head.batch) if max_records is None else head.row + max_records
        batch = head.batch.slice(head.row, end)
        self._advance(head, len(batch))
        return batch

    def __iter__(self) -> Iterator[Record]:
        """Record by record, for ever or until none came for ``consumer_timeout_ms``. Raises as ``poll``.

        The position follows each record: ``commit`` in the loop counts those that were seen so far, this one too.
        """
        while (head := self._next(self._options.consumer_timeout_s)) is not None:
            assert head.batch is not None
            rows = head.batch.slice(head.row, head.row + self._options.max_poll_records)
            records, error = rows.deserialized(self._options.key_deserializer, self._options.value_deserializer)
            if records:
                self._read_before.pop(head.partition, None)
            for record in records:
                head.row += 1
                yield record
                if self._prefetcher.begun() is not head:
                    break  # the program went elsewhere
            else:
                self._advance(head, 0)
                if error is not None:
                    raise error

    def _next(self, timeout_s: float) -> Prefetched | None:
        """The batch of which rows are to be handed out; None when the time is up."""
        deadline = time.monotonic() + timeout_s
        if self._closed:
            raise InvalidRequestError("The consumer is closed.")
        while True:
            self._begin_anew_in_replaced_topics()
            if self._committer is not None:
                self._committer.commit_when_due(self._known_positions)
            known = self._look_up(min(deadline - time.monotonic(), self._wait_s))
            if known and not self._assignment:
                raise InvalidRequestError("Nothing to read: call subscribe() or assign() first.")
            left = min(deadline, self._refresh_at if known else 0.0) - time.monotonic()
            head = self._prefetcher.head(max(0.0, min(left, self._wait_s)))
            if head is None:
                if time.monotonic() >= deadline:
                    return None
            elif head.batch is not None:
                return head
            elif head.error is None:
                self._advance(head, 0)
            else:
                self._prefetcher.pop()
                self._read_on({head.partition})
                raise head.error

    def _advance(self, head: Prefetched, rows: int) -> None:
        """``rows`` more were handed out."""
        head.row += rows
        if rows:
            self._read_before.pop(head.partition, None)
        if head.batch is None or head.row >= len(head.batch):
            self._positions[head.partition] = head.next_offset
            self._prefetcher.pop()

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out. Asks the store where to begin if that is not known yet."""
        (assigned,) = self._assigned((partition,))
        if assigned not in self._positions and isinstance(self._unplaced[assigned], str):
            self._find_positions(dict(self._unplaced))()
        return self._handed_out(assigned)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on from ``offset`` in the topic that is read. One outside the log is found out when it is read, as is a
        topic that was made again: see ``auto_offset_reset``.
        """
        if offset < 0:
            raise InvalidRequestError(f"Offset {offset} is negative: offsets begin at 0.")
        (assigned,) = self._assigned((partition,))
        self._read_before.pop(assigned, None)
        if assigned.topic in self._topic_ids:
            self._seek({assigned: offset})
        else:
            self._unplaced[assigned] = offset

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the first record of these partitions, or of all that are assigned."""
        described = self._describe_topics(self._assigned(partitions))
        found = _partitions_of(described, self._assigned(partitions))
        self._place({p: at.log_start_offset for p, at in found.items()}, described)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on with what comes from now on in these partitions, or in all that are assigned."""
        described = self._describe_topics(self._assigned(partitions))
        found = _partitions_of(described, self._assigned(partitions))
        self._place({p: at.high_watermark for p, at in found.items()}, described)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record of each; UnknownTopicError, UnknownPartitionError."""
        return {p: found.log_start_offset for p, found in self._describe(partitions).items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record of each (the high watermark); UnknownTopicError, UnknownPartitionError."""
        return {p: found.high_watermark for p, found in self._describe(partitions).items()}

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
        _listed(timestamps_ms)
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
        """What the group has committed for each: the next offset to read, None for nothing."""
        asked = _listed(partitions)
        committed = self._group_offsets()
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
        positions, topic_ids = self._known_positions()
        if offsets is None:
            return self._committer.commit(positions, topic_ids, metadata, callback)
        # A program that has seen nothing of the new topic can only mean the one before: the store refuses that.
        before = {partition.topic: self._read_before[partition] for partition in offsets.keys() & self._read_before}
        return self._committer.commit(offsets, topic_ids | before, metadata, callback)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _assigned(self, partitions: Iterable[TopicPartition] | None) -> set[TopicPartition]:
        """``partitions``, or all; InvalidRequestError for one that is not assigned."""
        if partitions is None:
            return set(self._assignment)
        asked = set(_listed(partitions))
        if missing := asked - self._assignment:
            topic, partition = min(missing)
            raise InvalidRequestError(f"Partition {partition} of topic {topic!r} is not assigned: call assign() first.")
        return asked

    def _keep(self, kept: set[TopicPartition]) -> None:
        """Forget all others."""
        dropped = self._assignment - kept
        self._prefetcher.stop_reading(dropped)
        self._assignment -= dropped
        for partition in dropped & self._unplaced.keys():
            del self._unplaced[partition]
        self._paused -= dropped
        for partition in dropped:
            self._positions.pop(partition, None)
            self._read_before.pop(partition, None)
        for topic in self._topic_ids.keys() - {partition.topic for partition in self._assignment}:
            del self._topic_ids[topic]

    def _begin_anew_in_replaced_topics(self) -> None:
        replaced = self._prefetcher.replaced()
        if self._committer is not None:
            replaced |= self._committer.replaced()
        for topic, topic_id in replaced:
            if self._topic_ids.get(topic) == topic_id:
                self._forget_topic(topic)
                if self._subscription is not None:
                    # It may have other partitions now.
                    self._refresh_at = 0.0

    def _forget_topic(self, topic: str) -> None:
        """Its partitions are to begin anew: another topic has its name."""
        before = self._topic_ids.pop(topic)
        begun = {partition for partition in self._positions if partition.topic == topic}
        self._prefetcher.stop_reading(begun)
        for partition in begun:
            del self._positions[partition]
            self._unplaced[partition] = self._options.auto_offset_reset
            self._read_before.setdefault(partition, before)

    def _look_up(self, timeout_s: float) -> bool:
        """Whether all is known that reading needs: the partitions subscribed to, and where to begin.

        Waits up to ``timeout_s`` for that; raises why the store did not tell.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() >= self._refresh_at or self._unplaced:
            if self._lookup is None:
                if time.monotonic() >= self._refresh_at:
                    assert self._subscription is not None
                    self._lookup = self._lookups.submit(self._find_partitions, self._subscription)
                else:
                    self._lookup = self._lookups.submit(self._find_positions, dict(self._unplaced))
            if not wait((self._lookup,), max(0.0, deadline - time.monotonic())).done:
                return False
            found, self._lookup = self._lookup, None
            found.result()()
        return True

    def _find_partitions(self, topics: frozenset[str]) -> Callable[[], None]:
        """Find the partitions of the topics subscribed to."""
        described = self._describe_topics(TopicPartition(topic, 0) for topic in topics)

        def apply() -> None:
            for topic, now in described.items():
                found = {TopicPartition(topic, partition.partition) for partition in now.partitions}
                known = {partition for partition in self._assignment if partition.topic == topic}
                # Nobody has seen the beginning of one that is added: from its end on, records would be missed.
                grown = bool(known) and self._topic_ids.get(topic) == now.topic_id
                reset: AutoOffsetReset = "earliest" if grown else self._options.auto_offset_reset
                self._keep(self._assignment - (known - found))
                self._enter(now)
                self._unplaced |= dict.fromkeys(found - known, reset)
                self._assignment |= found
            self._refresh_at = time.monotonic() + self._options.metadata_max_age_ms / 1000

        return apply

    def _find_positions(self, unplaced: Mapping[TopicPartition, int | AutoOffsetReset]) -> Callable[[], None]:
        """Find where to begin, and in which topics."""
        # The topics first: what the group has in one that is made again after that is not taken for its offsets in the
        # one before.
        described = self._describe_topics(unplaced)
        positions = {partition: at for partition, at in unplaced.items() if isinstance(at, int)}
        asks = self._options.group_id is not None and len(positions) < len(unplaced)
        committed = self._group_offsets() if asks else {}
        without = unplaced.keys() - positions.keys() - committed.keys()
        if stranded := [partition for partition in without if unplaced[partition] == "none"]:
            topic, number = min(stranded)
            raise NoOffsetForPartitionError(
                f"Group {self._options.group_id!r} has committed nothing for partition {number} of topic {topic!r} as "
                f"it is now (id {described[topic].topic_id}), and auto_offset_reset is 'none': seek() to where it is "
                "to begin."
            )
        for partition, found in _partitions_of(described, without).items():
            earliest = unplaced[partition] == "earliest"
            positions[partition] = found.log_start_offset if earliest else found.high_watermark
        for partition in unplaced.keys() - positions.keys():
            positions[partition] = committed[partition]

        def apply() -> None:
            # The program may have placed some meanwhile.
            wanted = {p: at for p, at in positions.items() if self._unplaced.get(p) == unplaced[p]}
            self._place(wanted, described)

        return apply

    def _place(self, positions: Mapping[TopicPartition, int], described: Mapping[str, TopicDescription]) -> None:
        """Go on from these positions in the topics that were found."""
        # What was asked for before may tell of topics that were there before.
        self._lookup = None
        for topic in {partition.topic for partition in positions}:
            self._enter(described[topic])
        self._seek(positions)

    def _enter(self, topic: TopicDescription) -> None:
        """Positions in the topic of this name are in this one from now on."""
        if self._topic_ids.get(topic.name, topic.topic_id) != topic.topic_id:
            self._forget_topic(topic.name)
        self._topic_ids[topic.name] = topic.topic_id

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions.update(positions)
        for partition in positions.keys() & self._unplaced.keys():
            del self._unplaced[partition]
        self._read_on(positions.keys() - self._paused)

    def _read_on(self, partitions: Iterable[TopicPartition]) -> None:
        self._prefetcher.read({partition: self._positions[partition] for partition in partitions}, self._topic_ids)

    def _handed_out(self, partition: TopicPartition) -> int:
        head = self._prefetcher.begun()
        if head is not None and head.partition == partition and head.batch is not None and head.row:
            return head.batch.slice(0, head.row).next_offset
        at = self._positions[partition] if partition in self._positions else self._unplaced[partition]
        assert isinstance(at, int)
        return at

    def _known_positions(self) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        """Positions, and the ids of the topics that they are in, where these are known."""
        sought = {partition: at for partition, at in self._unplaced.items() if isinstance(at, int)}
        return sought | {partition: self._handed_out(partition) for partition in self._positions}, self._topic_ids

    def _describe(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionDescription]:
        asked = _listed(partitions)
        return _partitions_of(self._describe_topics(asked), asked)

    def _describe_topics(self, partitions: Iterable[TopicPartition]) -> dict[str, TopicDescription]:
        """The topics of ``partitions``, by name."""
        names = {partition.topic for partition in partitions}
        return {name: self._admin.describe_topic(name) for name in sorted(names)}

    def _group_offsets(self) -> dict[TopicPartition, int]:
        if self._options.group_id is None:
            raise InvalidRequestError("Committed offsets are a group's: give group_id.")
        try:
            committed = self._admin.group_offsets(self._options.group_id)
        except UnknownGroupError:
            return {}
        return {TopicPartition(found.topic, found.partition): found.offset for found in committed}


def _partitions_of(
    topics: Mapping[str, TopicDescription], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, PartitionDescription]:
    """Each of ``partitions``; UnknownPartitionError."""
    found = {TopicPartition(name, p.partition): p for name, topic in topics.items() for p in topic.partitions}
    for partition in (asked := list(partitions)):
        if partition not in found:
            raise UnknownPartitionError(f"Partition {partition.partition} of topic {partition.topic!r} not found.")
    return {partition: found[partition] for partition in asked}


def _listed(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """InvalidRequestError for one partition, which is a sequence itself, and for what are none."""
    listed: list[TopicPartition] = []
    found: Any
    for found in partitions:
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str)):
            raise InvalidRequestError(f"{partitions!r}: pass a list of partitions, as [TopicPartition('orders', 0)].")
        listed.append(TopicPartition(*found))
    return listed


def _check_max_records(max_records: object) -> None:
    if max_records is not None and (type(max_records) is not int or max_records < 1):
        raise InvalidRequestError(
            f"max_records = {max_records!r}: give a whole number from 1. Seconds to wait are timeout_s={max_records!r}."
        )
