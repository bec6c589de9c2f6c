"""A producer and a consumer while brokers move, die, come back, refuse requests and lose responses in any order.

With idempotence each record is stored once, in the order of ``send``, and read once, in the order of the log.
"""

import threading
import time
from collections.abc import Callable

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from logstore import Consumer, Producer, TopicPartition, errors
from tests.support.examples import examples
from tests.support.played_cluster import NOBODY, PlayedCluster, Request

BROKERS, PARTITIONS, RECORDS = 3, 4, 60
_brokers, _partitions = st.integers(1, BROKERS), st.integers(0, PARTITIONS - 1)
_REFUSALS: list[Callable[[], errors.LogStoreError | str]] = [
    lambda: errors.LeaderNotAvailableError("5"),
    lambda: errors.NotLeaderOrFollowerError("6"),
    lambda: errors.RequestTimedOutError("7"),
    lambda: errors.NotEnoughReplicasError("19"),
    lambda: errors.NotEnoughReplicasAfterAppendError("20"),
    lambda: errors.OffsetNotAvailableError("78"),
    lambda: errors.BrokerNotReadyError("8"),
    lambda: "cut",
]
_steps = st.one_of(
    st.tuples(st.just("lead"), _brokers, _partitions),
    st.tuples(st.just("nobody"), _brokers, _partitions),
    st.tuples(st.just("kill"), _brokers, st.booleans()),
    st.tuples(st.just("restart"), _brokers, st.just(0)),
    # "refuse" fails requests before anything is stored; "lose" fails them after the broker has handled them.
    st.tuples(st.just("refuse"), st.integers(0, len(_REFUSALS) - 1), st.integers(1, 3)),
    st.tuples(st.just("lose"), st.sampled_from([2, 4, 7]), st.integers(1, 3)),
    st.tuples(st.just("wait"), st.integers(1, 30), st.just(0)),
)


@given(steps=st.lists(_steps, max_size=12))
@example(steps=[("lose", 7, 1), ("kill", 1, True), ("lose", 7, 1), ("kill", 2, True)])
@example(steps=[("kill", 1, False), ("wait", 30, 0), ("nobody", 2, 1), ("lead", 3, 0), ("restart", 1, 0)])
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_record_is_stored_and_read_once_in_order(steps: list[tuple[str, int, int]]) -> None:
    with PlayedCluster(BROKERS, {"t": PARTITIONS}) as cluster:
        addresses = ",".join(broker.url for broker in cluster.brokers.values())
        with (
            Producer(addresses, linger_ms=1, retry_backoff_ms=2, retry_backoff_max_ms=20, batch_size=60) as producer,
            Consumer(addresses, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer,
        ):
            consumer.assign([TopicPartition("t", partition) for partition in range(PARTITIONS)])
            reading = threading.Event()
            found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
            offsets: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}

            def read() -> None:
                while not reading.is_set():
                    for record in consumer.poll(timeout_s=0.02):
                        found[record.partition].append(record.value)
                        offsets[record.partition].append(record.offset)

            reader = threading.Thread(target=read)
            reader.start()
            try:
                deliveries = []
                for number in range(RECORDS):
                    deliveries.append(producer.send("t", b"%d" % number, partition=number % PARTITIONS))
                    if steps and number % 4 == 3:
                        _take(cluster, *steps.pop(0))
                for step in steps:
                    _take(cluster, *step)
                    time.sleep(0.005)
                _heal(cluster)
                places = [delivery.result(60) for delivery in deliveries]
                give_up = time.monotonic() + 60
                while sum(map(len, found.values())) < RECORDS and time.monotonic() < give_up:
                    time.sleep(0.005)
            finally:
                reading.set()
                reader.join(60)
    for partition in range(PARTITIONS):
        sent = [b"%d" % number for number in range(RECORDS) if number % PARTITIONS == partition]
        assert cluster.topics["t"][partition].values == sent
        assert found[partition] == sent
        assert offsets[partition] == list(range(len(sent)))
    assert [place.offset for place in places] == [number // PARTITIONS for number in range(RECORDS)]


def _take(cluster: PlayedCluster, step: str, one: int, two: int) -> None:
    alive = [number for number, broker in cluster.brokers.items() if not broker.is_stopped]
    match step:
        case "lead" if one in alive:
            cluster.lead(one, partition=two)
        case "nobody":
            cluster.lead(NOBODY, partition=two)
        case "kill" if one in alive and len(alive) > 1:
            cluster.kill(one, elect=bool(two))
        case "restart" if one not in alive:
            cluster.forget(one)
            cluster.restart(one)
        case "refuse" | "lose":
            refusals = [_REFUSALS[one]() for _ in range(two)]

            def refuse(request: Request) -> errors.LogStoreError | str | None:
                is_record = request.is_produce or request.path == "/fetch"
                return refusals.pop() if is_record and refusals else None

            if step == "refuse":
                cluster.before = refuse
            else:
                cluster.after = refuse
        case "wait":
            time.sleep(one / 1000)
        case _:
            pass


def _heal(cluster: PlayedCluster) -> None:
    for number, broker in list(cluster.brokers.items()):
        if broker.is_stopped:
            cluster.forget(number)
            cluster.restart(number)
    for number, partition in enumerate(cluster.topics["t"]):
        if partition.leader == NOBODY:
            cluster.lead(1, partition=number)
