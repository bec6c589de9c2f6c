"""The controller's decisions, as one pure function from ZooKeeper's state to the topic documents to write.

``reconcile`` takes each partition through the steps below in their order. Invariants, of each step and of all together:
the leader epoch rises with every change of leader, and when a replica is removed (C1). A clean leader is a live member
of the ISR. A replica joins an ISR only by an unclean election, which makes the partition ``recovering`` (C11) and is
the one way out of an ISR without a member (C12). Idempotent: after the writes nothing is left to write.
"""

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from logstore.cluster.assignment import Load, assign
from logstore.cluster.cluster_state import ADOPT, ElectionType, KnownTopic
from logstore.cluster.view import ClusterView, TopicNode
from logstore.cluster.znodes import NO_LEADER, PartitionRegistration, TopicRegistration, topic_path
from logstore.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidReplicationFactorError,
    PreferredLeaderNotAvailableError,
    UnknownPartitionError,
    UnknownTopicError,
)

#: The version of a document that is to be created.
NEW: Final = -1
#: Kafka's `leader.imbalance.per.broker.percentage`.
IMBALANCE_PERCENTAGE: Final = 10


class Preferred(enum.Enum):
    """The partitions that go back to their preferred leaders."""

    NONE = "none"
    #: The partitions whose preferred broker leads too few of those that prefer it.
    IMBALANCED = "imbalanced"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Policy:
    """An operator's decisions. ``unclean`` names topics whose partitions may lose records to get a leader, besides the
    topics whose configuration allows it.
    """

    default_replication_factor: int = 1
    preferred: Preferred = Preferred.NONE
    imbalance_percentage: int = IMBALANCE_PERCENTAGE
    unclean: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class TopicWrite:
    """A compare-and-set: ``document`` replaces the one of ``version`` (NEW: there is none). With None it is removed."""

    topic: str
    document: TopicRegistration | None
    version: int


@dataclass(frozen=True, slots=True)
class Decisions:
    writes: tuple[TopicWrite, ...]
    #: By topic, the reason why its table got no document, or fewer replicas than it should have.
    refused: Mapping[str, str] = field(default_factory=dict)


def reconcile(
    view: ClusterView, tables: Mapping[UUID, KnownTopic], policy: Policy, only: Collection[str] | None = None
) -> Decisions:
    """Return the controller's writes when ZooKeeper shows ``view`` and the data directory has ``tables``.

    ``only`` has the changed topics if nothing else has changed; None checks all.
    """
    by_name = {table.name: table for table in tables.values()}
    refused: dict[str, str] = {}
    writes = []
    placing = _Placing(view, policy)
    preferring = _preferring(view, policy)
    for name in sorted(view.topics.keys() if only is None else view.topics.keys() & only):
        if topic_path(name) in view.damaged:
            continue
        node = view.topics[name]
        document = node.document
        if document.deleting:
            if document.topic_id not in tables:
                writes.append(TopicWrite(name, None, node.version))
            continue
        table = by_name.get(name)
        unclean = name in policy.unclean or (table is not None and table.unclean)
        rows = tuple(
            _decide(_Replicas(view, name, partition), row, preferring, unclean=unclean)
            for partition, row in enumerate(document.partitions)
        )
        if table is not None:
            if table.topic_id != document.topic_id:
                refused[name] = f"ZooKeeper has another topic of this name (id {document.topic_id})"
            else:
                rows += placing.rows(table, rows, refused)
        changed = replace(document, partitions=rows)
        if changed != document:
            writes.append(TopicWrite(name, changed, node.version))
    for name in sorted((by_name.keys() if only is None else by_name.keys() & only) - view.topics.keys()):
        if topic_path(name) in view.damaged:
            continue
        table = by_name[name]
        if table.has_records:
            refused[name] = f"ZooKeeper does not know its table, which has records: {ADOPT.format(name)} takes it over"
        elif rows := placing.rows(table, (), refused):
            writes.append(TopicWrite(name, TopicRegistration(table.topic_id, 0, False, rows), NEW))
    return Decisions(tuple(writes), refused)


