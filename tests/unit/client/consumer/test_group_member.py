"""Members of a group use a real store."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Self
from uuid import uuid4

import httpx
import pytest

from logstore import Admin, Consumer, ConsumerRebalanceListener, TopicPartition
from logstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    UnknownMemberIdError,
    UnknownTopicError,
    WakeupError,
)
from tests.support.eventually import eventually
from tests.support.posting import post
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.system

SETTINGS = {
    "LOGSTORE_GROUP_INITIAL_REBALANCE_DELAY_MS": "200",
    "LOGSTORE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "10000",
    "LOGSTORE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "100",
}
CLASSIC = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 100}
#: Options by the names that the tests have for them.
PROTOCOLS = {
    "range": CLASSIC,
    "roundrobin": CLASSIC | {"partition_assignment_strategy": "roundrobin"},
    "sticky": CLASSIC | {"partition_assignment_strategy": ["sticky"]},
    "cooperative": CLASSIC | {"partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}
INCREMENTAL = ("cooperative", "consumer")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("groups") / "data", environment=SETTINGS) as server:
        yield server.url


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex[:12]}"


class Told(ConsumerRebalanceListener):
    """A listener that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("assigned", [partition.partition for partition in partitions]))

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("revoked", [partition.partition for partition in partitions]))

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("lost", [partition.partition for partition in partitions]))


class Members:
    """Consumers of one group, polled in turn by the test's thread."""

    def __init__(self, store: str, group: str, topics: list[str] | re.Pattern[str], options: dict) -> None:
        self._store, self._group, self._topics = store, group, topics
        self._options = {"auto_offset_reset": "earliest"} | options
        self._open = ExitStack()
        self.all: list[Consumer] = []
        self.told: dict[Consumer, Told] = {}
        self.seen: Counter[tuple[str, int, int]] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.__exit__(*exception)  # type: ignore[arg-type]

    def join(self, **options: object) -> Consumer:
        consumer = self._open.enter_context(Consumer(self._store, group_id=self._group, **(self._options | options)))
        self.told[consumer] = Told()
        consumer.subscribe(self._topics, self.told[consumer])
        self.all.append(consumer)
        return consumer

    def close(self, consumer: Consumer) -> None:
        self.all.remove(consumer)
        consumer.close()

    def poll(self, *, without: Consumer | None = None) -> None:
        for consumer in self.all:
            if consumer is not without:
                self.seen.update((r.topic, r.partition, r.offset) for r in consumer.poll(timeout_s=0.02))

    def poll_until(self, found: Callable[[], object], what: str, *, without: Consumer | None = None) -> None:
        def polled() -> object:
            self.poll(without=without)
            return found()

        eventually(polled, what)

    def poll_until_shared(self, *shares: int, without: Consumer | None = None) -> None:
        """Poll until the members have these numbers of partitions, in any order, and keep them for a while."""

        def shared() -> bool:
            owned = [consumer.assignment() for consumer in self.all if consumer is not without]
            return sorted(map(len, owned)) == sorted(shares) and len(frozenset().union(*owned)) == sum(shares)

        self.poll_until(shared, f"nobody shares {shares}: {[c.assignment() for c in self.all]}", without=without)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            self.poll(without=without)
        assert shared(), f"{[consumer.assignment() for consumer in self.all]}, and not {shares} for long"


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in INCREMENTAL else pytest.mark.long) for name in PROTOCOLS]
)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def members(store: str, group: str, topic: str, protocol: str) -> Iterator[Members]:
    with Members(store, group, [topic], PROTOCOLS[protocol]) as members:
        yield members


def describe(store: str, group: str) -> dict:
    return httpx.get(f"{store}/groups/{group}").raise_for_status().json()


def fill(store: str, topic: str, count: int = 50) -> None:
    for partition in range(4):
        post(store, topic, partition, [b"%d" % i for i in range(count)])


# ---- sharing --------------------------------------------------------------------------------------------------------


