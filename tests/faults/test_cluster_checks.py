"""The checks of a cluster name each contradiction in a history, and are silent on a correct one."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.faults.bench.evidence import Evidence
from tests.faults.bench.history import typed
from tests.faults.cluster.brokers import SESSION_MS
from tests.faults.cluster.cluster_checks import check_cluster
from tests.faults.cluster.journals import rows_digest

ROWS = [[offset, 1_000, f"r{offset}", None, f"v{offset}"] for offset in range(4)]


class Story:
    """A partition of brokers 1, 2 and 3, with a record at each tick of 100."""

    def __init__(self) -> None:
        self._t = itertools.count(100, 100)
        self._ids = itertools.count()
        self.events: list[dict[str, Any]] = []
        self.look = 0

    def later(self, by_ns: int) -> None:
        self._t = itertools.count(next(self._t) + by_ns, 100)

    def tell(self, op: str, *, t: int = 0, **fields: Any) -> None:
        event = {"t": t or next(self._t), "process": "p", "op": op, "phase": "ok", "id": f"i{next(self._ids)}"}
        self.events.append({**event, **fields})

    def call(self, op: str, asked: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        number = f"i{next(self._ids)}"
        for phase, fields in (("invoke", asked), ("ok", told)):
            self.events.append({"t": next(self._t), "process": "p", "op": op, "phase": phase, "id": number, **fields})

    def registered(self, mzxid: int, leader: int, epoch: int, isr: list[int], *, seen_until: int = 0) -> None:
        row = [leader, epoch, isr, [1, 2, 3]]
        self.tell("registered", topic="t", mzxid=mzxid, partitions=[row], seen_until=seen_until)

    def produced(self, offset: int, acks: str = "all") -> None:
        record = [f"r{offset}", None, f"v{offset}", 1_000]
        asked = {"topic": "t", "partition": 0, "acks": acks, "records": [record]}
        self.call("produce", asked, {"places": [[0, offset]]})

    def probed(self, broker: int, offset: int, record_id: str = "") -> None:
        asked = {"broker": broker, "topic": "t", "partition": 0, "record_id": record_id}
        self.call("probe", asked, {"offset": offset})

    def replica(
        self, broker: int, frames: list[list[Any]], removed: list[list[Any]] | None = None, *, sealed: int = 0
    ) -> None:
        where = {"broker": broker, "topic": "t", "partition": 0, "look": self.look}
        self.tell("replica", **where, sealed=sealed, frames=frames, removed=removed or [])

    def final(self) -> None:
        self.tell("final", topic="t", partition=0, log_start=0, high_watermark=len(ROWS), rows=ROWS)

    def found(self) -> list[str]:
        return [f"{one.invariant} {one.name}" for one in check_cluster(Evidence(typed(self.events)), min_in_sync=2)]


def frames(count: int = 4, *, epoch: int = 1) -> list[list[Any]]:
    return [[n, 1, epoch, f"frame {n}", rows_digest([ROWS[n]])] for n in range(count)]


def told(middle: Callable[[Story], None] = lambda _: None, *, replicas: Mapping[int, list[Any]] | None = None) -> Story:
    story = Story()
    story.tell("topic", topic="t", partitions=1)
    story.registered(1, 1, 1, [1, 2, 3])
    for offset in range(4):
        story.produced(offset)
    story.probed(1, 4)
    middle(story)
    story.final()
    story.registered(1_000, 1, 9, [1, 2, 3], seen_until=0)
    story.registered(1_000, 1, 9, [1, 2, 3], seen_until=1 << 40)
    for broker in (1, 2, 3):
        story.replica(broker, (replicas or {}).get(broker, frames()))
    return story


def test_a_right_history_has_no_anomaly() -> None:
    def failover(story: Story) -> None:
        story.registered(2, 2, 2, [2, 3])
        story.probed(2, 4)
        story.registered(3, 2, 2, [2, 3, 1], seen_until=story.events[-1]["t"])

    assert told(failover).found() == []


@pytest.mark.parametrize(
    ("states", "named"),
    [
        ([(2, 2, 1, [2, 3])], "H1 two leaders in an epoch"),
        ([(2, 2, 3, [2, 3]), (3, 3, 2, [3])], "H1 epoch fell"),
        ([(2, 3, 2, [1, 2])], "H2 leader is not in sync"),
        ([(2, 2, 2, [2, 4])], "H2 in sync without being a replica"),
    ],
)
def test_zookeepers_state_is_compared(states: list[tuple[int, int, int, list[int]]], named: str) -> None:
    def change(story: Story) -> None:
        for state in states:
            story.registered(*state)

    assert named in told(change).found()


def test_an_acknowledgement_below_min_insync_replicas() -> None:
    def alone(seen_until: int, *, epoch: int = 1, after_ns: int = 0) -> Callable[[Story], None]:
        def change(story: Story) -> None:
            story.registered(2, 1, epoch, [1])
            if after_ns:
                story.later(after_ns)
            story.produced(4)
            story.registered(3, 1, epoch, [1, 2], seen_until=story.events[-1]["t"] + seen_until)

        return change

    named = ["H5 acks=all below min.insync.replicas"]
    assert told(alone(1, after_ns=1_000_000_000)).found() == named
    assert told(alone(-1, after_ns=1_000_000_000)).found() == [], "a follower may have joined before"
    assert told(alone(1)).found() == [], "the leader may not have ZooKeeper's answer yet"
    assert told(alone(1, epoch=2)).found() == named, "a leader begins with the ISR that it was elected with"


def test_a_former_leader_acknowledges() -> None:
    def change(story: Story) -> None:
        story.registered(2, 2, 2, [2, 3])
        story.probed(1, 4, "late")
        story.registered(3, 2, 2, [2, 3, 1], seen_until=story.events[-1]["t"])

    assert told(change).found() == ["H8 acknowledged by a former leader"]


def test_a_leader_in_sync_is_relieved_and_hears_of_it_within_its_session() -> None:
    def relieved(after_ns: int) -> Callable[[Story], None]:
        def change(story: Story) -> None:
            story.registered(2, 2, 2, [1, 2, 3])
            if after_ns:
                story.later(after_ns)
            story.probed(1, 4, "late")
            story.registered(3, 2, 2, [2, 3], seen_until=story.events[-1]["t"])

        return change

    assert told(relieved(0)).found() == []
    assert told(relieved(SESSION_MS * 1_000_000)).found() == ["H8 acknowledged by a former leader"]


def test_an_end_that_falls() -> None:
    def change(story: Story) -> None:
        story.registered(2, 2, 2, [2, 3])
        story.probed(2, 3)
        story.registered(3, 2, 2, [2, 3, 1], seen_until=story.events[-1]["t"])

    assert told(change).found() == ["H4 high watermark fell"]


def test_a_replica_that_lacks_a_record() -> None:
    assert told(replicas={2: frames(3)}).found() == ["H3 replica in sync lacks records"]


def test_a_replica_with_another_header() -> None:
    other = frames()
    other[1] = [1, 1, 1, "another header", other[1][4]]
    assert told(replicas={3: other}).found() == ["H6 replicas differ"]


def test_a_replica_with_another_record() -> None:
    other = frames()
    other[2] = [2, 1, 1, "frame 2", rows_digest([[2, 1_000, "x", None, "x"]])]
    assert set(told(replicas={1: other}).found()) == {"H6 replica differs from the log", "H6 replicas differ"}


def test_a_frame_that_was_truncated_and_is_there() -> None:
    story = told()
    story.events.pop()
    story.replica(3, frames(), removed=frames()[3:])
    assert story.found() == ["H7 truncated below what is committed"]


def test_a_replica_that_goes_elsewhere_and_comes_back_drops_its_frames() -> None:
    story = told(lambda story: story.tell("fault", kind="move", topic="t", moved=0))
    story.events.pop()
    story.replica(3, frames(), removed=frames()[3:])
    assert story.found() == []


def left_over() -> list[list[Any]]:
    """Return frames whose last two records are of epoch 0, which has committed others there."""
    return [*frames(2), [2, 2, 0, "never committed", rows_digest([[2, 1, "x", None, "x"], [3, 1, "y", None, "y"]])]]


@pytest.mark.parametrize(("sealed", "named"), [(4, []), (3, ["H6 replica differs from the log"])])
def test_a_frame_of_an_older_epoch_below_the_sealed_offset(sealed: int, named: list[str]) -> None:
    story = told()
    del story.events[-3:]
    for broker, count in ((1, frames()), (2, frames()), (3, left_over())):
        story.replica(broker, count, sealed=sealed)
    assert sorted(story.found()) == named


def test_frames_of_one_epoch_are_also_equal_below_the_sealed_offset() -> None:
    story = told()
    del story.events[-3:]
    other = frames()
    other[1] = [1, 1, 1, "another header", other[1][4]]
    for broker, has in ((1, left_over()), (2, frames()), (3, other)):
        story.replica(broker, has, sealed=4)
    assert story.found() == ["H6 replicas differ"]


def test_a_left_over_frame_that_another_replica_has_truncated() -> None:
    story = told()
    del story.events[-3:]
    for broker, has, removed in ((1, frames(), []), (2, frames(), left_over()[2:]), (3, left_over(), [])):
        story.replica(broker, has, removed, sealed=4)
    assert story.found() == []


def test_a_replica_out_of_sync_may_be_behind_while_all_are_down() -> None:
    def change(in_sync: list[int]) -> Callable[[Story], None]:
        def down(story: Story) -> None:
            story.registered(2, 1, 1, in_sync)
            for broker, count in ((1, 4), (2, 4), (3, 1)):
                story.replica(broker, frames(count))
            story.look += 1

        return down

    assert told(change([1, 2])).found() == []
    assert "H3 replica in sync lacks records" in told(change([1, 2, 3])).found()
