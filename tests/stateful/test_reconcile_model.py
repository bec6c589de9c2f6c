"""The controller's decisions and the leaders' writes against a small model of replicas, on random schedules.

The decisions are those of ``reconcile`` and the leaders' rules those of ``alter_partition_manager``; compare-and-set,
sessions
and logs are modelled. A log is the number of a replica's records; when another replica becomes leader, records that
only
the former leader has are truncated. Each rule, broken on purpose, makes a schedule fail.
"""

import random
from collections.abc import Callable
from uuid import UUID

import pytest
from msgspec.structs import replace

from logstore.cluster import reconcile as rules
from logstore.cluster.alter_partition_manager import _Change
from logstore.cluster.assignment import begin_reassignment
from logstore.cluster.reconcile import Policy, Preferred, apply, reconcile
from logstore.cluster.view import ClusterView, LiveBroker, TopicNode
from logstore.cluster.znodes import NO_LEADER, BrokerRegistration, PartitionRegistration, TopicRegistration
from logstore.errors import LogStoreError
from tests.support.examples import examples

TOPIC = UUID(int=1)
BROKERS = (1, 2, 3, 4)
STEPS = 150


class BrokenError(AssertionError):
    pass


class Cluster:
    """One partition with three replicas on four brokers, and any number of controllers, of which only the newest is
    active.
    """

    def __init__(self, seed: int, *, unclean: bool, broken: str = "") -> None:
        self.random = random.Random(seed)
        self.policy = Policy(unclean={"t"} if unclean else ())
        self.broken = broken
        self.epochs = dict.fromkeys(BROKERS, 0)
        self.record_versions = dict.fromkeys(BROKERS, 0)
        first = PartitionRegistration(1, 1, (1, 2, 3), (1, 2, 3))
        self.view = ClusterView(None, {}, {"t": TopicNode(TopicRegistration(TOPIC, 0, False, (first,)), 0)})
        self.log = dict.fromkeys(BROKERS, 0)
        self.acknowledged = 0
        self.lossy = self.must_recover = False
        self.leaders = {1: 1}
        #: For each broker, what it as leader knows of followers: their log end, and the registration epoch of their
        #: last fetch.
        self.fetched: dict[int, dict[int, tuple[int, int]]] = {one: {} for one in BROKERS}
        #: Decisions of leaders that ZooKeeper has not received yet.
        self.deciding: list[tuple[int, _Change]] = []
        #: Controllers, oldest first: the epoch and the view of each.
        self.controllers: list[tuple[int, ClusterView]] = []
        for one in BROKERS:
            self.register(one)

    # ---- ZooKeeper ----

    @property
    def row(self) -> PartitionRegistration:
        return self.view.topics["t"].document.partitions[0]

    def write(self, row: PartitionRegistration) -> None:
        before = self.row
        if row == before:
            return
        gone = set(before.replicas) - set(row.replicas)
        if (row.leader != before.leader or bool(gone)) != (row.leader_epoch > before.leader_epoch):
            raise BrokenError(f"C1: epoch {before.leader_epoch} of {before.leader}, {row.leader_epoch} of {row.leader}")
        if row.leader != NO_LEADER and self.leaders.setdefault(row.leader_epoch, row.leader) != row.leader:
            raise BrokenError("C1: two leaders in one epoch")
        unclean = not set(row.isr) <= set(before.isr) and row.leader != before.leader
        if unclean and not self.policy.unclean:
            raise BrokenError("an unclean election that nobody allowed")
        self.lossy |= unclean
        self.must_recover |= unclean
        if row.recovering != self.must_recover:
            raise BrokenError("C11: recovery was forgotten")
        node = self.view.topics["t"]
        document = replace(node.document, partitions=(row,))
        self.view = ClusterView(None, self.view.brokers, {"t": TopicNode(document, node.version + 1)})
        for one in gone:
            self.log[one] = 0
        if row.leader != NO_LEADER and row.leader_epoch > before.leader_epoch:
            self.lead(row)

    def lead(self, row: PartitionRegistration) -> None:
        if self.log[row.leader] < self.acknowledged:
            if not self.lossy:
                raise BrokenError(f"{self.acknowledged} acknowledged, and the new leader {row.leader} has fewer")
            self.acknowledged = self.log[row.leader]
        self.fetched[row.leader] = {}

    # ---- brokers ----

    def register(self, one: int, state: str = "running") -> None:
        self.epochs[one] = max(self.epochs.values()) + 1
        found = BrokerRegistration("", "", None, state, self.record_versions[one])
        brokers = {**self.view.brokers, one: LiveBroker(found, self.epochs[one])}
        self.view = ClusterView(None, brokers, self.view.topics)

    def session_ends(self, one: int) -> None:
        brokers = {broker: live for broker, live in self.view.brokers.items() if broker != one}
        self.view = ClusterView(None, brokers, self.view.topics)

    def start(self, one: int) -> None:
        """Start a broker, as ``Registration.begin`` does."""
        lost = self.random.random() < 0.3
        row = self.row
        if row.leader == one:
            row = replace(row, leader=NO_LEADER, leader_epoch=row.leader_epoch + 1)
        if lost:
            self.log[one] = 0
            if self.broken != "lost disk stays":
                row = replace(row, isr=tuple(other for other in row.isr if other != one))
        self.record_versions[one] += 1
        self.write(row)
        self.register(one)

    def stop_or_start(self, one: int) -> None:
        broker = self.view.brokers.get(one)
        if broker is None:
            self.start(one)
        elif self.random.random() < 0.3:
            self.register(one, "shutting_down")
        else:
            self.session_ends(one)

    # ---- replication ----

    def leads(self, one: int) -> bool:
        return self.row.leader == one != NO_LEADER and not self.row.recovering

    def append(self, one: int) -> None:
        if self.leads(one):
            self.log[one] += 1

    def fetch(self, one: int) -> None:
        row = self.row
        if one in row.replicas and one in self.view.brokers and self.leads(row.leader) and one != row.leader:
            self.log[one] = self.log[row.leader]
            self.fetched[row.leader][one] = (self.log[one], self.view.brokers[one].epoch)
            self.acknowledge(row.leader)

    def acknowledge(self, leader: int) -> None:
        """Acknowledge what all replicas of the committed and of the proposed ISR have (C3)."""
        proposed = {one for by, change in self.deciding if by == leader for one in change.isr}
        have = [self.fetched[leader].get(one, (0, 0))[0] for one in {*self.row.isr, *proposed} - {leader}]
        self.acknowledged = max(self.acknowledged, min([self.log[leader], *have]))

    def decide_isr(self, one: int) -> None:
        row = self.row
        if not self.leads(one) or any(by == one for by, _ in self.deciding):
            return
        known = self.fetched[one]
        joining = [
            other
            for other in row.replicas
            if other not in row.isr
            and (known.get(other, (-1, 0))[0] >= self.acknowledged or self.broken == "anyone joins")
        ]
        staying = [other for other in row.isr if other == one or self.random.random() < 0.7]
        epochs = {other: known[other][1] for other in joining if other in known}
        if self.broken == "anyone joins":
            epochs = {other: live.epoch for other, live in self.view.brokers.items()}
        change = _Change(TOPIC, 0, row.state, (*staying, *joining), epochs, False, None)
        self.deciding.append((one, change))

    def write_isr(self) -> None:
        if not self.deciding:
            return
        leader, change = self.deciding.pop(self.random.randrange(len(self.deciding)))
        if self.broken == "writes over any state":
            change = _Change(TOPIC, 0, self.row.state, change.isr, change.broker_epochs, False, None)
            leader = self.row.leader
        if self.broken == "registrations are not compared":
            epochs = {one: live.epoch for one, live in self.view.brokers.items()}
            change = _Change(TOPIC, 0, change.seen, change.isr, epochs, False, None)
        try:
            self.write(change.row(self.view, self.view.topics["t"].document, leader))
        except LogStoreError:
            return
        if self.row.leader != NO_LEADER:
            self.acknowledge(self.row.leader)

    def recover(self, one: int) -> None:
        if self.row.leader == one and self.row.recovering:
            self.must_recover = False
            self.write(replace(self.row, recovering=False))

    # ---- controllers ----

    def controller_learns(self) -> None:
        if not self.controllers or self.random.random() < 0.2:
            self.controllers.append((len(self.controllers), self.view))
        at = self.random.randrange(len(self.controllers))
        self.controllers[at] = (at, self.view)

    def controller_decides(self) -> None:
        if not self.controllers:
            return
        epoch, view = self.random.choice(self.controllers)
        preferred = self.random.choice([Preferred.NONE, Preferred.ALL])
        policy = Policy(preferred=preferred, unclean=self.policy.unclean)
        for write in reconcile(view, {}, policy).writes:
            if epoch != self.controllers[-1][0] and self.broken != "epochs of controllers are not checked":
                return
            if epoch != self.controllers[-1][0]:
                raise BrokenError("C2: a controller that was replaced wrote")
            if write.version != self.view.topics["t"].version and self.broken != "versions are not compared":
                return
            row = apply(view, [write]).topics["t"].document.partitions[0]
            if self.row.isr and not row.isr:
                raise BrokenError("C12: an ISR was emptied, and no disk was lost")
            self.write(row)

    def reassign(self) -> None:
        self.write(begin_reassignment(self.row, self.random.sample(BROKERS, 3)))

    # ---- schedules ----

    def step(self) -> None:
        one = self.random.choice(BROKERS)
        what: list[tuple[Callable[[], None], int]] = [
            (lambda: self.append(one), 20),
            (lambda: self.fetch(one), 30),
            (lambda: self.decide_isr(self.row.leader if self.row.leader in BROKERS else one), 12),
            (self.write_isr, 12),
            (self.controller_learns, 12),
            (self.controller_decides, 14),
            (lambda: self.stop_or_start(one), 8),
            (lambda: self.recover(one), 4),
            (self.reassign, 2),
        ]
        self.random.choices([act for act, _ in what], [weight for _, weight in what])[0]()

    def heal(self) -> None:
        """Start all brokers: the partition must get a leader, and all replicas must join its ISR."""
        for one in BROKERS:
            if one not in self.view.brokers:
                self.start(one)
            self.register(one)
        self.deciding.clear()
        for _ in range(10):
            self.controllers = [(0, self.view)]
            self.controller_decides()
            self.controllers = [(0, self.view)]
            for one in BROKERS:
                self.recover(one)
                self.fetch(one)
            if self.row.leader != NO_LEADER:
                self.random.random = lambda: 0.5  # no replica is dropped
                self.decide_isr(self.row.leader)
                self.write_isr()
        row = self.row
        if row.leader == NO_LEADER and (row.isr or self.policy.unclean):
            raise BrokenError(f"no leader, with all brokers there: {row}")
        if row.leader != NO_LEADER and set(row.isr) != set(row.replicas):
            raise BrokenError(f"not all replicas are in sync: {row}")
        if row.leader != NO_LEADER and (row.adding or row.removing):
            raise BrokenError(f"a reassignment never ends: {row}")


