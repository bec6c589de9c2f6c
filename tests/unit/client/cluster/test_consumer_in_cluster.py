"""The consumer and the admin client use brokers whose leaders and coordinators move, die and refuse."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from logstore import Admin, Consumer, TopicPartition, errors
from tests.support.eventually import eventually
from tests.support.played_cluster import NOBODY, PlayedCluster, Request, unreachable_address

ALL = [TopicPartition("t", number) for number in range(3)]


@pytest.fixture
def cluster() -> Iterator[PlayedCluster]:
    with PlayedCluster() as cluster:
        yield cluster


def consumer(cluster: PlayedCluster, **options: object) -> Consumer:
    return Consumer(cluster.bootstrap, **{"auto_offset_reset": "earliest", **options})  # type: ignore[arg-type]


def read(consumer: Consumer, count: int, seconds: float = 20) -> dict[int, list[bytes]]:
    """Read ``count`` records and return their values by partition; offsets rise by one from where reading begins."""
    found: dict[int, list[bytes]] = {}
    give_up = time.monotonic() + seconds
    while sum(map(len, found.values())) < count:
        assert time.monotonic() < give_up, found
        for record in consumer.poll(timeout_s=0.2):
            found.setdefault(record.partition, []).append(record.value)
    return found


def fetches(cluster: PlayedCluster, broker: int | None = None) -> list[Request]:
    return cluster.asked("/fetch", broker=broker)


def test_each_leader_is_asked_for_its_own_partitions_all_at_once(cluster: PlayedCluster):
    cluster.topics["t"] += [type(cluster.topics["t"][0])(1 + n % 3) for n in range(3)]
    for number in range(6):
        cluster.append([b"%d" % number], partition=number)
    with consumer(cluster) as reading:
        reading.subscribe(["t"])
        assert read(reading, 6) == {number: [b"%d" % number] for number in range(6)}
        eventually(lambda: cluster.fetching_together == 3, "all leaders are waited for at the same time")
        for number in range(6):
            cluster.append([b"more"], partition=number)
        read(reading, 6)
    assert dict(cluster.fetching_most) == {1: 1, 2: 1, 3: 1}
    assert all(request.never for request in fetches(cluster))
    for request in fetches(cluster):
        led = {1: {0, 3}, 2: {1, 4}, 3: {2, 5}}[request.broker]
        assert all(f'"partition":{n},'.encode() not in request.body for n in set(range(6)) - led)


def test_a_partition_that_moves_is_read_on_at_its_new_leader(cluster: PlayedCluster):
    cluster.append([b"a", b"b"])
    with consumer(cluster) as reading:
        reading.assign(ALL)
        assert read(reading, 2) == {0: [b"a", b"b"]}
        looks = len(cluster.asked("/metadata"))
        cluster.lead(3)
        cluster.append([b"c"])
        assert read(reading, 1) == {0: [b"c"]}
        assert len(cluster.asked("/metadata")) == looks + 1
    assert fetches(cluster)[-1].never


def test_a_dead_leader_is_left_for_its_successor(cluster: PlayedCluster):
    for number in range(3):
        cluster.append([b"a"], partition=number)
    with consumer(cluster) as reading:
        reading.assign(ALL)
        read(reading, 3)
        cluster.kill(2, elect=False)
        cluster.append([b"b"], partition=0)
        assert read(reading, 1) == {0: [b"b"]}  # the other partitions are still read
        cluster.append([b"b"], partition=1)
        assert reading.poll(timeout_s=0.3) == []
        cluster.forget(2)
        assert read(reading, 1) == {1: [b"b"]}


def test_the_broker_of_the_only_address_may_die(cluster: PlayedCluster):
    cluster.append([b"a"])
    with consumer(cluster) as reading:
        reading.subscribe(["t"])
        read(reading, 1)
        cluster.kill(1)
        cluster.append([b"b"])
        assert read(reading, 1) == {0: [b"b"]}


def test_a_topic_that_a_broker_has_not_heard_of_is_found_a_moment_later(cluster: PlayedCluster):
    cluster.append([b"a"])
    hidden = cluster.topics.pop("t")
    looks = []

    def hear(request: Request) -> None:
        looks.extend([request] if request.path == "/metadata" else [])
        if len(looks) == 3:
            cluster.topics["t"] = hidden

    cluster.before = hear
    with consumer(cluster) as reading:
        reading.subscribe(["t"])
        assert read(reading, 1) == {0: [b"a"]}
        reading.subscribe(["missing"])
        with pytest.raises(errors.UnknownTopicError, match="'missing' not found"):
            read(reading, 1)


def test_a_partition_without_a_leader_is_waited_for(cluster: PlayedCluster):
    cluster.lead(NOBODY)
    cluster.append([b"a"])
    cluster.append([b"b"], partition=1)
    with consumer(cluster) as reading:
        reading.assign(ALL)
        assert read(reading, 1) == {1: [b"b"]}
        cluster.lead(2)
        assert read(reading, 1) == {0: [b"a"]}


def test_a_partition_that_is_away_for_long_is_an_error_in_poll(cluster: PlayedCluster):
    cluster.append([b"b"], partition=1)
    with consumer(cluster, default_api_timeout_ms=300) as reading:
        reading.assign(ALL)
        read(reading, 1)
        cluster.lead(NOBODY)
        with pytest.raises(errors.LeaderNotAvailableError):
            read(reading, 1)
        cluster.lead(3)
        cluster.append([b"a"])

        def poll() -> list[bytes]:
            with suppress(errors.LeaderNotAvailableError):  # until the new leader is known
                return [record.value for record in reading.poll(timeout_s=0.1)]
            return []

        assert eventually(poll, "it is read again") == [b"a"]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_leader_that_does_not_report_its_offsets_is_waited_for(cluster: PlayedCluster, reset: str):
    """Wait for a leader that does not return its offsets: a position of -1 would be an error in ``poll``."""
    cluster.append([b"before"])
    with consumer(cluster, auto_offset_reset=reset) as reading:
        cluster.untold = 2
        reading.assign(ALL)
        assert reading.position(ALL[0]) == (1 if reset == "latest" else 0)
        cluster.append([b"after"])
        assert read(reading, 1)[0][0] == (b"after" if reset == "latest" else b"before")
        cluster.untold = 2
        assert reading.end_offsets(ALL[:1]) == {ALL[0]: 2}
        cluster.untold = 2
        reading.seek_to_end(ALL[:1])
        assert reading.position(ALL[0]) == 2
        assert not cluster.untold


@pytest.mark.parametrize(
    "refusal",
    [errors.OffsetNotAvailableError("78"), errors.NotLeaderOrFollowerError("6"), errors.BrokerNotReadyError("8")],
    ids=lambda error: error.kafka_name,
)
def test_refusals_for_now_are_tried_again_from_the_same_position(cluster: PlayedCluster, refusal, monkeypatch):
    cluster.append([b"a", b"b"])
    left = [refusal] * 2
    require = cluster._require_leader

    def refuse(request: Request, partition: object) -> None:
        if left and request.path == "/fetch":
            raise left.pop()
        require(request, partition)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "_require_leader", refuse)
    with consumer(cluster, auto_offset_reset="none") as reading:
        reading.assign(ALL[:1])
        reading.seek(ALL[0], 1)
        assert read(reading, 1) == {0: [b"b"]}
    assert left == []


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [b"a", b"z"]), ("latest", [b"z"])])
def test_a_position_beyond_the_end_of_a_new_leader_is_reset(cluster: PlayedCluster, reset: str, expected: list[bytes]):
    """Shorten the log, as an unclean election does."""
    cluster.append([b"a", b"b", b"c"])
    with consumer(cluster, auto_offset_reset=reset) as reading:
        reading.assign(ALL[:1])
        reading.seek(ALL[0], 0)
        read(reading, 3)
        with cluster.lock:
            partition = cluster.topics["t"][0]
            partition.batches.clear()
            partition.log_end = 0
            cluster.append([b"a"])
            cluster.lead(2)
        eventually(lambda: reading.poll(timeout_s=0) or reading.position(ALL[0]) <= 1, "the position is reset")
        reading.seek(ALL[0], 3)
        if reset == "latest":
            eventually(lambda: not reading.poll(timeout_s=0.05) and reading.position(ALL[0]) == 1, "to the end")
        cluster.append([b"z"])
        assert read(reading, len(expected)) == {0: expected}


def test_without_a_policy_such_a_position_is_an_error(cluster: PlayedCluster):
    cluster.append([b"a"])
    with consumer(cluster, auto_offset_reset="none") as reading:
        reading.assign(ALL[:1])
        reading.seek(ALL[0], 5)
        with pytest.raises(errors.OffsetOutOfRangeError) as raised:
            read(reading, 1)
        assert (raised.value.log_start_offset, raised.value.high_watermark) == (0, 1)


def test_all_leaders_together_bring_no_more_than_one_did(cluster: PlayedCluster):
    for number in range(3):
        for _ in range(20):
            cluster.append([b"x" * 1_000], partition=number)
    with consumer(cluster, fetch_max_bytes=6_000) as reading:
        reading.assign(ALL)
        read(reading, 60)
    assert all(request.never for request in fetches(cluster))
    assert max(json.loads(request.body)["max_bytes"] for request in fetches(cluster)) == 2_000


def test_unreachable_brokers_are_read_through_the_first_address(cluster: PlayedCluster, caplog):
    with unreachable_address() as one, unreachable_address() as two, unreachable_address() as three:
        cluster.advertised = {1: one, 2: two, 3: three}
        for number in range(3):
            cluster.append([b"a", b"b"], partition=number)
        with caplog.at_level(logging.WARNING), consumer(cluster) as reading:
            reading.assign(ALL)
            read(reading, 6)
            cluster.append([b"c"], partition=2)
            assert read(reading, 1) == {2: [b"c"]}
    assert {(request.broker, request.never) for request in fetches(cluster)} == {(1, False)}
    assert len(caplog.records) == 3


def test_a_broker_that_dies_takes_its_thread_along(cluster: PlayedCluster):
    with consumer(cluster) as reading:
        reading.assign(ALL)
        eventually(lambda: not reading.poll(timeout_s=0.05) and cluster.fetching_together == 3, "all are asked")
        cluster.kill(3)
        cluster.append([b"b"], partition=2)
        read(reading, 1)

        def threads() -> int:
            return sum(thread.name == "logstore-consumer" for thread in threading.enumerate())

        eventually(lambda: threads() == 2, "a thread is left without a broker")


def test_close_is_quick_while_brokers_hang(cluster: PlayedCluster):
    released = threading.Event()
    cluster.before = lambda request: None if request.path.startswith("/topics") else released.wait(20) and None
    reading = consumer(cluster)
    reading.assign(ALL)
    reading.poll(timeout_s=0.2)
    began = time.monotonic()
    reading.close()
    assert time.monotonic() - began < 15
    released.set()


def test_commits_go_to_the_coordinator_and_follow_it(cluster: PlayedCluster):
    cluster.coordinators["g"] = 2
    cluster.append([b"a", b"b", b"c"])
    with consumer(cluster, group_id="g", enable_auto_commit=False) as reading:
        reading.assign(ALL)
        read(reading, 3)
        reading.commit()
        cluster.coordinators["g"] = 3
        reading.commit({ALL[0]: 1})
        cluster.kill(3)
        reading.commit({ALL[0]: 2})
        assert reading.committed([ALL[0]]) == {ALL[0]: 2}
    assert cluster.commits == [(2, True), (3, True), (1, True)]


@pytest.mark.parametrize(
    "refusal",
    [
        errors.CoordinatorLoadInProgressError("14"),
        errors.CoordinatorNotAvailableError("15"),
        errors.NotCoordinatorError("16"),
    ],
    ids=lambda error: error.kafka_name,
)
def test_a_coordinator_that_is_not_ready_is_found_again(cluster: PlayedCluster, refusal: errors.LogStoreError):
    cluster.coordinators["g"] = 2
    left = [refusal] * 2
    with Admin(cluster.bootstrap) as admin:
        admin.commit_offsets("g", {("t", 0): 0})
        looks = len(cluster.asked("/metadata"))
        cluster.before = lambda request: left.pop() if request.path.startswith("/groups") and left else None
        admin.commit_offsets("g", {("t", 0): 1})
        assert len(cluster.asked("/metadata")) == looks + 2
    assert cluster.committed["g"] == {("t", 0): 1}


def test_admin_asks_the_leader_of_a_partition_and_survives_its_move(cluster: PlayedCluster):
    cluster.append([b"a"], partition=1)
    with Admin(cluster.bootstrap) as admin:
        assert admin.offsets("t", 1).end_offset == 1
        cluster.lead(3, partition=1)
        assert admin.offsets("t", 1).end_offset == 1
        cluster.kill(3)
        assert admin.offsets("t", 1).end_offset == 1
    asked = [(request.broker, request.never) for request in cluster.asked("/topics/t/partitions")]
    assert asked[0] == (2, True)
    assert asked[-1][0] in (1, 2)


def test_an_admin_continues_when_its_only_address_dies(cluster: PlayedCluster):
    with Admin(cluster.bootstrap) as admin:
        assert admin.cluster_id == "played"
        cluster.kill(1)
        assert admin.describe_topic("t").name == "t"


def test_an_answer_of_the_former_leader_that_comes_late_is_dropped(cluster: PlayedCluster):
    """Hold the answer of the former leader, which was asked for the same offset as the new one."""
    cluster.append([b"a", b"b"])
    held, released = threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if request.path == "/fetch" and request.broker == 1 and not held.is_set():
            held.set()
            released.wait(20)

    cluster.after = hold
    with consumer(cluster) as reading:
        reading.assign(ALL)
        eventually(lambda: not reading.poll(timeout_s=0.05) and held.is_set(), "the former leader is asked")
        cluster.lead(3)
        reading._metadata.refresh(["t"])
        assert read(reading, 2) == {0: [b"a", b"b"]}
        released.set()
        eventually(lambda: 1 not in reading._fetcher._workers, "the former leader has answered")
        cluster.append([b"c"])
        assert read(reading, 1) == {0: [b"c"]}