@dataclass(frozen=True, slots=True)
class _Replicas:
    """The replicas that could lead a partition now."""

    view: ClusterView
    topic: str
    partition: int

    def is_live(self, broker_id: int) -> bool:
        return self.view.is_replica_live(broker_id, self.topic, self.partition)

    def is_running(self, broker_id: int) -> bool:
        return self.is_live(broker_id) and self.view.brokers[broker_id].is_running


Prefers = Callable[[int], bool]


def _decide(
    replicas: _Replicas, row: PartitionRegistration, prefers: Prefers, *, unclean: bool
) -> PartitionRegistration:
    before = row
    row = replace_dead_leader(replicas, row)
    row = drop_dead_followers(replicas, row)
    if unclean:
        row = elect_uncleanly(replicas, row)
    row = hand_over(replicas, row)
    row = finish_reassignment(replicas, row)
    row = elect_preferred(replicas, row, prefers)
    # A leader that one step chose and a later step replaced never led: one write is one change of leader.
    return replace(row, leader_epoch=min(row.leader_epoch, before.leader_epoch + 1))


def _lead(row: PartitionRegistration, leader: int, isr: Iterable[int]) -> PartitionRegistration:
    return replace(row, leader=leader, leader_epoch=row.leader_epoch + 1, isr=tuple(isr))


def replace_dead_leader(replicas: _Replicas, row: PartitionRegistration) -> PartitionRegistration:
    """Let the first live replica of the ISR lead (step 1), a stopping one only if there is no other. Without a live one
    the last ISR is kept: only its members have all acknowledged records.
    """
    if row.leader != NO_LEADER and replicas.is_live(row.leader):
        return row
    live = [one for one in row.replicas if one in row.isr and replicas.is_live(one)]
    if not live:
        return row if row.leader == NO_LEADER else _lead(row, NO_LEADER, row.isr)
    leader = min(live, key=lambda one: not replicas.is_running(one))
    return _lead(row, leader, (one for one in row.isr if one in live))


def drop_dead_followers(replicas: _Replicas, row: PartitionRegistration) -> PartitionRegistration:
    """Remove dead followers from the ISR at once (step 2): no append waits for them. The leader's epoch stays."""
    if row.leader == NO_LEADER:
        return row
    return replace(row, isr=tuple(one for one in row.isr if replicas.is_live(one)))


def elect_uncleanly(replicas: _Replicas, row: PartitionRegistration) -> PartitionRegistration:
    """Let the first live replica lead, in sync or not (step 3). Records may be lost, so it recovers first (C11)."""
    live = [one for one in row.replicas if replicas.is_live(one)]
    if row.leader != NO_LEADER or not live:
        return row
    leader = min(live, key=lambda one: not replicas.is_running(one))
    return replace(_lead(row, leader, (leader,)), recovering=True)


def hand_over(replicas: _Replicas, row: PartitionRegistration) -> PartitionRegistration:
    """Hand over from a leader that is shutting down to a running member of the ISR, if there is one (step 4)."""
    if row.leader == NO_LEADER or row.recovering or replicas.is_running(row.leader):
        return row
    others = [one for one in row.replicas if one in row.isr and replicas.is_running(one)]
    return _lead(row, others[0], row.isr) if others else row


def finish_reassignment(replicas: _Replicas, row: PartitionRegistration) -> PartitionRegistration:
    """Remove the other replicas once the target is in sync (step 5), in a new epoch; a leader among them hands over."""
    target, leader = row.target, row.leader
    if not (row.adding or row.removing) or leader == NO_LEADER or not set(target).issubset(row.isr):
        return row
    if leader not in target:
        if row.recovering:
            return row
        live = [one for one in target if replicas.is_live(one)]
        leader = min(live, key=lambda one: not replicas.is_running(one))
    if row.removing:
        row = _lead(row, leader, (one for one in row.isr if one in target))
    return replace(row, replicas=target, adding=(), removing=())


def elect_preferred(replicas: _Replicas, row: PartitionRegistration, prefers: Prefers) -> PartitionRegistration:
    """Let the first replica lead again if it is in sync and running (step 6)."""
    first = row.target[0]
    if row.leader in {NO_LEADER, first} or row.recovering or first not in row.isr:
        return row
    return _lead(row, first, row.isr) if prefers(first) and replicas.is_running(first) else row