def test_three_members_share_a_topic_and_each_record_comes_once(members: Members, store: str, topic: str, group: str):
    first, second, third = (members.join() for _ in range(3))
    members.poll_until_shared(1, 1, 2)
    fill(store, topic)
    members.poll_until(lambda: members.seen.total() >= 200, "the records do not come")
    assert set(members.seen.values()) == {1}
    described = describe(store, group)
    assert described["state"].lower() == "stable"
    assert len(described["members"]) == 3
    members.close(second)
    members.close(third)
    members.poll_until_shared(4)
    fill(store, topic)
    members.poll_until(lambda: members.seen.total() >= 400, "the records do not come")
    assert set(members.seen.values()) == {1}, "what those that left have read comes again"
    assert [members.told[first].calls[0][0], members.told[first].calls[-1][0]] == ["assigned", "assigned"]


def test_only_what_must_move_is_revoked(members: Members, protocol: str):
    first = members.join()
    members.poll_until_shared(4)
    second = members.join()
    members.poll_until_shared(2, 2)
    told = members.told[first].calls
    (revoked,) = [partitions for what, partitions in told if what == "revoked"]
    kept = {0, 1, 2, 3} - set(revoked)
    if protocol in INCREMENTAL:
        assert len(revoked) == 2
        assert kept == {partition.partition for partition in first.assignment()}
        assert all(not partitions for what, partitions in told[1:] if what == "assigned")
        assert [partitions for _, partitions in members.told[second].calls if partitions] == [revoked]
    else:
        assert revoked == [0, 1, 2, 3]
        assert len(told[-1][1]) == 2
        assert told[0] == ("assigned", [0, 1, 2, 3])
        assert [what for what, _ in told] == ["assigned", "revoked", "assigned"]


def test_a_member_that_was_killed_is_replaced_after_its_session(members: Members, store: str, topic: str):
    first, second = members.join(), members.join()
    members.poll_until_shared(2, 2)
    kill(second)
    members.all.remove(second)
    fill(store, topic)
    members.poll_until_shared(4)
    members.poll_until(lambda: members.seen.total() == 200, "the records of the dead do not come")
    assert set(members.seen.values()) == {1}
    assert members.told[second].calls[-1][0] == "assigned"
    first.close()


def kill(consumer: Consumer) -> None:
    """Stop all requests to the store, as if the process were gone."""
    member = consumer._member
    assert member is not None
    member._stop()
    member._membership = None
    consumer._committer = None


def test_a_member_that_does_not_poll_leaves_and_learns_that_it_lost(members: Members, topic: str):
    slow = members.join(max_poll_interval_ms=3_000, enable_auto_commit=False)
    members.join()
    members.poll_until_shared(2, 2)
    before = sorted(partition.partition for partition in slow.assignment())
    members.poll_until(lambda: len(members.all[1].assignment()) == 4, "the slow one stays", without=slow)
    with pytest.raises(CommitFailedError, match=rf"{topic}-{before[0]}|not in its group"):
        slow.commit({TopicPartition(topic, before[0]): 0})
    members.poll_until_shared(2, 2)
    calls = members.told[slow].calls
    assert ("lost", before) in calls
    assert calls[-1][0] == "assigned"


def test_a_zombie_is_fenced(members: Members, store: str, topic: str, protocol: str):
    """Stop a member for longer than its session, and let it continue where it was."""
    fill(store, topic)
    zombie = members.join(enable_auto_commit=False)
    members.join(enable_auto_commit=False)
    members.poll_until_shared(2, 2)
    its = sorted(zombie.assignment())
    member = zombie._member
    assert member is not None
    with member._changed:  # this stops its heartbeats
        members.poll_until(lambda: len(members.all[1].assignment()) == 4, "nobody inherits", without=zombie)
    with pytest.raises(CommitFailedError, match="group has rebalanced"):
        zombie.commit({its[0]: 1})
    members.poll_until_shared(2, 2)
    assert ("lost", [partition.partition for partition in its]) in members.told[zombie].calls
    assert zombie.committed([its[0]]) == {its[0]: None}