def run(seed: int, *, unclean: bool, broken: str = "") -> None:
    cluster = Cluster(seed, unclean=unclean, broken=broken)
    for _ in range(STEPS):
        cluster.step()
    cluster.heal()


@pytest.mark.parametrize("unclean", [False, True])
def test_no_schedule_breaks_a_rule(unclean):
    for seed in range(examples(600)):
        try:
            run(seed, unclean=unclean)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, unclean {unclean}: {error}") from error


def same_epoch(row, leader, isr):
    return replace(row, leader=leader, isr=tuple(isr))


def forgetting(row, leader, isr):
    return replace(row, leader=leader, leader_epoch=row.leader_epoch + 1, isr=tuple(isr), recovering=False)


def any_live_leader(replicas, row):
    if row.leader != NO_LEADER and replicas.is_live(row.leader):
        return row
    live = [one for one in row.replicas if replicas.is_live(one)]
    return rules._lead(row, live[0], {live[0], *row.isr} & set(live)) if live else row


def emptied(replicas, row):
    if row.leader != NO_LEADER and not any(replicas.is_live(one) for one in row.isr):
        return rules._lead(row, NO_LEADER, ())
    return OF_RULES["replace_dead_leader"](replicas, row)


def recovered(replicas, row):
    return replace(OF_RULES["elect_uncleanly"](replicas, row), recovering=False)


