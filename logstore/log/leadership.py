"""The role of a partition's leader: it moves the high watermark and acknowledges appends.

Invariant: an append with acks=all is acknowledged when the high watermark reaches its end offset, one with acks=1 when
the log end does. A leader that is the only replica moves the high watermark with the log end: durable, log end, high
watermark and acknowledgement are one step of the loop. A leader with followers also counts their positions
(``InSyncReplicas``). It reports no end offset, and rolls nothing, before the high watermark has reached the offset at
which its epoch began (C9): until then an end offset could fall. Nor does it report one, or return records, when another
broker may lead by now: it has no lease, and an in-sync follower no longer follows it.
"""

from collections.abc import Callable

from logstore.errors import (
    LogStoreError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
)
from logstore.log.acknowledgements import AcknowledgementQueue, Waiting
from logstore.log.high_watermark import HighWatermark
from logstore.log.in_sync_replicas import Follower, InSyncReplicas

ACKS_ALL = -1


class Leadership:
    __slots__ = (
        "_durable",
        "_has_ended",
        "_has_lease",
        "_high_watermark",
        "_is_followed",
        "_log_end_offset",
        "epoch",
        "epoch_start",
        "in_sync_replicas",
    )

    def __init__(
        self,
        epoch: int,
        high_watermark: HighWatermark,
        log_end_offset: int,
        in_sync_replicas: InSyncReplicas | None = None,
        has_lease: Callable[[], bool] = lambda: True,
        is_followed: Callable[[InSyncReplicas], bool] = lambda _: True,
    ) -> None:
        """Begin to lead. ``in_sync_replicas`` is None for the only replica. ``has_lease`` returns true while nobody
        else can lead (C14). ``is_followed`` returns whether all of the ISR fetch from here.
        """
        self.epoch = epoch
        self.epoch_start = log_end_offset
        self.in_sync_replicas = in_sync_replicas
        self._has_lease = has_lease
        self._is_followed = is_followed
        self._has_ended = False
        self._high_watermark = high_watermark
        self._log_end_offset = log_end_offset
        # Few appends wait for the log end, so the queue is made for the first of them.
        self._durable: AcknowledgementQueue | None = None
        self.advance(log_end_offset)

    # ---- appends ----------------------------------------------------------------------------------------------------

    def refusal(self, acks: int) -> LogStoreError | None:
        """Return why no append is accepted: acks=all below ``min.insync.replicas`` (C13), fewer acks without a lease
        (C14).
        """
        in_sync = self.in_sync_replicas
        if in_sync is None:
            return None
        if acks == ACKS_ALL:
            if not in_sync.has_enough:
                count = len(in_sync.committed)
                return NotEnoughReplicasError(
                    f"{count} {'replica is' if count == 1 else 'replicas are'} in sync, and min.insync.replicas is "
                    f"{in_sync.min_in_sync}: nothing was stored. Try again when more brokers are back."
                )
        elif not self._has_lease():
            return NotLeaderOrFollowerError(
                "This broker does not reach ZooKeeper, so that another one may lead by now: nothing was stored. Try "
                "again, or send with acks=all."
            )
        return None

    def acknowledge(self, end_offset: int, acks: int, acknowledgement: Waiting) -> None:
        """Count ``acknowledgement`` down when ``end_offset`` is reached for ``acks``; that may be at once."""
        queue, reached = self._high_watermark.appends, self._high_watermark.offset
        if acks != ACKS_ALL:
            queue = self._durable = self._durable or AcknowledgementQueue()
            reached = self._log_end_offset
        if end_offset <= reached:
            acknowledgement.reached()
        else:
            queue.add(end_offset, acknowledgement)

    def advance(self, log_end_offset: int) -> None:
        """Move the log end; the high watermark follows as far as the in-sync replicas have it."""
        self._log_end_offset = log_end_offset
        if self._durable is not None:
            # Nobody else leads a partition whose only replica is here.
            if self.in_sync_replicas is not None and not self._has_lease():
                self._durable.fail_above(-1, _no_lease())
            self._durable.reach(log_end_offset)
        if self.in_sync_replicas is None:
            self._high_watermark.advance(log_end_offset)
            return
        self.in_sync_replicas.wake_followers()
        self._count_replicas()

    def fail(self, error: LogStoreError) -> None:
        """Fail the appends that are not durable here. Appends that wait only for followers continue to wait."""
        self._fail_above(self._log_end_offset, error)

    def end(self, error: LogStoreError) -> None:
        """Fail what waits, because another broker leads, and never move the high watermark again."""
        self._has_ended = True
        self._fail_above(self._high_watermark.offset, error)

    def _fail_above(self, offset: int, error: LogStoreError) -> None:
        self._high_watermark.appends.fail_above(offset, error)
        if self._durable is not None:
            self._durable.fail_above(self._log_end_offset, error)

    # ---- replicas ---------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if the high watermark has reached the start of the epoch (C9)."""
        return self._high_watermark.offset >= self.epoch_start

    @property
    def is_cut_off(self) -> bool:
        """True if another broker may lead by now, so that this one must not report offsets."""
        in_sync = self.in_sync_replicas
        return in_sync is not None and not self._has_lease() and not self._is_followed(in_sync)

    def require_settled(self) -> None:
        """Require that the end offsets of this leader cannot fall any more. Raises OffsetNotAvailableError until then
        (KIP-207), and NotLeaderOrFollowerError while it is cut off.
        """
        if self.is_cut_off:
            raise NotLeaderOrFollowerError(
                "This broker reaches neither ZooKeeper nor all replicas in sync, so that another one may lead by now: "
                "look up the leader, and try again."
            )
        if not self.is_settled:
            raise OffsetNotAvailableError(
                "The leader was elected just now, and waits for its followers before it tells end offsets: try again."
            )

    def require_lease(self) -> None:
        """Raise NotLeaderOrFollowerError if another broker may lead by now. An only replica needs no lease."""
        if self.in_sync_replicas is not None and not self._has_lease():
            raise NotLeaderOrFollowerError(
                "This broker does not reach ZooKeeper, so that another one may lead by now: try again."
            )

    def fetched(self, broker_id: int, broker_epoch: int, position: int, now: float) -> Follower:
        """Record a follower's fetch with this epoch, from a ``position`` in the leader's own history. Raises
        NotLeaderOrFollowerError if the broker is not a follower, or if the fetch is from an earlier registration
        (KIP-903).
        """
        in_sync = self.in_sync_replicas
        if in_sync is None or (follower := in_sync.followers.get(broker_id)) is None:
            raise NotLeaderOrFollowerError(f"Broker {broker_id} is no replica of this partition.")
        if broker_epoch < follower.broker_epoch:
            raise NotLeaderOrFollowerError(
                f"Broker {broker_id} has registered anew since this fetch, and its journal may be another one."
            )
        follower.fetched(broker_epoch, position, self._log_end_offset, now)
        self._count_replicas()
        return follower

    def replicate(self, in_sync_replicas: InSyncReplicas | None) -> None:
        """Count these replicas from now on; None if the only one is here."""
        self.in_sync_replicas = in_sync_replicas

    def propose(self, in_sync_replicas: tuple[int, ...]) -> None:
        """Set the ISR that is about to be written."""
        assert self.in_sync_replicas is not None
        self.in_sync_replicas.proposed = in_sync_replicas
        self._count_replicas()

    def end_proposal(self) -> None:
        """Clear the proposed ISR: it is written, or never will be."""
        assert self.in_sync_replicas is not None
        self.in_sync_replicas.proposed = None
        self._count_replicas()

    def commit(self, replicas: tuple[int, ...], in_sync_replicas: tuple[int, ...], now: float) -> None:
        """Take over the replicas that ZooKeeper has stored for this epoch."""
        in_sync = self.in_sync_replicas
        assert in_sync is not None
        in_sync.commit(replicas, in_sync_replicas, now)
        if not in_sync.has_enough:
            self._high_watermark.appends.fail_above(
                self._high_watermark.offset,
                NotEnoughReplicasAfterAppendError(
                    "Fewer replicas than min.insync.replicas are in sync since the append: the records may or may not "
                    "be stored. Try again."
                ),
            )
        self._count_replicas()

    def count_replicas(self) -> None:
        """Count again, because ``min.insync.replicas`` has changed."""
        if self.in_sync_replicas is not None:
            self._count_replicas()

    def _count_replicas(self) -> None:
        in_sync = self.in_sync_replicas
        assert in_sync is not None
        if not self._has_ended:
            self._high_watermark.advance(in_sync.high_watermark(self._log_end_offset))


def _no_lease() -> LogStoreError:
    return NotEnoughReplicasAfterAppendError(
        "This broker does not reach ZooKeeper since the append, so that another one may lead by now: the records may "
        "or may not be stored. Try again, or send with acks=all."
    )