def test_positions_are_committed_before_partitions_move(members: Members, store: str, topic: str, group: str):
    """Move partitions long before the next auto commit: the second member continues where the first was."""
    members._options["auto_commit_interval_ms"] = 600_000
    fill(store, topic)
    members.join()
    members.poll_until(lambda: members.seen.total() == 200, "the records do not come")
    members.join()
    members.poll_until_shared(2, 2)
    fill(store, topic, 10)
    members.poll_until(lambda: members.seen.total() >= 240, "the records do not come")
    assert set(members.seen.values()) == {1}


def test_a_commit_in_the_listener_counts_for_the_old_owner(store: str, group: str, topic: str, protocol: str):
    fill(store, topic, 10)
    options = PROTOCOLS[protocol] | {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    committed: dict[TopicPartition, int] = {}

    class Commits(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            positions = {partition: consumer.position(partition) for partition in partitions}
            consumer.commit(positions, metadata="last words")
            committed.update(positions)

    with Consumer(store, group_id=group, **options) as consumer, Consumer(store, group_id=group, **options) as other:
        consumer.subscribe([topic], Commits())
        eventually(lambda: consumer.poll(timeout_s=0.1), "no records")
        other.subscribe([topic])
        eventually(lambda: (consumer.poll(timeout_s=0.02), other.poll(timeout_s=0.02), other.assignment())[2], "alone")
        assert committed
        mine = sorted(committed.keys() & other.assignment())
        assert other.committed(mine) == {partition: committed[partition] for partition in mine}
        moved = min(committed.keys() - consumer.assignment())
        with pytest.raises(CommitFailedError, match=f"{topic}-{moved.partition} are not assigned to this consumer"):
            consumer.commit({moved: 1})
        failed = consumer.commit_async({moved: 1})
        assert isinstance(failed.exception(10), CommitFailedError)


def test_a_consumer_that_assigns_itself_commits_only_while_there_are_no_members(
    members: Members, store: str, group: str, topic: str
):
    partition = TopicPartition(topic, 0)
    with Consumer(store, group_id=group, enable_auto_commit=False) as own:
        own.assign([partition])
        own.commit({partition: 0})
        member = members.join()
        members.poll_until_shared(4)
        with pytest.raises(UnknownMemberIdError):
            own.commit({partition: 0})
        members.close(member)
        own.commit({partition: 0})


# ---- joining and leaving --------------------------------------------------------------------------------------------


def test_leaving_is_reported_and_immediate(members: Members, store: str, group: str, topic: str):
    consumer = members.join(enable_auto_commit=False)
    members.poll_until_shared(4)
    consumer.unsubscribe()
    assert describe(store, group)["members"] == []
    assert members.told[consumer].calls == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3])]
    assert consumer.assignment() == frozenset()
    with pytest.raises(InvalidRequestError, match="Nothing to read"):
        consumer.poll(timeout_s=5)
    consumer.subscribe([topic])
    members.poll_until_shared(4)
    consumer.assign([TopicPartition(topic, 1)])
    assert describe(store, group)["members"] == []
    assert consumer.assignment() == {TopicPartition(topic, 1)}


def test_close_does_not_wait_for_a_rebalance(store: str, group: str, topic: str, protocol: str):
    with Consumer(store, group_id=group, **PROTOCOLS[protocol]) as member:
        member.subscribe([topic])
        eventually(lambda: (member.poll(timeout_s=0.1), member.assignment())[1], "alone")
        with Consumer(store, group_id=group, **PROTOCOLS[protocol]) as joining:
            joining.subscribe([topic])
            began = time.monotonic()
            assert joining.poll(timeout_s=0.3) == []  # the other member does not poll, so the rebalance waits
            # This is far less than the 5 minutes that a rebalance waits.
            assert time.monotonic() - began < 20
            began = time.monotonic()
        assert time.monotonic() - began < 20
        assert len(describe(store, group)["members"]) == 1


def test_other_topics(members: Members, store: str, topic: str, admin: Admin):
    other = f"t-{uuid4().hex[:12]}"
    admin.create_topic(other, partitions=2)
    consumer = members.join()
    members.poll_until_shared(4)
    consumer.subscribe([topic, other], members.told[consumer])
    members.poll_until_shared(6)
    consumer.subscribe([other], members.told[consumer])
    members.poll_until_shared(2)
    assert {partition.topic for partition in consumer.assignment()} == {other}


