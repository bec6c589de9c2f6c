"""Simulated clients of one group, at random, against a small reference of what a group promises.

``Simulation(seed, kind).run()`` is one schedule: steps of chaos, then calm until the group has settled, then quiet. The
reference does not look inside the state machine, but at responses, and at what the clients themselves hold. It raises
AssertionError if a promise is broken.

In a group of both kinds of clients no partition is held twice by members of a consumer group, whatever protocol they
use. The members of a classic group count from the moment when it becomes a consumer group, if they know its generation.
"""

import random
import uuid
from typing import Any

from consumer_offsets.groups.events import (
    CommitOffsets,
    ConsumerGroupHeartbeat,
    Event,
    Heartbeat,
    JoinGroup,
    JoinProtocol,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
    TimerFired,
    TopicDescription,
    TopicIdPartition,
    TopicsChanged,
)
from consumer_offsets.groups.group_config import GroupConfig
from logstore import errors
from logstore.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.support.group_driver import GroupDriver, topic_id

SESSION_MS = 10_000
HEARTBEAT_MS = 3_000
#: Long enough for anything that a group waits for: sessions, rebalance timeouts, ids that are never used.
CALM_ROUNDS = 80
Held = set[tuple[uuid.UUID, int]]


class Client:
    """One process; ``held`` are the partitions that it would read from."""

    def __init__(self, world: "Simulation", name: str, instance_id: str | None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.topics = frozenset(world.rng.choice([{"t"}, {"t", "u"}, {"u"}]))
        self.held: Held = set()
        self.is_paused = False
        self.is_gone = False
        #: The time of the last request from it that the coordinator accepted.
        self.contact_ms = world.now_ms
        self.rebalance_timeout_ms = world.rng.choice([8_000, 20_000])

    def step(self) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Lose the session by the client's own clock."""

    def has_rival(self) -> bool:
        """Return whether another process has, or had, its instance id."""
        return any(each is not self and each.instance_id == self.instance_id for each in self.world.clients)

    @property
    def is_judged(self) -> bool:
        """True if nobody else may hold what it holds. A process whose instance id a classic client takes learns that
        later.
        """
        return self.instance_id is None or not any(
            each is not self and each.instance_id == self.instance_id and isinstance(each, ClassicClient)
            for each in self.world.clients
        )

    def on_restart(self) -> None:
        """Lose the connection; sessions begin again."""
        self.has_whole_session()

    def look(self) -> None:
        """Look at the state after every event."""

    def repeat(self) -> None:
        """Send an old request once more."""

    def crash(self) -> None:
        self.held = set()
        self.is_gone = True

    def has_whole_session(self) -> None:
        """Note that the coordinator has begun its session again, unless the session was over."""
        if self.world.now_ms < self.contact_ms + SESSION_MS:
            self.contact_ms = self.world.now_ms

    @property
    def session_is_over(self) -> bool:
        return self.world.now_ms >= self.contact_ms + SESSION_MS


class ClassicClient(Client):
    """A client that gives up all partitions before it joins again (the eager protocol)."""

    is_cooperative = False

    def __init__(self, world: "Simulation", name: str, instance_id: str | None) -> None:
        super().__init__(world, name, instance_id)
        self.member_id = ""
        self.generation = -1
        self.phase = "unjoined"
        self.waits_for: int | None = None
        #: Its last request that may be parked: the client still waits, or has given up without the coordinator knowing.
        self.parked: int | None = None
        self.to_assign: tuple[Any, ...] | None = None
        self.assignors = world.rng.choice([("a",), ("a", "b"), ("b", "a")])
        self.version = world.rng.choice([1, 3]) if self.is_cooperative else world.rng.choice([0, 1, 3])
        #: For a member of a consumer group: the time by which it must join or sync, and whether it has partitions as
        #: one.
        self.due_ms: int | None = None
        self.is_in_consumer_group = False

    @property
    def is_judged(self) -> bool:
        """True if nobody else may hold what it holds. In a classic group, or when another process takes its instance
        id, it learns of its loss later.
        """
        return self.is_in_consumer_group and not self.has_rival()

    @property
    def protocols(self) -> tuple[JoinProtocol, ...]:
        """The protocols with the partitions that it still has, as Kafka's consumer sends them."""
        owned = tuple(
            (name, partition)
            for name, description in sorted(self.world.topics.items())
            for topic_id, partition in sorted(self.held)
            if topic_id == description.topic_id
        )
        subscription = Subscription(tuple(sorted(self.topics)), None, owned, self.generation)
        metadata = encode_subscription(subscription, self.version)
        return tuple(JoinProtocol(each, metadata) for each in self.assignors)

    @property
    def session_is_over(self) -> bool:
        if self.due_ms is not None and self.world.now_ms >= self.due_ms:
            return True
        return self.parked is None and super().session_is_over

    def look(self) -> None:
        """Note a whole session of a classic group's member, once its parked request is answered."""
        if self.parked is not None and self.parked not in self.world.driver.parked:
            if self.world.answered_by.get(self.parked) == "classic":
                self.contact_ms = self.world.now_ms
            self.parked = None

    def on_restart(self) -> None:
        """Note a new session: the record of a generation has all its members, even those that were removed since."""
        self.look()
        self.waits_for = None
        if self.is_in_consumer_group:
            super().on_restart()
        else:
            self.contact_ms = self.world.now_ms

    def step(self) -> None:
        if self.waits_for is not None:
            request = self.waits_for
            response = self.world.driver.answer(request)
            if response is None:
                if not self.world.is_calm and self.world.rng.random() < 0.05:
                    self.waits_for = None  # It gives up, and asks again.
                return
            self.waits_for = None
            self.on_answer(response, self.world.answered_by[request])
        elif self.phase == "unjoined":
            self.join()
        elif self.phase == "joined":
            self.sync()
        elif self.leads_stale_assignment():
            self.rejoin()
        else:
            self.heartbeat()

    def send(self, event: Any) -> None:
        self.parked = event.request
        if self.world.send(event):
            self.waits_for = event.request
            self.step()

    def join(self) -> None:
        if not self.is_cooperative:
            self.held = set()
        self.send(
            JoinGroup(
                self.world.driver.token(),
                self.member_id,
                f"{self.name}-{self.world.driver.token()}",
                "consumer",
                self.protocols,
                SESSION_MS,
                self.rebalance_timeout_ms,
                self.instance_id,
            )
        )

    def sync(self) -> None:
        plan = {} if self.to_assign is None else self.world.plan_for(self.to_assign)
        event = SyncGroup(
            self.world.driver.token(),
            self.member_id,
            self.generation,
            tuple(plan.items()),
            self.instance_id,
        )
        self.send(event)

    def heartbeat(self) -> None:
        event = Heartbeat(self.world.driver.token(), self.member_id, self.generation, self.instance_id)
        response = self.world.ask(event, taken=lambda answer: self.on_taken(event, answer))
        if response is not None:
            self.check(response.error)

    def on_taken(self, event: Event, response: Any) -> None:
        if self.world.kind == "consumer":
            self.on_step_told(event, response.error)
        elif response.error is None or isinstance(response.error, errors.RebalanceInProgressError):
            self.contact_ms = self.world.now_ms

    def on_step_told(self, event: Event, error: errors.LogStoreError | None) -> None:
        """Note that a consumer group waits for its JoinGroup or SyncGroup from now on, or no longer waits."""
        due_ms = self.world.now_ms + self.rebalance_timeout_ms
        if isinstance(error, errors.RebalanceInProgressError):
            self.contact_ms = self.world.now_ms
            self.due_ms = self.due_ms or due_ms
        elif error is None:
            self.contact_ms = self.world.now_ms
            if isinstance(event, JoinGroup):
                self.due_ms = due_ms
            elif isinstance(event, SyncGroup):
                self.due_ms = None

    def commit(self) -> None:
        if self.phase != "stable":
            return
        is_late = not self.world.is_calm and self.world.rng.random() < 0.3
        generation = self.generation - is_late
        event = CommitOffsets(self.world.driver.token(), self.member_id, generation, self.instance_id)
        was_over = self.session_is_over
        response = self.world.ask(event, taken=lambda answer: self.on_taken(event, answer))
        if response is None:
            return
        if response.error is None:
            assert not was_over, f"{self.name} commits after its session"
            assert not is_late, f"{self.name} commits with an old generation"
            if self.world.kind == "classic":
                assert generation == self.world.generation, f"{self.name} commits with an old generation"
        elif not is_late:
            self.check(response.error)

    def leave(self) -> None:
        if self.member_id:
            self.world.ask(LeaveGroup(self.world.driver.token(), (LeavingMember(self.member_id, self.instance_id),)))
        self.crash()

    def forget(self) -> None:
        """Lose the session by the client's own clock. Like librdkafka, it then has no id, and still sends heartbeats
        until its partitions are given up.
        """
        if self.phase == "stable":
            self.member_id = ""
            self.heartbeat()
            self.rejoin(lost=True)

    def leads_stale_assignment(self) -> bool:
        """Return whether the client leads a generation whose assignment is for other topics, as a Kafka consumer checks
        it.
        """
        leads = self.world.leaders.get(self.generation) == self.identity
        return leads and self.world.planned_topics.get(self.generation) != self.world.topics

    @property
    def identity(self) -> str:
        return self.instance_id or self.member_id

    def rejoin(self, *, lost: bool = False) -> None:
        self.phase = "unjoined"
        if lost or not self.is_cooperative:
            self.held = set()

    def check(self, error: errors.LogStoreError | None) -> None:
        """Act on an error, as Kafka's consumer does; without one, the coordinator has accepted the request."""
        match error:
            case None:
                pass
            case errors.UnknownMemberIdError():
                self.member_id = ""
                self.rejoin(lost=True)
            case errors.RebalanceInProgressError():
                self.rejoin()
            case errors.IllegalGenerationError():
                self.rejoin(lost=True)
            case errors.FencedInstanceIdError():
                assert self.has_rival(), f"{self.name} is fenced by nobody"
                self.crash()
            case errors.GroupMaxSizeReachedError():
                self.crash()
            case errors.InconsistentGroupProtocolError():
                self.member_id = ""
                self.rejoin(lost=True)
            case _:
                raise AssertionError(f"an answer that no client expects: {error!r}")

    def on_answer(self, response: Any, kind: str) -> None:
        """Act on a response; ``kind`` is that of the group that answered."""
        if isinstance(response.error, errors.MemberIdRequiredError):
            self.member_id = response.member_id
            self.contact_ms = self.world.now_ms
            return
        self.check(response.error)
        if response.error is not None:
            return
        if hasattr(response, "leader"):
            self.member_id, self.generation, self.phase = response.member_id, response.generation, "joined"
            self.world.on_joined(self, response)
            leads = response.leader == response.member_id and not response.skip_assignment
            self.to_assign = response.members if leads else None
        else:
            self.phase = "stable"
            before, self.held = self.held, self.world.on_synced(self, response, kind)
            self.is_in_consumer_group = kind == "consumer"
            if before - self.held:
                self.rejoin()


class CooperativeClient(ClassicClient):
    """A client that keeps its partitions while it joins, and joins again when it has given some up (KIP-429)."""

    is_cooperative = True


class ConsumerClient(Client):
    """A client that takes assigned partitions at once, and revokes others some time later."""

    def __init__(self, world: "Simulation", name: str, instance_id: str | None) -> None:
        super().__init__(world, name, instance_id)
        self.regex = world.rng.choice(["", "", "t.*"])
        self.assignor = world.rng.choice([None, None, "round-robin"])
        self.epoch = 0
        self.assignment: Held = set()
        self.lost_answers = 0
        self.is_revoking = False
        #: The coordinator's last assignment, and the time since when the client has not confirmed that it holds no
        #: more.
        self.answered: Held = set()
        self.unrevoked_since_ms: int | None = None

    @property
    def session_is_over(self) -> bool:
        since = self.unrevoked_since_ms
        return super().session_is_over or (since is not None and self.world.now_ms >= since + self.rebalance_timeout_ms)

    def subscribed(self) -> set[str]:
        return {name for name in self.world.topics if name in self.topics or (self.regex and name.startswith("t"))}

    def step(self) -> None:
        if self.is_revoking and (self.world.is_calm or self.world.rng.random() < 0.7):
            self.held &= self.assignment
            self.is_revoking = False
        self.heartbeat(self.epoch)

    def heartbeat(self, epoch: int) -> None:
        is_full = epoch == 0 or self.lost_answers > 0 or self.world.rng.random() < 0.2
        tells = epoch >= 0 and (is_full or self.world.rng.random() < 0.7)
        event = ConsumerGroupHeartbeat(
            self.world.driver.token(),
            self.name,
            epoch,
            self.instance_id,
            rebalance_timeout_ms=self.rebalance_timeout_ms if is_full else -1,
            subscribed_topics=self.topics if is_full else None,
            subscribed_regex=self.regex if is_full else None,
            regex_topics=self.world.matches("t.*") if is_full and self.regex else frozenset(),
            server_assignor=self.assignor,
            owned=frozenset(TopicIdPartition(*each) for each in self.held) if tells else None,
        )
        was_over = self.session_is_over
        response = self.world.ask(event, taken=lambda answer: self.on_taken(event, answer))
        if response is None:
            self.lost_answers += 1
            return
        # One lost response is compensated for; a member that missed two epochs is fenced.
        may_be_fenced = was_over or epoch == 0 or self.lost_answers > 1 or self.has_rival()
        self.lost_answers = 0
        if epoch >= 0:
            self.on_answer(response, may_be_fenced=may_be_fenced)

    def on_taken(self, event: ConsumerGroupHeartbeat, response: Any) -> None:
        """Note that the coordinator has accepted the heartbeat, whether or not its response arrives."""
        if response.error is not None:
            return
        self.contact_ms = self.world.now_ms
        if event.owned is not None and event.owned <= self.answered:
            self.unrevoked_since_ms = None
        if response.assignment is not None:
            self.answered = {(each.topic_id, number) for each in response.assignment for number in each.partitions}
        if self.held - self.answered and self.unrevoked_since_ms is None:
            self.unrevoked_since_ms = self.world.now_ms

    def on_answer(self, response: Any, *, may_be_fenced: bool) -> None:
        match response.error:
            case None:
                assert response.member_epoch >= self.epoch, f"{self.name} goes back to epoch {response.member_epoch}"
                self.epoch = response.member_epoch
                if response.assignment is not None:
                    self.assignment = {(topic.topic_id, at) for topic in response.assignment for at in topic.partitions}
                    self.held |= self.assignment
                    self.is_revoking = self.held != self.assignment
            case errors.FencedMemberEpochError() | errors.UnknownMemberIdError() | errors.UnknownGroupError():
                assert may_be_fenced, f"{self.name} is fenced without a reason"
                self.lose()
            case errors.UnreleasedInstanceIdError():
                self.lose()
            case errors.FencedInstanceIdError():
                assert self.has_rival(), f"{self.name} is fenced by nobody"
                self.crash()
            case errors.GroupMaxSizeReachedError():
                self.crash()
            case _:
                raise AssertionError(f"an answer that no client expects: {response.error!r}")

    def lose(self) -> None:
        self.epoch, self.held, self.assignment, self.answered = 0, set(), set(), set()
        self.is_revoking, self.unrevoked_since_ms = False, None

    def commit(self) -> None:
        if self.epoch == 0:
            return
        is_late = not self.world.is_calm and self.world.rng.random() < 0.3
        epoch = self.epoch - is_late
        was_over = super().session_is_over
        response = self.world.ask(CommitOffsets(self.world.driver.token(), self.name, epoch, self.instance_id))
        if response is not None and response.error is None:
            assert not was_over, f"{self.name} commits after its session"
            assert not is_late, f"{self.name} commits with an old epoch"

    def repeat(self) -> None:
        """Send a heartbeat of an earlier epoch, which does not say what the member holds."""
        if self.epoch > 1:
            event = ConsumerGroupHeartbeat(self.world.driver.token(), self.name, self.epoch - 1, self.instance_id)
            response = self.world.ask(event)
            assert response is None or response.error is not None, f"{self.name} goes on with an old epoch"

    def leave(self) -> None:
        self.held = set()
        if self.epoch > 0:
            self.heartbeat(-2 if self.instance_id and self.world.rng.random() < 0.5 else -1)
        self.crash()


KINDS: dict[str, tuple[type[Client], ...]] = {
    "classic": (ClassicClient,),
    "consumer": (ConsumerClient,),
    "mixed": (ClassicClient, CooperativeClient, ConsumerClient),
}


class Simulation:
    def __init__(self, seed: int, kind: str, *, steps: int = 60) -> None:
        self.rng = random.Random(seed)
        self.kinds = KINDS[kind]
        self.steps = steps
        config = GroupConfig(
            group_initial_rebalance_delay_ms=self.rng.choice([0, 3_000]),
            group_max_size=self.rng.choice([3, 100, 100]),
            group_new_member_join_timeout_ms=20_000,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_migration_policy=self.rng.choice(
                ["bidirectional", "bidirectional", "bidirectional", "upgrade", "downgrade", "disabled"]
            ),
        )
        self.driver = GroupDriver(config=config, t=3, u=2)
        self.driver.keeps = 2
        self.topics = dict(self.driver.topics)
        self.clients: list[Client] = []
        self.is_calm = False
        self.lives = 0
        # This is the reference: the leader of each generation, its plan, and the topics of the plan.
        self.generation = self.generation_before = 0
        self.leaders: dict[int, str] = {}
        self.plans: dict[int, dict[str, bytes]] = {}
        self.planned_topics: dict[int, dict[str, TopicDescription]] = {}
        self.identities: dict[str, str] = {}
        #: The kind of the group, and the kind that it had at each response.
        self.kind = ""
        self.answered_by: dict[int, str] = {}

    @property
    def now_ms(self) -> int:
        return self.driver.now_ms

    def matches(self, regex: str) -> frozenset[str]:
        return frozenset(name for name in self.topics if name.startswith(regex[0]))

    # ---- the way to the coordinator ---------------------------------------------------------------------------------

    def send(self, event: Any) -> bool:
        """Send an event; return whether the connection holds, so that the response will come."""
        fate = 1.0 if self.is_calm else self.rng.random()
        if fate < 0.05:
            return False  # The request is lost.
        if fate < 0.08:
            # The coordinator dies before the records are durable, so nothing has happened.
            self.driver.group.apply(event, self.now_ms)
            self.restart()
            return False
        self.apply(event)
        if fate < 0.15:
            self.driver.answers.pop(event.request, None)
            return False
        return True

    def ask(self, event: Any, taken: Any = None) -> Any:
        """Send a request that is answered at once; return the response, or None if it is lost."""
        asked: list[Any] = []
        answers = self.driver.answers
        holds = self.send_observed(event, asked)
        if asked and taken is not None:
            taken(asked[0])
        answers.pop(event.request, None)
        return asked[0] if holds else None

    def send_observed(self, event: Any, asked: list[Any]) -> bool:
        before = self.observe
        self.observe = (event.request, asked)
        try:
            return self.send(event)
        finally:
            self.observe = before

    observe: tuple[int, list[Any]] | None = None

    def apply(self, event: Event) -> None:
        self.driver.apply(event)
        if self.observe is not None and getattr(event, "request", None) == self.observe[0]:
            assert event.request in self.driver.answers, "a request that waits for nothing is parked"
            self.observe[1].append(self.driver.answers[event.request])
        if isinstance(event, SyncGroup) and self.kind == "classic":
            self.note_plan(event)
        response = self.driver.answers.get(getattr(event, "request", 0))
        if self.kind == "consumer" and response is not None and isinstance(event, (JoinGroup, SyncGroup)):
            for client in self.clients:
                if isinstance(client, ClassicClient) and client.parked == event.request:
                    client.on_step_told(event, response.error)
        self.check()

    def restart(self) -> None:
        self.driver.restart()
        for client in self.clients:
            client.on_restart()
        self.apply(self.topics_changed())

    def topics_changed(self) -> TopicsChanged:
        self.driver.topics = dict(self.topics)
        return TopicsChanged(self.driver.topics, {regex: self.matches(regex) for regex in self.driver.group.regexes})

    # ---- the reference ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        generation = self.driver.group.generation
        assert generation >= self.generation, f"generation {generation} after {self.generation}"
        kind = self.driver.group.describe(with_members=False).kind
        for request in self.driver.answers:
            self.answered_by.setdefault(request, kind)
        for client in self.clients:
            client.look()
            if (
                kind == "classic"
                and generation > self.generation
                and client.instance_id is not None
                and isinstance(client, ClassicClient)
            ):
                # KIP-345: a static member need not join a generation, and has a whole session from its beginning.
                client.has_whole_session()
        self.generation = generation
        if kind != self.kind:
            for client in self.clients:
                if isinstance(client, ClassicClient):
                    # A client that has another generation is about to find out that it has lost its partitions.
                    client.is_in_consumer_group = kind == "consumer" and client.generation == self.generation_before
                    client.due_ms = None
            for led in (self.plans, self.leaders, self.planned_topics):
                led.clear()
        self.kind, self.generation_before = kind, generation
        owners: dict[tuple[uuid.UUID, int], Client] = {}
        for client in self.clients:
            if client.is_judged and not client.is_gone and not client.session_is_over:
                for each in client.held:
                    other = owners.setdefault(each, client)
                    assert other is client, f"{other.name} and {client.name} hold {each}"

    def plan_for(self, members: tuple[Any, ...]) -> dict[str, bytes]:
        """Return the leader's assignment: each partition is given to one of the members that subscribe to its topic, or
        to none of them as long as another one has it.
        """
        plan: dict[str, list[tuple[str, int]]] = {each.member_id: [] for each in members}
        subscriptions = {each.member_id: decode_subscription(each.metadata) for each in members}
        owners: dict[tuple[str, int], str] = {}
        for member in sorted(subscriptions, key=lambda each: -subscriptions[each].generation):
            for at in subscriptions[member].owned:
                owners.setdefault(at, member)
        for name, description in self.topics.items():
            subscribed = [member for member, each in subscriptions.items() if name in each.topics]
            for partition in range(description.partitions if subscribed else 0):
                member = subscribed[partition % len(subscribed)]
                if owners.get((name, partition), member) == member:
                    plan[member].append((name, partition))
        return {member: encode_assignment(Assignment(tuple(partitions))) for member, partitions in plan.items()}

    def on_joined(self, client: ClassicClient, response: Any) -> None:
        self.identities[client.member_id] = client.identity
        for each in response.members:
            self.identities[each.member_id] = each.group_instance_id or each.member_id
        assert response.generation <= self.generation, "a generation that is not the group's"
        leader = self.identities.get(response.leader, response.leader)
        if response.leader == client.member_id or leader in self.leaders.values():
            assert self.leaders.setdefault(response.generation, leader) == leader, "a generation has two leaders"
        if response.leader == client.member_id:
            assert client.member_id in {each.member_id for each in response.members}
        assert response.protocol in {name for name, _ in client.protocols}, "a protocol that not all support"

    def note_plan(self, event: SyncGroup) -> None:
        response = self.driver.answers.get(event.request)
        leads = self.leaders.get(event.generation) == self.identities.get(event.member_id)
        if response is None or response.error is not None or not event.assignments:
            return
        if leads and event.generation not in self.plans:
            self.plans[event.generation] = {self.identities[member]: plan for member, plan in event.assignments}
            self.planned_topics[event.generation] = dict(self.topics)

    def on_synced(self, client: ClassicClient, response: Any, kind: str) -> Held:
        topics = self.topics
        if kind == "classic" and client.generation in self.plans:
            plan = self.plans[client.generation]
            assert response.assignment == plan.get(client.identity, b""), f"{client.name} gets what is not its own"
            topics = self.planned_topics[client.generation]
        places = decode_assignment(response.assignment).partitions if response.assignment else ()
        return {(topics[name].topic_id, partition) for name, partition in places if name in topics}

    # ---- a schedule -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.spawn()
        for _ in range(self.steps):
            self.chaos()
        self.calm_down()
        self.stay_quiet()

    def chaos(self) -> None:
        dice = self.rng.random()
        live = [each for each in self.clients if not each.is_gone]
        client = self.rng.choice(live) if live else None
        if client is not None and dice < 0.65:
            if not client.is_paused:
                client.step()
        elif dice < 0.75:
            self.driver_advances(self.rng.choice([0, 500, HEARTBEAT_MS, HEARTBEAT_MS, 9_999, 21_000]))
        elif dice < 0.80:
            self.spawn()
        elif client is not None and dice < 0.90:
            action = self.rng.choice(
                ["crash", "leave", "pause", "resume", "resume", "commit", "commit", "repeat", "forget"]
            )
            if action in {"pause", "resume"}:
                client.is_paused = action == "pause"
            else:
                getattr(client, action)()
        elif dice < 0.93:
            self.restart()
        elif dice < 0.97:
            self.change_topics()
        else:
            # The timekeeper is early, or late.
            key = self.rng.choice([*self.driver.timers, "session/nobody"])
            self.apply(TimerFired(key))

    def driver_advances(self, ms: int) -> None:
        """Let time pass while other clients stay in touch, unless they are paused."""
        for _ in range(ms // HEARTBEAT_MS):
            self.advance(HEARTBEAT_MS)
            for client in list(self.clients):
                if not client.is_gone and not client.is_paused and self.rng.random() < 0.8:
                    client.step()
        self.advance(ms % HEARTBEAT_MS)

    def advance(self, ms: int) -> None:
        self.driver.advance(ms)
        self.check()

    def spawn(self) -> None:
        self.lives += 1
        taken = {each.instance_id for each in self.clients if not each.is_gone and isinstance(each, ConsumerClient)}
        instance_id = self.rng.choice([None, None, *sorted({"i", "j"} - taken)])
        client = self.rng.choice(self.kinds)(self, f"c{self.lives}", instance_id)
        last = next((each for each in reversed(self.clients) if each.instance_id == instance_id), None)
        if instance_id is not None and last is not None:
            # The same program, started again, subscribes as before.
            client.topics = last.topics
        self.clients.append(client)

    def change_topics(self) -> None:
        name = self.rng.choice(["t", "u", "ta", "tb"])
        there = self.topics.get(name)
        if there is None:
            self.topics[name] = TopicDescription(topic_id(name, self.lives), self.rng.randint(1, 3))
        elif self.rng.random() < 0.7:
            self.topics[name] = TopicDescription(there.topic_id, there.partitions + 1)
        else:
            self.lives += 1
            self.topics[name] = TopicDescription(topic_id(name, self.lives), there.partitions)
        self.apply(self.topics_changed())

    # ---- calm -------------------------------------------------------------------------------------------------------

    def live(self) -> list[Client]:
        return [each for each in self.clients if not each.is_gone]

    def calm_down(self) -> None:
        """End all faults. Clients of one kind, or of all kinds that may be in one group, and one of each instance id
        remain, and the group settles.
        """
        self.is_calm = True
        kind = self.rng.choice(self.kinds)
        kinds = self.kinds if self.driver.config.upgrades and self.rng.random() < 0.5 else (kind,)
        instances: set[str] = set()
        for client in reversed(self.live()):
            if not isinstance(client, kinds) or client.instance_id in instances:
                client.crash()
            elif client.instance_id is not None:
                instances.add(client.instance_id)
            client.is_paused = False
        if not self.live():
            self.kinds = (kind,)
            self.spawn()
        for _ in range(CALM_ROUNDS):
            self.round()
            if self.is_settled():
                return
        raise AssertionError(f"the group does not settle: {self.driver.group.describe()}, parked {self.driver.parked}")

    def round(self) -> None:
        for _ in range(3):
            for client in self.live():
                client.step()
        self.advance(HEARTBEAT_MS)

    def is_settled(self) -> bool:
        described = self.driver.group.describe()
        if not self.live():
            return not described.members and not self.driver.parked
        ids = {each.member_id if isinstance(each, ClassicClient) else each.name for each in self.live()}
        if described.state != "Stable" or {each.member_id for each in described.members} != ids or self.driver.parked:
            return False
        if any(isinstance(each, ClassicClient) and each.phase != "stable" for each in self.live()):
            return False
        held = [each for client in self.live() for each in client.held]
        wanted = {
            (self.topics[name].topic_id, partition)
            for client in self.live()
            for name in (client.subscribed() if isinstance(client, ConsumerClient) else client.topics)
            for partition in range(self.topics[name].partitions)
        }
        if self.driver.config.downgrades and not any(isinstance(each, ConsumerClient) for each in self.live()):
            assert described.kind == "classic", "a group of classic members is still a consumer group"
        return len(held) == len(set(held)) and set(held) == wanted

    def stay_quiet(self) -> None:
        """Check that nothing happens to a settled group whose members are well."""
        generation = self.driver.group.generation
        before = {client.name: set(client.held) for client in self.live()}
        for _ in range(2 * SESSION_MS // HEARTBEAT_MS):
            for client in self.live():
                client.step()
                client.commit()
            self.advance(HEARTBEAT_MS)
        assert self.driver.group.generation == generation, "a settled group rebalances"
        assert {client.name: client.held for client in self.live()} == before, "a settled group moves partitions"
