"""Leaders move, die, refuse and lose answers, and the producer still stores each record once, in order."""

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from logstore import Producer, errors
from tests.support.eventually import eventually
from tests.support.played_cluster import NOBODY, PlayedCluster, Request, unreachable_address


@pytest.fixture
def cluster() -> Iterator[PlayedCluster]:
    with PlayedCluster() as cluster:
        yield cluster


def producer(cluster: PlayedCluster, **options: object) -> Producer:
    return Producer(cluster.bootstrap, **{"retry_backoff_ms": 5, "linger_ms": 0, **options})  # type: ignore[arg-type]


def test_each_request_goes_to_the_leader_of_all_its_partitions(cluster: PlayedCluster):
    with producer(cluster, linger_ms=20) as sending:
        deliveries = [sending.send("t", b"%d" % n, partition=n % 3) for n in range(30)]
        assert [delivery.result(20).partition for delivery in deliveries] == [n % 3 for n in range(30)]
    produced = [request for request in cluster.requests if request.is_produce]
    assert {request.broker for request in produced} == {1, 2, 3}
    assert all(request.never for request in produced)
    for number, partition in enumerate(cluster.topics["t"]):
        assert partition.values == [b"%d" % n for n in range(30) if n % 3 == number]
    # The producer learned this from the one given address, in one request.
    assert [(r.broker, r.query["topics"]) for r in cluster.asked("/metadata")] == [(1, "t")]


def test_a_wrong_leader_costs_one_look_at_the_metadata_and_no_error(cluster: PlayedCluster):
    with producer(cluster) as sending:
        sending.send("t", b"a", partition=0).result(20)
        cluster.lead(3)
        assert sending.send("t", b"b", partition=0).result(20).offset == 1
    assert cluster.topics["t"][0].values == [b"a", b"b"]
    assert [request.broker for request in cluster.requests if request.is_produce] == [1, 1, 3]
    assert len(cluster.asked("/metadata")) == 2


def test_a_partition_that_has_moved_is_refused_by_itself_and_sent_to_its_new_leader(cluster: PlayedCluster):
    for partition in range(3):
        cluster.lead(1, partition=partition)
    with producer(cluster, linger_ms=50) as sending:
        sending.send("t", b"0", partition=0).result(20)
        cluster.lead(2, partition=1)
        cluster.lead(3, partition=2)
        deliveries = [sending.send("t", b"x", partition=n) for n in range(3)]
        assert [delivery.result(20).offset for delivery in deliveries] == [1, 0, 0]
    *_, mixed, second, third = (request for request in cluster.requests if request.is_produce)
    assert (mixed.broker, {second.broker, third.broker}) == (1, {2, 3})


