"""Takes records out of completed fetches, and advances the positions past them.

Invariants:

- Nothing is handed out of a topic that is known to have been created again.
- Auto commit commits the positions of *earlier* calls: a record that was handed out counts as done when the program
  asks for more. This also holds at the end of a ``with`` block that failed or was interrupted.
- No wait exceeds its timeout, whatever the store does.
- Nothing is handed out while partitions have to be given up.
"""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

from logstore.client.consumer.fetcher import CompletedFetch, Fetcher
from logstore.client.consumer.group_member import GroupMember
from logstore.client.consumer.offset_committer import OffsetCommitter
from logstore.client.consumer.offset_fetcher import OffsetFetcher
from logstore.client.consumer.options import ConsumerOptions
from logstore.client.consumer.records import FetchedBatch, Record
from logstore.client.consumer.subscription_state import SubscriptionState
from logstore.client.consumer.wakeup import Wakeup
from logstore.client.metadata import TopicPartition
from logstore.errors import InvalidRequestError, UnknownTopicError, WakeupError

_WAIT_SECONDS_MAX = 60.0


class FetchCollector:
    """The collector of one consumer, for its thread only."""

    def __init__(
        self,
        fetcher: Fetcher,
        state: SubscriptionState,
        offset_fetcher: OffsetFetcher,
        committer: OffsetCommitter | None,
        member: GroupMember | None,
        wakeup: Wakeup,
        options: ConsumerOptions,
    ) -> None:
        self._fetcher = fetcher
        self._state = state
        self._offset_fetcher = offset_fetcher
        self._committer = committer
        self._member = member
        self._wakeup = wakeup
        self._options = options
        # The commit of the positions of partitions that are about to be revoked.
        self._committing: tuple[frozenset[TopicPartition], Future[None]] | None = None
        # The offsets of the first records that the program holds and has not finished, set by ``records`` and
        # ``batch``. During iteration these records are the rows of ``_iterated`` from ``_done`` on.
        self._in_hand: dict[TopicPartition, int] = {}
        self._iterated: CompletedFetch | None = None
        self._done = 0
        self._committed: dict[TopicPartition, int] = {}
        # Waits are short, so that auto commit keeps to its interval.
        self._wait_s = max(0.1, min(_WAIT_SECONDS_MAX, options.auto_commit_interval_ms / 1000))

    def records(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return the records for ``Consumer.poll``."""
        records: list[Record] = []
        fetch = self._next(timeout_s)
        while fetch is not None and fetch.batch is not None and len(records) < max_records:
            rows = fetch.batch.slice(fetch.row, fetch.row + max_records - len(records))
            found, error = rows.deserialized(self._options.key_deserializer, self._options.value_deserializer)
            if found:
                self._in_hand.setdefault(fetch.partition, found[0].offset)
            records += found
            self._state.advance(fetch, len(found))
            if error is not None:
                if records:
                    break
                raise error
            fetch = self._fetcher.begun()
        return records

    def batch(self, max_records: int | None, timeout_s: float) -> FetchedBatch | None:
        """Return the batch for ``Consumer.poll_arrow``."""
        fetch = self._next(timeout_s)
        if fetch is None or fetch.batch is None:
            return None
        end = len(fetch.batch) if max_records is None else fetch.row + max_records
        batch = fetch.batch.slice(fetch.row, end)
        self._in_hand[fetch.partition] = batch.offset_at(0)
        self._state.advance(fetch, len(batch))
        return batch

    def __iter__(self) -> Iterator[Record]:
        """Yield the records for ``Consumer.__iter__``."""
        while (fetch := self._next(self._options.consumer_timeout_s)) is not None:
            assert fetch.batch is not None
            rows = fetch.batch.slice(fetch.row, fetch.row + self._options.max_poll_records)
            records, error = rows.deserialized(self._options.key_deserializer, self._options.value_deserializer)
            if records:
                self._state.handed_out(fetch.partition)
            self._iterated, self._done = fetch, fetch.row
            for fetch.row, record in enumerate(records, self._done + 1):
                yield record
                self._done = fetch.row
                if self._fetcher.begun() is not fetch:
                    break  # the program has called ``seek`` or a similar method
            else:
                self._state.advance(fetch, 0)
                if error is not None:
                    raise error

    def done_positions(self) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        """Return ``SubscriptionState.positions``, moved back before the records that the program has not finished."""
        positions, topic_ids = self._state.positions()
        in_hand = dict(self._in_hand)
        fetch = self._iterated
        if fetch is not None and fetch is self._fetcher.begun() and self._done < fetch.row:
            assert fetch.batch is not None
            in_hand[fetch.partition] = fetch.batch.offset_at(self._done)
        done = {at: min(offset, in_hand.get(at, offset)) for at, offset in positions.items()}
        return {at: max(offset, self._committed.get(at, offset)) for at, offset in done.items()}, topic_ids

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note the offsets that the program commits itself: it is done with the records below them."""
        self._committed.update(offsets)

    def _take_back(self) -> None:
        """Count all records that the program holds as done, because it asks for more."""
        self._in_hand.clear()
        self._committed.clear()
        self._iterated = None

    def _next(self, timeout_s: float) -> CompletedFetch | None:
        """Return the fetch whose rows are to be handed out next, or None when the time is up."""
        deadline = time.monotonic() + timeout_s
        self._take_back()
        if self._fetcher.closed:
            raise InvalidRequestError("The consumer is closed.")
        if self._member is None or not self._member.is_member:
            return self._next_of_own(deadline)
        with self._member.polling():
            return self._next_of_own(deadline)

    def _next_of_own(self, deadline: float) -> CompletedFetch | None:
        while True:
            if self._wakeup.taken():
                raise WakeupError("wakeup() was called.")
            self._begin_anew_in_replaced_topics()
            if self._member is not None and not self._member.rebalance(
                lambda revoked: self._committed_in_time(revoked, deadline)
            ):
                if time.monotonic() >= deadline:
                    return None
                continue
            if self._committer is not None:
                self._committer.commit_when_due(self._state.positions)
            known = self._offset_fetcher.look_up(min(deadline - time.monotonic(), self._wait_s))
            if known and not self._state.assignment and not (self._member and self._member.is_member):
                raise InvalidRequestError("Nothing to read: call subscribe() or assign() first.")
            left = min(deadline, self._offset_fetcher.refresh_at if known else 0.0) - time.monotonic()
            fetch = self._fetcher.first(max(0.0, min(left, self._wait_s)))
            if fetch is None:
                if time.monotonic() >= deadline:
                    return None
            elif fetch.batch is not None and fetch.row < len(fetch.batch):
                return fetch
            elif fetch.error is None:
                # This also runs after an iteration was left at the last record of a batch.
                self._state.advance(fetch, 0)
            elif isinstance(fetch.error, UnknownTopicError) and self._state.pattern is not None:
                # A deleted topic no longer matches; one that was created again begins again.
                self._fetcher.pop()
                self._offset_fetcher.refresh()
            else:
                self._fetcher.pop()
                self._state.read_on({fetch.partition})
                raise fetch.error

    def _committed_in_time(self, revoked: frozenset[TopicPartition], deadline: float) -> bool:
        """Return True once the positions of ``revoked`` are committed, or if auto commit is off.

        If the commit fails, the next owner begins at the commit before.
        """
        if self._committer is None or not self._committer.automatic:
            return True
        if self._committing is None or self._committing[0] != revoked:
            self._committing = revoked, self._committer.commit_automatically(*self._state.positions(revoked))
        if not self._wakeup.wait(self._committing[1], min(deadline, time.monotonic() + self._wait_s)):
            return False
        self._committing = None
        return True

    def _begin_anew_in_replaced_topics(self) -> None:
        replaced = self._fetcher.replaced()
        if self._committer is not None:
            replaced |= self._committer.replaced()
        if replaced and self._state.begin_anew(replaced):
            # The partitions of a subscribed topic may have changed.
            self._offset_fetcher.refresh()