def test_new_partitions_are_shared_and_read_from_their_first_record(
    members: Members, store: str, topic: str, admin: Admin
):
    members._options |= {"metadata_max_age_ms": 300, "auto_offset_reset": "latest"}
    members.join()
    members.join()
    members.poll_until_shared(2, 2)
    admin.add_partitions(topic, 6)
    post(store, topic, 5, [b"early"])
    members.poll_until_shared(3, 3)
    members.poll_until(lambda: members.seen[topic, 5, 0] == 1, "the first record of a new partition is skipped")


def test_topics_that_match_are_found(store: str, group: str, admin: Admin, protocol: str):
    name = uuid4().hex[:8]
    for topic in (f"orders-{name}", f"other-{name}", f"orders-{name}-not"):
        admin.create_topic(topic, partitions=2)
    options = PROTOCOLS[protocol] | {"metadata_max_age_ms": 300, "auto_commit_interval_ms": 600_000}
    with Members(store, group, re.compile(f"ord.*-{name}|late-{name}"), options) as members:
        members.join()
        members.join()
        members.poll_until_shared(1, 1)
        assert {p.topic for consumer in members.all for p in consumer.assignment()} == {f"orders-{name}"}
        admin.create_topic(f"late-{name}", partitions=2)
        members.poll_until_shared(2, 2)
        assert members.all[0].subscription() == {f"orders-{name}", f"late-{name}"}
        admin.delete_topic(f"orders-{name}")
        members.poll_until_shared(1, 1)
        assert {p.topic for consumer in members.all for p in consumer.assignment()} == {f"late-{name}"}


def test_without_a_group_all_that_matches_is_read(store: str, admin: Admin):
    name = uuid4().hex[:8]
    admin.create_topic(f"a-{name}", partitions=2)
    with Consumer(store, metadata_max_age_ms=200) as consumer:
        consumer.subscribe(re.compile(f".-{name}"))
        eventually(lambda: (consumer.poll(timeout_s=0.05), len(consumer.assignment()) == 2)[1], "nothing matches")
        admin.create_topic(f"b-{name}", partitions=1)
        eventually(lambda: (consumer.poll(timeout_s=0.05), len(consumer.assignment()) == 3)[1], "nothing new matches")


def test_a_topic_that_is_not_there_is_reported(members: Members, topic: str, store: str):
    consumer = members.join()
    consumer.subscribe([f"absent-{topic}"])
    with pytest.raises(UnknownTopicError, match="absent"):
        eventually(lambda: consumer.poll(timeout_s=0.1) and None, "no error")


# ---- static members -------------------------------------------------------------------------------------------------


def test_a_static_member_finds_its_partitions_again(
    members: Members, store: str, topic: str, group: str, protocol: str
):
    members._options |= {} if protocol == "consumer" else {"session_timeout_ms": 20_000}
    first, second = members.join(group_instance_id="one"), members.join(group_instance_id="two")
    members.poll_until_shared(2, 2)
    before = second.assignment()
    calls = len(members.told[first].calls)
    members.close(second)
    assert len(describe(store, group)["members"]) == 2
    members.poll()
    again = members.join(group_instance_id="two")
    members.poll_until_shared(2, 2)
    assert again.assignment() == before
    assert len(members.told[first].calls) == calls, "the other one was bothered"


def test_a_static_member_gets_partitions_that_came_while_it_was_away(
    members: Members, topic: str, admin: Admin, protocol: str
):
    """Add partitions while the leader is away: it makes no assignment when it returns, and no other member looks for
    them.
    """
    members._options |= {"metadata_max_age_ms": 300}
    members._options |= {} if protocol == "consumer" else {"session_timeout_ms": 20_000}
    first = members.join(group_instance_id="one")
    members.poll_until_shared(4)
    members.close(first)
    admin.add_partitions(topic, 6)
    members.join(group_instance_id="one")
    members.poll_until_shared(6)