def finished_early(replicas, row):
    if not (row.adding or row.removing) or row.leader == NO_LEADER:
        return row
    target = row.target
    isr = tuple(dict.fromkeys((target[0], *(one for one in row.isr if one in target))))
    if row.leader != target[0]:
        row = rules._lead(row, target[0], (*row.isr, *(one for one in isr if one not in row.isr)))
    return replace(row, replicas=target, isr=isr, adding=(), removing=())


def removed_in_the_same_epoch(replicas, row):
    finished = OF_RULES["finish_reassignment"](replicas, row)
    return finished if finished.leader != row.leader else replace(finished, leader_epoch=row.leader_epoch)


def preferred_out_of_sync(replicas, row, prefers):
    first = row.target[0]
    if row.leader in {NO_LEADER, first} or not prefers(first) or not replicas.is_running(first):
        return row
    return rules._lead(row, first, dict.fromkeys((first, *row.isr)))


def unchanged(replicas, row, *_):
    return row


OF_RULES = {name: getattr(rules, name) for name in ("replace_dead_leader", "elect_uncleanly", "finish_reassignment")}

PLANTED = {
    "C1: an election without a new epoch": ("_lead", same_epoch, ""),
    "C1: a leader writes over any state": (None, None, "writes over any state"),
    "C1: a replica goes in the same epoch": ("finish_reassignment", removed_in_the_same_epoch, ""),
    "C1: versions are not compared": (None, None, "versions are not compared"),
    "C2: the epoch of a controller is not checked": (None, None, "epochs of controllers are not checked"),
    "C4: a replica joins wherever it is": (None, None, "anyone joins"),
    "C11: an unclean leader does not recover": ("elect_uncleanly", recovered, ""),
    "C11: the next leader need not recover": ("_lead", forgetting, ""),
    "C12: a broker that has lost its disk stays in its ISRs": (None, None, "lost disk stays"),
    "C12: a broker that was started again joins for what it was": (None, None, "registrations are not compared"),
    "any live replica leads": ("replace_dead_leader", any_live_leader, ""),
    "the last ISR is not kept": ("replace_dead_leader", emptied, ""),
    "dead leaders stay": ("replace_dead_leader", unchanged, ""),
    "reassignments end early": ("finish_reassignment", finished_early, ""),
    "reassignments do not end": ("finish_reassignment", unchanged, ""),
    "preferred leaders need not be in sync": ("elect_preferred", preferred_out_of_sync, ""),
    "unclean elections do not happen": ("elect_uncleanly", unchanged, ""),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name, monkeypatch):
    step, instead, broken = PLANTED[name]
    if step is not None:
        monkeypatch.setattr(rules, step, instead)
    for seed in range(1_500):
        for unclean in (False, True):
            try:
                run(seed, unclean=unclean, broken=broken)
            except (AssertionError, ValueError):
                return
    pytest.fail(f"no schedule notices: {name}")
