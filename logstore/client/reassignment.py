"""Plans that move partitions to other brokers: created, read from a file and compared with the state; pure.

A plan is the JSON of Kafka's ``kafka-reassign-partitions``: ``{"version": 1, "partitions": [{"topic", "partition",
"replicas"}]}``, the preferred leader first in ``replicas``.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from logstore.client.metadata import TopicPartition
from logstore.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError, UnknownTopicError
from logstore.protocol.messages.cluster import PartitionReplicas


class PlannedPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A partition of a plan. ``log_dirs`` occurs in Kafka's files; a broker has one log directory here."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[Literal["any"], ...] = ()


class ReassignmentPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partitions: tuple[PlannedPartition, ...]
    version: Literal[1] = 1


class Progress(StrEnum):
    COMPLETE = "complete"
    IN_PROGRESS = "in progress"
    #: The reassignment has not begun, was cancelled, or was replaced by another.
    ELSEWHERE = "not on its way"


def read_plan(content: bytes) -> ReassignmentPlan:
    """Read a plan. Raises InvalidReplicaAssignmentError if it is not a plan, or contradicts itself."""
    try:
        plan = msgspec.json.decode(content, type=ReassignmentPlan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidReplicaAssignmentError(
            f'The plan is not {{"version": 1, "partitions": [{{"topic", "partition", "replicas"}}]}}: {error}'
        ) from None
    seen: set[TopicPartition] = set()
    for one in plan.partitions:
        where = TopicPartition(one.topic, one.partition)
        if where in seen:
            raise InvalidReplicaAssignmentError(f"The plan has {one.topic}-{one.partition} twice.")
        seen.add(where)
        if not one.replicas or len(set(one.replicas)) < len(one.replicas) or min(one.replicas) < 0:
            raise InvalidReplicaAssignmentError(
                f"The plan gives {one.topic}-{one.partition} the replicas {list(one.replicas)}: name distinct ids of "
                "brokers, one at least."
            )
    return plan


def require_possible(plan: ReassignmentPlan, states: Iterable[PartitionReplicas], brokers: Collection[int]) -> None:
    """Raise InvalidReplicaAssignmentError for a partition that does not exist, or a new broker that is not running."""
    by_name = {TopicPartition(state.topic, state.partition): state for state in states}
    for one in plan.partitions:
        state = by_name.get(TopicPartition(one.topic, one.partition))
        if state is None:
            raise InvalidReplicaAssignmentError(
                f"The plan has {one.topic}-{one.partition}, and there is no such partition. Nothing is moved."
            )
        missing = sorted(set(one.replicas) - set(settled_replicas(state)) - set(brokers))
        if missing:
            raise InvalidReplicaAssignmentError(
                f"The plan moves {one.topic}-{one.partition} to brokers {missing}, and there are {sorted(brokers)}: "
                "start them, or make another plan. Nothing is moved."
            )


def settled_replicas(state: PartitionReplicas) -> tuple[int, ...]:
    """Return the replicas after the reassignment under way; the preferred leader first."""
    return tuple(broker for broker in state.replicas if broker not in state.removing_replicas)


def plan_of(states: Iterable[PartitionReplicas]) -> ReassignmentPlan:
    """Return the plan that restores ``states``."""
    return ReassignmentPlan(
        tuple(PlannedPartition(state.topic, state.partition, _former_replicas(state)) for state in states)
    )


def _former_replicas(state: PartitionReplicas) -> tuple[int, ...]:
    return tuple(broker for broker in state.replicas if broker not in state.adding_replicas)


def progress(one: PlannedPartition, state: PartitionReplicas | None) -> Progress:
    """Return the progress of a partition. A ``state`` of None means that it does not exist."""
    if state is None or settled_replicas(state) != one.replicas:
        return Progress.ELSEWHERE
    return Progress.IN_PROGRESS if state.adding_replicas or state.removing_replicas else Progress.COMPLETE


# ---- making a plan ---------------------------------------------------------------------------------------------------


def generate(
    states: Sequence[PartitionReplicas],
    topics: Collection[str] | None,
    racks: Mapping[int, str | None],
    replication_factor: int | None = None,
) -> ReassignmentPlan:
    """Return a plan that spreads the partitions of ``topics`` (None: all) over the brokers of ``racks``, moving few
    replicas.

    Replicas on other brokers go to the brokers with the fewest, and on as many racks as there are replicas. Then the
    brokers with the most hand over to those with the fewest, and preferred leaders are evened out. Partitions that stay
    are not in the plan. ``states`` are all partitions of the cluster; ``racks`` is by broker, and None is a separate
    rack. Raises InvalidReplicationFactorError if a partition would have more replicas than there are brokers, or none;
    UnknownTopicError.
    """
    if unknown := sorted(set(topics or ()) - {state.topic for state in states}):
        raise UnknownTopicError(f"Topic {unknown[0]!r} not found.")
    chosen = [state for state in states if topics is None or state.topic in topics]
    for state in chosen:
        count = len(settled_replicas(state)) if replication_factor is None else replication_factor
        if not 1 <= count <= len(racks):
            raise InvalidReplicationFactorError(
                f"{state.topic}-{state.partition} is to have {count} replicas, and the plan has {len(racks)} brokers: "
                "name more brokers, or a smaller replication factor."
            )
    spread = _Spread(racks)
    for state in states:
        if topics is not None and state.topic not in topics:
            spread.count(settled_replicas(state))
    moving = [_Moving(state) for state in chosen]
    for one in moving:
        one.replicas = [broker for broker in one.before if broker in racks]
        spread.count(one.replicas)
    for one in moving:
        spread.resize(one, len(one.before) if replication_factor is None else replication_factor)
    spread.even_out_replicas(moving)
    spread.even_out_leaders(moving)
    return ReassignmentPlan(
        tuple(
            PlannedPartition(one.topic, one.partition, tuple(one.replicas))
            for one in moving
            if tuple(one.replicas) != one.before
        )
    )


class _Moving:
    def __init__(self, state: PartitionReplicas) -> None:
        self.topic, self.partition = state.topic, state.partition
        self.before = settled_replicas(state)
        self.replicas: list[int] = []


class _Spread:
    """The number of replicas and of preferred leaders on each broker."""

    def __init__(self, racks: Mapping[int, str | None]) -> None:
        self._rack = {broker: broker if rack is None else rack for broker, rack in racks.items()}
        self._replicas: Counter[int] = Counter()
        self._leaders: Counter[int] = Counter()

    def count(self, replicas: Sequence[int]) -> None:
        self._replicas.update(replicas)
        self._leaders.update(replicas[:1])

    def _doubled(self, replicas: Sequence[int]) -> int:
        """Return how many replicas share a rack with one before them."""
        return len(replicas) - len({self._rack[broker] for broker in replicas})

    def resize(self, one: _Moving, count: int) -> None:
        """Remove all but ``count`` replicas from full brokers, or add some on empty ones; distinct racks come first."""
        self._leaders.subtract(one.replicas[:1])
        while len(one.replicas) > count:
            gone = max(one.replicas[1:], key=lambda b: (-self._doubled(_without(one.replicas, b)), self._replicas[b]))
            one.replicas.remove(gone)
            self._replicas[gone] -= 1
        while len(one.replicas) < count:
            free = [broker for broker in self._rack if broker not in one.replicas]
            new = min(free, key=lambda b: (self._doubled([*one.replicas, b]), self._replicas[b], b))
            one.replicas.append(new)
            self._replicas[new] += 1
        self._leaders[one.replicas[0]] += 1

    def even_out_replicas(self, moving: Sequence[_Moving]) -> None:
        """Move replicas from full to empty brokers. Each move makes a difference smaller, so this ends."""
        by_broker: dict[int, dict[int, _Moving]] = {broker: {} for broker in self._rack}
        for at, one in enumerate(moving):
            for broker in one.replicas:
                by_broker[broker][at] = one
        while any(
            self._replicas[fullest] - self._replicas[emptiest] > 1 and self._hand_over(fullest, emptiest, by_broker)
            for fullest, emptiest in itertools.product(self._by_load(reverse=True), self._by_load())
        ):
            pass

    def _by_load(self, *, reverse: bool = False) -> list[int]:
        return sorted(self._rack, key=lambda broker: self._replicas[broker], reverse=reverse)

    def _hand_over(self, giver: int, taker: int, by_broker: dict[int, dict[int, _Moving]]) -> bool:
        for at, one in by_broker[giver].items():
            if at in by_broker[taker]:
                continue
            replicas = [taker if broker == giver else broker for broker in one.replicas]
            if self._doubled(replicas) > self._doubled(one.replicas):
                continue
            if one.replicas[0] == giver:
                self._leaders.update({giver: -1, taker: 1})
            self._replicas.update({giver: -1, taker: 1})
            one.replicas = replicas
            by_broker[taker][at] = by_broker[giver].pop(at)
            return True
        return False

    def even_out_leaders(self, moving: Sequence[_Moving]) -> None:
        """Even out the preferred leaders. Changing a preferred leader moves no records."""
        is_changed = True
        while is_changed:
            is_changed = False
            for one in moving:
                least = min(one.replicas, key=lambda broker: self._leaders[broker])
                if self._leaders[one.replicas[0]] - self._leaders[least] > 1:
                    self._leaders.update({one.replicas[0]: -1, least: 1})
                    one.replicas = [least, *_without(one.replicas, least)]
                    is_changed = True


def _without(replicas: Sequence[int], gone: int) -> list[int]:
    return [broker for broker in replicas if broker != gone]