def test_a_static_member_whose_name_another_takes_stops(store: str, group: str, topic: str):
    options = CLASSIC | {"group_instance_id": "one"}
    with Members(store, group, [topic], options) as members:
        fenced = members.join(enable_auto_commit=False)
        members.poll_until_shared(4)
        members.all.remove(fenced)
        members.join()
        members.poll_until_shared(4)
        for _ in range(2):
            with pytest.raises(FencedInstanceIdError):
                eventually(lambda: fenced.poll(timeout_s=0.1) and None, "no error")
        assert members.told[fenced].calls[-1] == ("lost", [0, 1, 2, 3])
        members.poll_until_shared(4)


# ---- errors and wakeup ----------------------------------------------------------------------------------------------


def test_a_refusal_of_the_group_is_raised(store: str, group: str, topic: str):
    def refused(**options: object) -> None:
        with Consumer(store, group_id=group, **options) as consumer:
            consumer.subscribe([topic])
            eventually(lambda: consumer.poll(timeout_s=0.1) and None, "no error")

    with pytest.raises(InvalidSessionTimeoutError):
        refused(session_timeout_ms=2_000_000)
    with Members(store, group, [topic], CLASSIC) as members:
        members.join()
        members.poll_until_shared(4)
        with pytest.raises(InconsistentGroupProtocolError):
            refused(partition_assignment_strategy="sticky")
    with Consumer(store, group_id=f"{group}-2", group_protocol="consumer") as consumer:
        consumer.subscribe(re.compile(r"(?=a).*"))  # Python takes this, RE2 does not
        with pytest.raises(InvalidRegularExpressionError):
            eventually(lambda: consumer.poll(timeout_s=0.1) and None, "no error")


def test_wrong_subscriptions_say_what_to_do(store: str, group: str):
    with Consumer(store, group_id=group) as consumer:
        with pytest.raises(InvalidRequestError, match=r"re\.compile\('orders.\*'\)"):
            consumer.subscribe("orders.*")
        with pytest.raises(InvalidRequestError, match="derive it from ConsumerRebalanceListener"):
            consumer.subscribe(["orders"], object())  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="write its flags into the pattern"):
            consumer.subscribe(re.compile("orders", re.IGNORECASE))
        with pytest.raises(InvalidRequestError, match="of bytes"):
            consumer.subscribe(re.compile(b"orders"))  # type: ignore[arg-type]
    with Consumer(store) as alone, pytest.raises(InvalidRequestError, match="give group_id"):
        alone.subscribe(["orders"], ConsumerRebalanceListener())


def test_a_listener_that_fails_is_heard_and_may_not_poll(store: str, group: str, topic: str, protocol: str):
    class Fails(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            consumer.poll()

        def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            raise ZeroDivisionError

    consumer = Consumer(store, group_id=group, **PROTOCOLS[protocol])
    consumer.subscribe([topic], Fails())
    with pytest.raises(InvalidRequestError, match="return from it first"):
        eventually(lambda: consumer.poll(timeout_s=0.1) and None, "no error")
    assert len(consumer.assignment()) == 4
    with pytest.raises(ZeroDivisionError):
        consumer.close()
    assert describe(store, group)["members"] == []


@pytest.mark.parametrize("doing", ["waiting", "joining", "looking up", "reading all"])
def test_wakeup_ends_a_poll_once(store: str, group: str, topic: str, doing: str):
    options = {} if doing == "reading all" else CLASSIC | {"group_id": group}
    with ExitStack() as open_:
        consumer = open_.enter_context(Consumer(store, **options))
        consumer.subscribe([topic])
        if doing == "joining":
            other = open_.enter_context(Consumer(store, **options))
            other.subscribe([topic])
            eventually(lambda: (other.poll(timeout_s=0.1), other.assignment())[1], "alone")
        elif doing != "looking up":
            eventually(lambda: (consumer.poll(timeout_s=0.1), consumer.assignment())[1], "nothing assigned")
        waking = threading.Timer(0.0 if doing == "looking up" else 0.5, consumer.wakeup)
        waking.start()
        began = time.monotonic()
        with pytest.raises(WakeupError):
            consumer.poll(timeout_s=30)
        assert time.monotonic() - began < 10
        waking.join()
        assert consumer.poll(timeout_s=0.05) == []
        consumer.wakeup()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(timeout_s=0)
        assert consumer.poll(timeout_s=0.05) == []