def test_a_request_is_divided_when_its_partitions_have_several_leaders_by_now(cluster: PlayedCluster):
    """Lose the answer after the records are stored; both new leaders know the sequences."""
    for partition in range(3):
        cluster.lead(1, partition=partition)
    lost = threading.Event()

    def lose(request: Request) -> str | None:
        if request.is_produce and request.broker == 1 and not lost.is_set():
            lost.set()
            cluster.forget(1)
            return "cut"
        return None

    cluster.after = lose
    with producer(cluster, linger_ms=50) as sending:
        deliveries = [sending.send("t", b"%d" % n, partition=n % 3) for n in range(9)]
        assert [delivery.result(20).offset for delivery in deliveries] == [n // 3 for n in range(9)]
    assert lost.is_set()
    assert [len(partition.values) for partition in cluster.topics["t"]] == [3, 3, 3]
    again = [r for r in cluster.requests if r.is_produce and r.broker != 1]
    assert {request.headers["logstore-base-sequences"] for request in again} >= {"0=0,2=0", "1=0"}


def test_a_dead_leader_is_replaced_without_an_error(cluster: PlayedCluster):
    with producer(cluster) as sending:
        sending.send("t", b"a", partition=1).result(20)
        cluster.kill(2, elect=False)
        delivery = sending.send("t", b"b", partition=1)
        # The other brokers do not know that it is dead, because its session has not ended.
        time.sleep(0.2)
        assert not delivery.done()
        cluster.forget(2)
        assert delivery.result(20).offset == 1
    assert cluster.topics["t"][1].values == [b"a", b"b"]


def test_the_first_address_may_die_once_the_others_are_known(cluster: PlayedCluster):
    with producer(cluster) as sending:
        sending.send("t", b"a", partition=0).result(20)
        cluster.kill(1)
        assert sending.send("t", b"b", partition=0).result(20).offset == 1


def test_a_partition_without_a_leader_waits_and_holds_up_no_other(cluster: PlayedCluster):
    cluster.lead(NOBODY, partition=0)
    with producer(cluster, linger_ms=20) as sending:
        waiting, *others = [sending.send("t", b"x", partition=n) for n in range(3)]
        for delivery in others:
            assert delivery.result(20).offset == 0
        assert not waiting.done()
        assert not [r for r in cluster.requests if r.is_produce and "0=0" in r.headers["logstore-base-sequences"]]
        cluster.lead(2, partition=0)
        assert waiting.result(20).offset == 0


def test_a_broker_that_hangs_is_left_for_the_new_leader(cluster: PlayedCluster):
    hanging, woken = threading.Event(), threading.Event()

    def hang(request: Request) -> str | None:
        if request.broker == 1 and hanging.is_set():
            woken.wait(20)
            return "cut"
        return None

    with producer(cluster, request_timeout_ms=300) as sending:
        sending.send("t", b"a", partition=0).result(20)
        cluster.before = hang
        hanging.set()
        cluster.forget(1)
        assert sending.send("t", b"b", partition=0).result(20).offset == 1
        woken.set()


@pytest.mark.parametrize(
    "refusal",
    [
        errors.LeaderNotAvailableError("5"),
        errors.NotLeaderOrFollowerError("6"),
        errors.NotEnoughReplicasError("19"),
        errors.NotEnoughReplicasAfterAppendError("20"),
        errors.OffsetNotAvailableError("78"),
        errors.BrokerNotReadyError("8"),
        errors.RequestTimedOutError("7"),
    ],
    ids=lambda error: error.kafka_name,
)
def test_refusals_for_now_are_tried_again(cluster: PlayedCluster, refusal: errors.LogStoreError):
    left = [refusal, refusal]
    cluster.before = lambda request: left.pop() if request.is_produce and left else None
    with producer(cluster) as sending:
        assert sending.send("t", b"a", partition=0).result(20).offset == 0
    assert left == []
    assert cluster.topics["t"][0].values == [b"a"]


def test_a_leader_that_has_not_heard_of_the_topic_yet_is_asked_again(cluster: PlayedCluster):
    left = [errors.UnknownTopicError("Topic 't' not found.")] * 2
    cluster.before = lambda request: left.pop() if request.is_produce and left else None
    with producer(cluster) as sending:
        assert sending.send("t", b"a", partition=1).result(20).offset == 0


def test_a_broker_that_has_started_and_has_heard_of_nothing_is_not_believed(cluster: PlayedCluster):
    """Elect the broker that the producer asks for metadata, before it is notified."""
    with producer(cluster) as sending:
        sending.send("t", b"a", partition=0).result(20)
        cluster.deaf = {1}
        delivery = sending.send("t", b"b", partition=0)
        eventually(lambda: len([r for r in cluster.requests if r.is_produce]) > 4, "it is not tried again")
        assert not delivery.done()
        cluster.deaf.clear()
        assert delivery.result(20).offset == 1
    assert {request.broker for request in cluster.asked("/metadata")} > {1}


def test_a_topic_that_is_gone_is_an_error(cluster: PlayedCluster):
    with producer(cluster) as sending:
        sending.send("t", b"a", partition=0).result(20)
        with cluster.lock:
            del cluster.topics["t"], cluster.ids["t"]
        with pytest.raises(errors.UnknownTopicError):
            sending.send("t", b"b", partition=0).result(20)
        with pytest.raises(errors.UnknownTopicError):
            sending.flush()


def test_an_old_view_takes_no_leader_back(cluster: PlayedCluster):
    """Answer metadata requests with a broker that is behind the leader."""
    with producer(cluster) as sending:
        sending.send("t", b"a", partition=0).result(20)
        cluster.lead(2)
        sending.send("t", b"b", partition=0).result(20)
        with cluster.lock:
            cluster.topics["t"][0].epoch -= 1
            cluster.topics["t"][0].leader = 1
        sending._sender.find_partitions("t", time.monotonic() + 10)
        assert sending._sender._metadata.leader("t", 0) == 2
        with cluster.lock:
            cluster.topics["t"][0].epoch += 1
            cluster.topics["t"][0].leader = 2
        sending.send("t", b"c", partition=0).result(20)
    assert [request.broker for request in cluster.requests if request.is_produce] == [1, 1, 2, 2]


def test_requests_in_flight_are_bounded_for_each_broker(cluster: PlayedCluster):
    under_way: list[int] = []
    most: dict[int, int] = {}
    release = threading.Event()
    lock = threading.Lock()

    def hold(request: Request) -> None:
        if not request.is_produce:
            return
        with lock:
            under_way.append(request.broker)
            most[request.broker] = max(most.get(request.broker, 0), under_way.count(request.broker))
        release.wait(20)
        with lock:
            under_way.remove(request.broker)

    cluster.topics["t"] += [type(cluster.topics["t"][0])(1 + n % 3) for n in range(9)]
    cluster.before = hold
    with producer(cluster, max_in_flight_requests_per_connection=2) as sending:
        deliveries = []
        for turn in range(12):
            deliveries.append(sending.send("t", b"x", partition=turn))
            if turn in (2, 5):
                eventually(lambda turn=turn: len(under_way) == turn + 1, "each broker has its requests")
        release.set()
        for delivery in deliveries:
            delivery.result(20)
    assert most == {1: 2, 2: 2, 3: 2}


def test_connections_to_a_broker_that_leaves_are_closed(cluster: PlayedCluster):
    with producer(cluster) as sending:
        for partition in range(3):
            sending.send("t", b"a", partition=partition).result(20)
        assert cluster.brokers[3].connections == 1
        cluster.forget(3)
        sending.send("t", b"b", partition=2).result(20)
        eventually(lambda: cluster.brokers[3].connections == 0, "the connection is closed")


def test_brokers_that_cannot_be_reached_get_their_requests_through_the_first_address(
    cluster: PlayedCluster, caplog: pytest.LogCaptureFixture
):
    with unreachable_address() as one, unreachable_address() as two, unreachable_address() as three:
        cluster.advertised = {1: one, 2: two, 3: three}
        with caplog.at_level(logging.WARNING), producer(cluster) as sending:
            for turn in range(4):
                for partition in range(3):
                    assert sending.send("t", b"a", partition=partition).result(20).offset == turn
    produced = [request for request in cluster.requests if request.is_produce]
    assert {(request.broker, request.never) for request in produced} == {(1, False)}
    told = [record.getMessage() for record in caplog.records]
    assert sorted(line.split(" from here")[0] for line in told) == [
        f"Broker {n} cannot be reached at {url}" for n, url in ((1, one), (2, two), (3, three))
    ]


def test_a_dead_broker_is_not_reported_as_unreachable(cluster: PlayedCluster, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING), producer(cluster) as sending:
        sending.send("t", b"a", partition=1).result(20)
        cluster.kill(2, elect=False)
        delivery = sending.send("t", b"b", partition=1)
        time.sleep(0.1)
        cluster.forget(2)
        delivery.result(20)
        cluster.restart(2)
        cluster.lead(2, partition=1)
        sending.send("t", b"c", partition=1).result(20)
    assert caplog.records == []
    assert [request for request in cluster.requests if request.is_produce][-1].broker == 2