def elect(view: ClusterView, topic: str, partition: int, election: ElectionType) -> PartitionRegistration:
    """Return the row after an election that a client asks for (KIP-460).

    Raises UnknownTopicError, UnknownPartitionError, ElectionNotNeededError, PreferredLeaderNotAvailableError and
    EligibleLeadersNotAvailableError.
    """
    node = view.topics.get(topic)
    if node is None or node.document.deleting:
        raise UnknownTopicError(f"Topic {topic!r} not found.")
    if not 0 <= partition < len(node.document.partitions):
        raise UnknownPartitionError(f"Topic {topic!r} has no partition {partition}.")
    row = node.document.partitions[partition]
    replicas = _Replicas(view, topic, partition)
    what = f"the partition {topic}-{partition}"
    if election is ElectionType.UNCLEAN:
        if row.leader != NO_LEADER:
            raise ElectionNotNeededError(
                f"Broker {row.leader} leads {what}: only one without a leader gets another one."
            )
        elected = elect_uncleanly(replicas, row)
        if elected == row:
            raise EligibleLeadersNotAvailableError(
                f"None of the replicas {list(row.replicas)} of {what} is there: start one of these brokers."
            )
        return elected
    first = row.target[0]
    if row.leader == first:
        raise ElectionNotNeededError(f"Broker {first} leads {what} already, as the first of its replicas.")
    elected = elect_preferred(replicas, row, lambda _: True)
    if elected == row:
        why = "is not there: start it"
        if replicas.is_running(first):
            why = "is not in sync: wait until it is" if row.leader != NO_LEADER else "is not in sync, and nobody leads"
        raise PreferredLeaderNotAvailableError(f"Broker {first}, the first replica of {what}, {why}.")
    return elected


def _preferring(view: ClusterView, policy: Policy) -> Prefers:
    if policy.preferred is not Preferred.IMBALANCED:
        return lambda _: policy.preferred is Preferred.ALL
    preferred: Counter[int] = Counter()
    elsewhere: Counter[int] = Counter()
    for node in view.topics.values():
        for row in node.document.partitions:
            preferred[row.target[0]] += 1
            elsewhere[row.target[0]] += row.leader != row.target[0]
    return lambda broker: 100 * elsewhere[broker] > policy.imbalance_percentage * preferred[broker]


class _Placing:
    """Makes rows for partitions that tables have and documents lack."""

    def __init__(self, view: ClusterView, policy: Policy) -> None:
        self._view = view
        self._policy = policy
        self._load: Load | None = None

    def rows(
        self, table: KnownTopic, known: tuple[PartitionRegistration, ...], refused: dict[str, str]
    ) -> tuple[PartitionRegistration, ...]:
        epochs = table.leader_epochs[len(known) :]
        if not epochs:
            return ()
        given = table.assignments[len(known) :] + ((),) * len(epochs)
        open_ones = sum(not replicas for replicas in given[: len(epochs)])
        racks = {one: broker.registration.rack for one, broker in self._view.brokers.items() if broker.is_running}
        asked = len(known[0].target) if known else table.replication_factor or self._policy.default_replication_factor
        if self._load is None:
            self._load = Load.of(row.target for node in self._view.topics.values() for row in node.document.partitions)
        for replicas in filter(None, given):
            self._load.add(replicas)
        try:
            found = iter(assign(open_ones, asked, racks, self._load) if open_ones else ())
        except InvalidReplicationFactorError as error:
            refused[table.name] = error.message
            return ()
        # No replica has a record of them, so all are in sync. The first epoch is above those of the table.
        return tuple(
            PartitionRegistration(replicas[0], max(epoch, 0) + 1, replicas, replicas)
            for epoch, replicas in (
                (epoch, chosen or next(found)) for epoch, chosen in zip(epochs, given, strict=False)
            )
        )


def apply(view: ClusterView, writes: Iterable[TopicWrite]) -> ClusterView:
    """Return the view after the writes."""
    topics = dict(view.topics)
    for write in writes:
        if write.document is None:
            del topics[write.topic]
        else:
            topics[write.topic] = TopicNode(write.document, write.version + 1)
    return ClusterView(view.controller, view.brokers, topics, view.damaged, view.registrations)
