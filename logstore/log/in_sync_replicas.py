"""The replicas of a partition as its leader knows them: the positions of its followers, and which are in sync.

Invariants: a position comes from a follower's fetch with this leader's epoch, after it was compared with the leader's
own history (C7). The high watermark counts the committed ISR and a proposed one together (KIP-497), so that it is right
whichever of them ZooKeeper has; it does not rise while fewer replicas than ``min.insync.replicas`` are in sync (C3,
KIP-966).
"""

from collections.abc import Callable, Iterable, Sequence

#: The position of a follower that has not fetched in this epoch.
UNKNOWN_POSITION = -1


class Follower:
    """Another replica. Everything below ``position`` is durable there."""

    __slots__ = (
        "_log_end_at_fetch",
        "broker_epoch",
        "broker_id",
        "caught_up_at",
        "fetched_at",
        "is_behind",
        "position",
        "wake",
    )

    def __init__(self, broker_id: int, now: float) -> None:
        self.broker_id = broker_id
        #: The registration with which it fetched; -1: it has not fetched in this epoch.
        self.broker_epoch = -1
        self.position = UNKNOWN_POSITION
        #: The time at which it last had all that the leader had, in seconds of the monotonic clock.
        self.caught_up_at = now
        #: True if it was found behind and has not fetched since.
        self.is_behind = False
        #: The time of its last fetch, in the same seconds.
        self.fetched_at = now
        self._log_end_at_fetch = 0
        #: Notifies the follower's fetch session that there is something new; None while there is no session.
        self.wake: Callable[[], None] | None = None

    def fetched(self, broker_epoch: int, position: int, log_end_offset: int, now: float) -> None:
        """Record a fetch from ``position``. As in Kafka, a follower that now has everything the leader had at its
        previous fetch was caught up at that fetch.
        """
        if position >= log_end_offset:
            self.caught_up_at = now
        elif position >= self._log_end_at_fetch and self.position != UNKNOWN_POSITION:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.broker_epoch = broker_epoch
        self.position = position
        self.is_behind = False
        self.fetched_at = now
        self._log_end_at_fetch = log_end_offset

    def behind_s(self, log_end_offset: int, now: float) -> float:
        """Return for how long it has lacked something, as ``replica.lag.time.max.ms`` counts; 0.0 if it has all."""
        return 0.0 if self.position >= log_end_offset else now - self.caught_up_at


class InSyncReplicas:
    """``replicas`` and ``committed`` are broker ids, this leader's among them."""

    def __init__(
        self,
        leader: int,
        replicas: Sequence[int],
        committed: Sequence[int],
        *,
        min_in_sync: Callable[[], int],
        now: float,
    ) -> None:
        self._leader = leader
        self._min_in_sync = min_in_sync
        self.replicas: tuple[int, ...] = ()
        self.committed: tuple[int, ...] = ()
        #: The ISR that is being written; None if no change is being written.
        self.proposed: tuple[int, ...] | None = None
        self.followers: dict[int, Follower] = {}
        self.commit(replicas, committed, now)

    def commit(self, replicas: Sequence[int], in_sync: Sequence[int], now: float) -> None:
        """Take over the state of the partition in ZooKeeper, even if another broker wrote it."""
        self.replicas, self.committed = tuple(replicas), tuple(in_sync)
        others = [broker for broker in replicas if broker != self._leader]
        self.followers = {broker: self.followers.get(broker) or Follower(broker, now) for broker in others}

    @property
    def min_in_sync(self) -> int:
        """``min.insync.replicas``, at most the number of replicas."""
        return min(self._min_in_sync(), len(self.replicas))

    @property
    def has_enough(self) -> bool:
        """True if an append with acks=all may be accepted (C13)."""
        return len(self.committed) >= self.min_in_sync

    def high_watermark(self, log_end_offset: int) -> int:
        """Return the offset below which all in-sync replicas have everything; -1 if too few replicas are in sync."""
        if not self.has_enough:
            return -1
        lowest = log_end_offset
        for broker in self.committed if self.proposed is None else {*self.committed, *self.proposed}:
            if (follower := self.followers.get(broker)) is not None and follower.position < lowest:
                lowest = follower.position
        return lowest

    def behind(self, now: float, lag_max_s: float, log_end_offset: int) -> list[int]:
        """Return the brokers in the ISR that have lacked something for longer than ``replica.lag.time.max.ms``.

        Call it more often than that. A follower that has everything does not fetch again before there is more, so it
        counts as caught up only by this call.
        """
        found = []
        for broker in self.committed:
            follower = self.followers.get(broker)
            if follower is None:
                continue
            if follower.position >= log_end_offset:
                follower.caught_up_at = now
            elif follower.behind_s(log_end_offset, now) > lag_max_s:
                follower.is_behind = True
                found.append(broker)
        return found

    def all_fetch(self, since: float) -> bool:
        """Return whether all others in the ISR, and in a proposed one, still follow this leader: their sessions exist,
        and they have fetched since then. Any other leader would be one of them.
        """
        return all(
            follower.wake is not None and follower.fetched_at >= since
            for broker in {*self.committed, *(self.proposed or ())}
            if (follower := self.followers.get(broker)) is not None
        )

    def may_join(self, broker: int, high_watermark: int, epoch_start: int) -> bool:
        """Return whether the follower may be proposed for the ISR (C4). A follower that was found behind must have
        fetched since: with too few replicas in sync the high watermark does not move, and a follower that is cut off
        would stay above it for ever.
        """
        follower = self.followers.get(broker)
        return (
            follower is not None
            and broker not in self.committed
            and follower.broker_epoch >= 0
            and not follower.is_behind
            and follower.position >= max(high_watermark, epoch_start)
        )

    def wake_followers(self, brokers: Iterable[Follower] | None = None) -> None:
        """Notify the fetch sessions of followers that the leader has something new."""
        for follower in self.followers.values() if brokers is None else brokers:
            if follower.wake is not None:
                follower.wake()
