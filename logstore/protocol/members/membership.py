"""The membership of one consumer in its group, without clock, socket or thread: the parts that both protocols share.

Two threads meet here, under one lock that their owner holds (``group_member``). The member's own thread asks for the
``next`` request and reports its outcome. The consumer's thread, inside ``poll``, asks for the next ``step`` of a
rebalance and reports when that is ``done``.

Invariants:

- ``owned`` changes only by a step that is done: partitions come and go in the consumer's thread alone.
- A member that finds itself out of the group is lost: from that moment nothing that it owned can be committed, and it
  joins again only after the step ``Lost``.
- One request is awaited at a time. The outcome of a request that is no longer awaited changes nothing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from logstore.backoff import backoffs
from logstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    LogStoreError,
    ThrottledError,
)
from logstore.protocol.members.identity import MemberIdentity, TopicPartition
from logstore.protocol.messages.members import GroupRequest

_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """``topics`` is None in the classic protocol until a regular expression was matched, and in the consumer protocol
    if the store matches ``regex``. ``assignors`` are the client's, by preference, or the one that the store is asked
    for. Times are in seconds.
    """

    member_id: str
    group_instance_id: str | None
    assignors: tuple[str, ...]
    session_timeout_s: float
    heartbeat_interval_s: float
    max_poll_interval_s: float
    give_up_s: float
    topics: frozenset[str] | None
    regex: str | None = None


class State(StrEnum):
    """A rebalance consists of PREPARING (partitions have to be given up before joining), JOINING, ASSIGNING (the leader
    needs the numbers of partitions), SYNCING and COMPLETING (the assignment has to be taken over). The consumer
    protocol has JOINING and STABLE only, and reconciles in STABLE.
    """

    UNJOINED = "unjoined"
    PREPARING = "preparing"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    COMPLETING = "completing"
    STABLE = "stable"
    #: Another consumer has this one's ``group_instance_id``.
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Assigned:
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Revoked:
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Lost:
    partitions: frozenset[TopicPartition]


Step: TypeAlias = Assigned | Revoked | Lost


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """Asks for the numbers of partitions of these topics, which is not a request to the group."""

    topics: frozenset[str]


Todo: TypeAlias = GroupRequest | PartitionCounts
#: For each partition, the assignment since which it is held. It ends when one is given up, even if that comes back.
Hold: TypeAlias = Mapping[TopicPartition, int]


class Membership(ABC):
    """``now`` is a monotonic time in seconds everywhere."""

    def __init__(self, options: MemberOptions) -> None:
        self.options = options
        self.topics = options.topics
        self.regex = options.regex
        self.state = State.UNJOINED
        #: The identity for commits; None while the member is not in the group.
        self.identity: MemberIdentity | None = None
        # The topic id of each partition, if the protocol has it.
        self.owned: dict[TopicPartition, str] = {}
        self._target: dict[TopicPartition, str] = {}
        # The target of the step Assigned that is being carried out.
        self._assigning: dict[TopicPartition, str] = {}
        self._lost = False
        self._error: LogStoreError | None = None
        self._since: dict[TopicPartition, int] = {}
        self._assignments = 0
        self._awaited: Todo | None = None
        self._heartbeat_at = 0.0
        # The time is infinite inside ``poll``, and before the first one.
        self._polled_at = math.inf
        # The value for the next heartbeat.
        self._since_poll_ms = 0
        self._backoffs = backoffs()
        self._retry_at = 0.0
        self._failing_since: float | None = None

    # ---- the member's own thread ------------------------------------------------------------------------------------

    def next(self, now: float) -> Todo | float:
        """Return the next thing to do, or the number of seconds to wait (infinite: until something changes)."""
        overdue_at = self._polled_at + self.options.max_poll_interval_s
        if self.state in (State.UNJOINED, State.FENCED):
            return math.inf
        if now >= overdue_at:
            farewell = self.farewell("max_poll_interval_ms ended without a call of poll.")
            self._lose()
            self._awaited = farewell
            return farewell or math.inf
        at = max(self._due(), self._retry_at)
        if now < at:
            return min(at, overdue_at) - now
        self._since_poll_ms = max(0, round((now - self._polled_at) * 1000)) if self._polled_at < math.inf else 0
        self._awaited = self._request()
        return self._awaited

    def answered(self, todo: Todo, answer: object, now: float) -> None:
        """Take the response, of the type that ``todo`` names; for PartitionCounts a dict."""
        if todo is not self._awaited:
            return
        self._awaited, self._failing_since, self._backoffs = None, None, backoffs()
        self._take(todo, answer, now)

    def failed(self, todo: Todo, error: LogStoreError, now: float) -> None:
        if todo is not self._awaited:
            return
        self._awaited = None
        if not self._is_refusal(todo, error, now):
            if error.retriable:
                self._retry(error, now)
            else:
                self._lose(error)

    @property
    def wants_poll(self) -> bool:
        """True if the consumer's thread has something to do."""
        return self._lost or self._error is not None or self._has_step()

    # ---- the consumer's thread --------------------------------------------------------------------------------------

    def begin_poll(self) -> None:
        self._polled_at = math.inf

    def end_poll(self, now: float) -> None:
        self._polled_at = now

    def step(self) -> Step | None:
        """Return the next step of the consumer's thread; None: nothing for now.

        Raises the error that ended the membership, or because of which it has made no progress for long. The next call
        tries again, unless the member is fenced.
        """
        if self._lost:
            if self.owned:
                return Lost(frozenset(self.owned))
            self._lost = False
        if self._error is not None:
            error = self._error
            if self.state is not State.FENCED:
                self._error = None
            raise error
        step = self._step()
        if isinstance(step, Assigned):
            self._assigning = self._target
        return step

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that the group has given to this member last."""
        return frozenset(self._target)

    def done(self, step: Step) -> None:
        """Take over that the step was carried out."""
        if isinstance(step, Assigned):
            self._assignments += 1
            for partition in step.partitions:
                self.owned[partition] = self._assigning[partition]
                if not self._lost:
                    self._since[partition] = self._assignments
        else:
            self._forget(step.partitions)
        self._done(step)

    def give_up(self) -> frozenset[TopicPartition]:
        """Own nothing from now on, because the membership ends. Return what was owned."""
        owned = frozenset(self.owned)
        self._forget(owned)
        return owned

    def _resume(self, identity: MemberIdentity, owned: Mapping[TopicPartition, str]) -> None:
        """Become the member that the group knows already, with the partitions that it may hold."""
        self.identity, self.state = identity, State.STABLE
        self.owned, self._target = dict(owned), dict(owned)
        self._assignments += 1
        self._since = dict.fromkeys(owned, self._assignments)

    def broken(self, error: LogStoreError) -> None:
        """Handle a response whose content cannot be read."""
        self._lose(error)

    @property
    def is_lost(self) -> bool:
        """True if another member may have what is owned."""
        return self._lost

    @abstractmethod
    def farewell(self, reason: str) -> GroupRequest | None:
        """Return the request by which the member leaves; None if it is not in the group, or is static and stays in
        it.
        """

    @abstractmethod
    def resubscribe(self, topics: frozenset[str] | None, regex: str | None) -> None:
        """Subscribe to other topics or another regex, as in ``MemberOptions``."""

    @abstractmethod
    def found_topics(self, subscribed: frozenset[str], partitions: Mapping[str, int]) -> None:
        """Take over that ``subscribed`` are the topics of the subscription that exist, and the numbers of
        ``partitions`` of these and of ``followed`` topics.
        """

    @property
    @abstractmethod
    def followed(self) -> frozenset[str]:
        """The topics of other members in which this one must notice new partitions."""

    # ---- commits ----------------------------------------------------------------------------------------------------

    def hold(self, partitions: Iterable[TopicPartition]) -> Hold:
        """Return a proof of owning these partitions now. Raises CommitFailedError."""
        asked = set(partitions)
        self._require(asked - self._since.keys())
        return {partition: self._since[partition] for partition in asked}

    def identity_of(self, hold: Hold) -> MemberIdentity:
        """Return the identity with which the holder commits now. Raises CommitFailedError if a partition was given up
        since.
        """
        self._require({partition for partition, since in hold.items() if self._since.get(partition) != since})
        if self.identity is None:
            raise _commit_failed("The consumer is not in its group now.")
        return self.identity

    def refused(self, identity: MemberIdentity, error: LogStoreError) -> None:
        """Handle a refused commit: the group has no member with ``identity``."""
        if identity == self.identity:
            self._lose(error if isinstance(error, FencedInstanceIdError) else None)

    def is_settled(self, identity: MemberIdentity) -> bool:
        """Return whether no response is awaited that could bring a newer identity."""
        return identity == self.identity and self.state in (State.PREPARING, State.STABLE)

    def _require(self, missing: set[TopicPartition]) -> None:
        if missing:
            named = ", ".join(f"{topic}-{number}" for topic, number in sorted(missing)[:_NAMED_MAX])
            more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
            raise _commit_failed(f"{named}{more} are not assigned to this consumer (any more).")

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _lose(self, error: LogStoreError | None = None) -> None:
        """Leave the state of a member, because the group no longer has it; ``error`` is for the program."""
        self.identity = None
        self.state = State.FENCED if isinstance(error, FencedInstanceIdError) else State.UNJOINED
        self._error = error
        self._lost = True
        self._since.clear()
        self._target = {}
        self._awaited = None
        self._failing_since, self._backoffs = None, backoffs()

    def _retry(self, error: LogStoreError, now: float) -> None:
        """Send again after a while. The program gets an error if there was no progress for long."""
        wait = next(self._backoffs)
        self._retry_at = now + (max(wait, error.retry_after_s) if isinstance(error, ThrottledError) else wait)
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= self.options.give_up_s:
            self._error, self._failing_since = error, now

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.owned.pop(partition, None)
            self._since.pop(partition, None)

    @abstractmethod
    def _due(self) -> float:
        """Return the time of the next request, in a state other than UNJOINED and FENCED; infinite: none is due by
        itself.
        """

    @abstractmethod
    def _request(self) -> Todo: ...

    @abstractmethod
    def _take(self, todo: Todo, answer: object, now: float) -> None: ...

    @abstractmethod
    def _is_refusal(self, todo: Todo, error: LogStoreError, now: float) -> bool:
        """Return whether ``error`` is part of the protocol, in which case it has been handled."""

    @abstractmethod
    def _has_step(self) -> bool: ...

    @abstractmethod
    def _step(self) -> Step | None: ...

    @abstractmethod
    def _done(self, step: Step) -> None: ...


def _commit_failed(reason: str) -> CommitFailedError:
    return CommitFailedError(
        f"{reason} The group has rebalanced: nothing was committed, and others may read those records again. Call "
        "poll() more often, lower max_poll_records, or raise max_poll_interval_ms (and session_timeout_ms)."
    )
