"""A producer loses answers, gets refusals, or has sequence numbers that do not fit."""

from collections.abc import Iterator

import pytest

from logstore import errors
from logstore.client.admin import Admin
from logstore.client.producer import Producer
from logstore.client.producer.record_accumulator import RecordAccumulator
from tests.support.eventually import eventually
from tests.support.faulty_proxy import FaultyProxy, Seen
from tests.support.stored_records import stored_records

pytestmark = pytest.mark.system


@pytest.fixture
def proxy(store: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(store) as proxy:
        yield proxy


def identity(seen: Seen) -> tuple[int, int, str]:
    """Return the producer id, epoch and base sequences of a request."""
    names = ("Logstore-Producer-Id", "Logstore-Producer-Epoch", "Logstore-Base-Sequences")
    producer_id, epoch, sequences = (seen.headers[name] for name in names)
    return int(producer_id), int(epoch), sequences


def values(store: str, topic: str) -> dict[int, list[int]]:
    found = stored_records(store, topic)
    return {partition: [int(r.value or b"-1") for r in records] for partition, records in found.items()}


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_every_record_is_stored_once_and_in_order_though_answers_get_lost(store: str, topic: str, proxy, codec):
    for _ in range(6):
        proxy.cut().pass_on(2).refuse(503, 50301).cut(2).refuse(429, 42901, retry_after=0)
    options = {"linger_ms": 0, "batch_size": 1_000, "max_request_size": 2_000, "retry_backoff_ms": 1}
    with Producer(proxy.url, compression_type=codec, **options) as producer:
        deliveries = [producer.send(topic, f"{i}", partition=i % 3) for i in range(1_500)]
        producer.flush()
    assert len(proxy.seen) > 40
    assert values(store, topic) == {p: list(range(p, 1_500, 3)) for p in range(3)}
    assert [delivery.result().offset for delivery in deliveries] == [i // 3 for i in range(1_500)]


def test_a_request_that_is_sent_again_is_the_same(topic: str, proxy: FaultyProxy):
    proxy.cut().refuse(503, 50301)
    with Producer(proxy.url, retry_backoff_ms=1) as producer:
        producer.send_batch(topic, {"value": ["a", "b", "c"], "partition": [0, 3, 3]}).result()
        producer.send(topic, "d", partition=3).result()
    first, second, third, fourth = proxy.seen
    assert first.body == second.body == third.body
    assert identity(first) == identity(second) == identity(third)
    assert identity(first)[1:] == (0, "0=0,3=0")
    assert identity(fourth) == (*identity(first)[:2], "3=2")


def test_without_idempotence_a_lost_answer_may_store_twice(store: str, topic: str, proxy: FaultyProxy):
    proxy.cut()
    with Producer(proxy.url, enable_idempotence=False, retry_backoff_ms=1) as producer:
        producer.send(topic, "1", partition=0).result()
    assert values(store, topic) == {0: [1, 1]}
    assert "Logstore-Producer-Id" not in proxy.seen[0].headers


def test_without_retries_a_lost_answer_is_the_end_of_it(store: str, topic: str, proxy: FaultyProxy):
    proxy.cut()
    with Producer(proxy.url, retries=0) as producer:
        with pytest.raises(errors.NetworkError, match="unknown"):
            producer.send(topic, "1", partition=0).result()
        with pytest.raises(errors.NetworkError):
            producer.flush()
    assert values(store, topic) == {0: [1]}


def test_retries_are_counted(topic: str, proxy: FaultyProxy):
    proxy.refuse(503, 50301, times=10)
    with Producer(proxy.url, retries=3, retry_backoff_ms=1) as producer:
        with pytest.raises(errors.BrokerNotReadyError):
            producer.send(topic, "1", partition=0).result()
        with pytest.raises(errors.BrokerNotReadyError):
            producer.flush()
    assert len(proxy.seen) == 4


@pytest.mark.long
def test_after_the_delivery_timeout_the_epoch_rises_and_sequences_begin_again(
    store: str, topic: str, proxy: FaultyProxy
):
    options = {"linger_ms": 0, "request_timeout_ms": 6_000, "delivery_timeout_ms": 8_000, "retry_backoff_ms": 1}
    with Producer(proxy.url, **options) as producer:
        producer.send(topic, "0", partition=0).result()
        producer.send(topic, "1", partition=1).result()
        proxy.hold(50)
        lost = producer.send(topic, "2", partition=0)
        assert isinstance(lost.exception(30), errors.RequestTimedOutError)
        tries = len(proxy.seen)
        proxy.forget_orders()
        producer.send(topic, "3", partition=0).result(10)
        producer.send(topic, "4", partition=1).result(10)
        with pytest.raises(errors.RequestTimedOutError):
            producer.flush()
    producer_id, epoch, _ = identity(proxy.seen[0])
    assert {identity(seen) for seen in proxy.seen[2:tries]} == {(producer_id, epoch, "0=1")}
    assert [identity(seen) for seen in proxy.seen[tries:]] == [
        (producer_id, epoch + 1, "0=0"),
        (producer_id, epoch + 1, "1=0"),
    ]
    # The store had the record, though the producer never got the answer; no record is duplicated.
    assert values(store, topic) == {0: [0, 2, 3], 1: [1, 4]}


@pytest.mark.parametrize(
    ("status", "code", "kind", "kafka_name"),
    [
        (400, 40003, errors.InvalidProducerRequestError, "INVALID_REQUEST"),
        (404, 40401, errors.UnknownTopicError, "UNKNOWN_TOPIC_OR_PARTITION"),
        (404, 40402, errors.UnknownPartitionError, "UNKNOWN_TOPIC_OR_PARTITION"),
        (409, 40911, errors.OutOfOrderSequenceError, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (409, 40912, errors.InvalidProducerEpochError, "INVALID_PRODUCER_EPOCH"),
        (409, 40913, errors.DuplicateSequenceError, "DUPLICATE_SEQUENCE_NUMBER"),
        (413, 41301, errors.RequestTooLargeError, "MESSAGE_TOO_LARGE"),
        (413, 41302, errors.RecordTooLargeError, "MESSAGE_TOO_LARGE"),
        (422, 42206, errors.InvalidRecordError, "INVALID_RECORD"),
        (500, 50002, errors.LogStoreError, "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_an_error_that_will_not_go_away_surfaces_at_once(topic: str, proxy, status, code, kind, kafka_name):
    proxy.refuse(status, code)
    with Producer(proxy.url) as producer:
        error = producer.send(topic, "1", partition=0).exception()
        assert (type(error), error.kafka_name, error.retriable) == (kind, kafka_name, False)
        assert len(proxy.seen) == 1
        assert producer.send(topic, "2", partition=0).result().offset == 0
        with pytest.raises(kind, match="as ordered"):
            producer.flush()
    # If the store may have counted the first record, or expects another number, the producer needs a new epoch.
    fresh = kind in (
        errors.OutOfOrderSequenceError,
        errors.InvalidProducerEpochError,
        errors.DuplicateSequenceError,
        errors.LogStoreError,
    )
    assert [identity(seen)[1:] for seen in proxy.seen] == [(0, "0=0"), (1 if fresh else 0, "0=0")]


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, 42901), (503, 50301), (503, 50302), (504, 50401)],
)
def test_an_error_that_goes_away_is_not_seen(topic: str, proxy: FaultyProxy, status, code):
    proxy.refuse(status, code, retry_after=0, times=2)
    with Producer(proxy.url, retry_backoff_ms=1) as producer:
        assert producer.send(topic, "1", partition=0).result().offset == 0
    assert len(proxy.seen) == 3


def test_only_the_partition_that_is_out_of_step_fails(store: str, topic: str, proxy: FaultyProxy):
    # The store refuses the whole request, takes its first half, and refuses the first partition of its second half.
    proxy.refuse(409, 40911).pass_on().refuse(409, 40911).refuse(409, 40911)
    with Producer(proxy.url) as producer:
        delivery = producer.send_batch(topic, {"value": ["0", "1", "2", "3"], "partition": [0, 1, 2, 3]})
        ((rows, error),) = delivery.failures()
        assert (rows.tolist(), error.kafka_name) == ([2], "OUT_OF_ORDER_SEQUENCE_NUMBER")
        with pytest.raises(errors.OutOfOrderSequenceError):
            producer.flush()
    assert values(store, topic) == {0: [0], 1: [1], 3: [3]}


def test_only_records_of_a_partition_that_may_take_them_later_are_sent_again(
    store: str, topic: str, proxy: FaultyProxy
):
    proxy.refuse_partition(2, 50302).refuse(503, 50301)
    with Producer(proxy.url, retry_backoff_ms=1) as producer:
        delivery = producer.send_batch(topic, {"value": ["0", "1", "2", "3", "4"], "partition": [0, 1, 2, 3, 2]})
        producer.flush()
        assert delivery.places().offsets.tolist() == [0, 0, 0, 0, 1]
        producer.send_batch(topic, {"value": ["5", "6"], "partition": [2, 3]})
        producer.flush()
    assert values(store, topic) == {0: [0], 1: [1], 2: [2, 4, 5], 3: [3, 6]}
    whole, again, once_more, _ = proxy.seen
    assert again.body == once_more.body != whole.body
    assert identity(whole)[2] == "0=0,1=0,2=0,3=0"
    assert identity(again) == identity(once_more) == (*identity(whole)[:2], "2=0")


@pytest.mark.parametrize("code", [40402, 40911])
def test_a_partition_that_takes_nothing_costs_no_other_its_records(store: str, topic: str, proxy: FaultyProxy, code):
    proxy.refuse_partition(2, code)
    with Producer(proxy.url) as producer:
        delivery = producer.send_batch(topic, {"value": ["0", "1", "2", "3"], "partition": [0, 1, 2, 3]})
        ((rows, error),) = delivery.failures()
        assert rows.tolist() == [2]
        assert error.message == "as ordered"
        assert delivery.places().offsets.tolist() == [0, 0, -1, 0]
        assert len(proxy.seen) == 1
        with pytest.raises(errors.LogStoreError):
            producer.flush()
        producer.send_batch(topic, {"value": ["4", "5"], "partition": [2, 3]}).result()
    assert values(store, topic) == {0: [0], 1: [1], 2: [4], 3: [3, 5]}


def test_the_tries_for_one_partition_are_counted(store: str, topic: str, proxy: FaultyProxy):
    proxy.refuse_partition(2, 50302).refuse(503, 50302, times=10)
    with Producer(proxy.url, retries=2, retry_backoff_ms=1) as producer:
        delivery = producer.send_batch(topic, {"value": ["0", "2"], "partition": [0, 2]})
        ((rows, error),) = delivery.failures()
        assert (rows.tolist(), type(error)) == ([1], errors.StorageFullError)
        with pytest.raises(errors.StorageFullError):
            producer.flush()
    assert len(proxy.seen) == 3
    assert values(store, topic) == {0: [0]}


def test_a_repetition_that_the_store_remembers_no_offset_of_is_stored(store: str, topic: str, proxy: FaultyProxy):
    proxy.cut().refuse(409, 40913)
    with Producer(proxy.url, retry_backoff_ms=1) as producer:
        assert producer.send(topic, "1", partition=0).result() == (topic, 0, -1)
        assert producer.send(topic, "2", partition=0).result().offset == 1
    assert values(store, topic) == {0: [1, 2]}
    assert identity(proxy.seen[-1])[1:] == (0, "0=1")


def test_a_partition_that_waits_for_an_answer_holds_up_no_other(
    store: str, admin: Admin, topic: str, proxy: FaultyProxy
):
    proxy.hold()
    with Producer(proxy.url, linger_ms=0) as producer:
        slow = producer.send(topic, "0", partition=0)
        eventually(lambda: proxy.seen)
        assert producer.send(topic, "2", partition=1).result(20).offset == 0
        behind = producer.send(topic, "1", partition=0)
        # This later record is stored, so the record behind the slow one could have been sent as well.
        admin.create_topic(f"{topic}-other")
        assert producer.send(f"{topic}-other", "3").result(20).offset == 0
        assert not slow.done()
        assert not behind.done()
        assert len(proxy.seen) == 3
        proxy.release()
    assert values(store, topic) == {0: [0, 1], 1: [2]}


@pytest.mark.parametrize("linger_ms", [0, 20])
def test_records_queued_behind_a_held_answer_hold_up_no_free_partition(
    store: str, topic: str, proxy: FaultyProxy, linger_ms: int
):
    proxy.hold()
    with Producer(proxy.url, linger_ms=linger_ms) as producer:
        slow = [producer.send(topic, "0", partition=0)]
        eventually(lambda: proxy.seen)
        told = []
        for i in range(1, 20):
            slow.append(producer.send(topic, str(i), partition=0))
            free = producer.send(
                topic, str(i), partition=i % 3 + 1, on_delivery=lambda _, metadata: told.append(metadata)
            )
            assert free.result(20).partition == i % 3 + 1
        assert not any(delivery.done() for delivery in slow)
        eventually(lambda: len(told) == 19)
        proxy.release()
    assert [delivery.result().offset for delivery in slow] == list(range(20))
    assert values(store, topic) == {0: list(range(20)), **{p: list(range(p - 1 or 3, 20, 3)) for p in (1, 2, 3)}}


def test_a_partition_that_is_tried_again_does_not_delay_its_request(store: str, topic: str, proxy: FaultyProxy):
    proxy.refuse_partition(2, 50302).hold()
    with Producer(proxy.url, retry_backoff_ms=1) as producer:
        producer.send_batch(topic, {"value": ["0", "1", "2"], "partition": [0, 1, 2]})
        eventually(lambda: len(proxy.seen) == 2)
        behind = producer.send_batch(topic, {"value": ["3"], "partition": [2]})
        assert producer.send_batch(topic, {"value": ["4", "5"], "partition": [0, 1]}).result(20).offsets.tolist() == [
            1,
            1,
        ]
        assert not behind.done()
        proxy.release()
    assert values(store, topic) == {0: [0, 4], 1: [1, 5], 2: [2, 3]}


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_batches_that_piled_up_for_a_partition_leave_together(store: str, topic: str, proxy: FaultyProxy, codec):
    proxy.hold()
    with Producer(proxy.url, compression_type=codec, retry_backoff_ms=1) as producer:
        producer.send_batch(topic, {"value": ["0"], "partition": [0]})
        eventually(lambda: proxy.seen)
        piled_up = [
            producer.send_batch(topic, {"value": [f"{i}", f"{i + 1}"], "partition": [0, 0]}) for i in range(1, 41, 2)
        ]
        proxy.cut()
        proxy.release()
    assert [delivery.result().offsets.tolist() for delivery in piled_up] == [[i, i + 1] for i in range(1, 41, 2)]
    assert values(store, topic) == {0: list(range(41))}
    _, together, again = proxy.seen
    assert together.body == again.body
    assert identity(again)[2] == "0=1"


def test_an_invalid_record_costs_no_other_batch_its_own(store: str, topic: str, proxy: FaultyProxy):
    # The records are joined, because they are many. The store refuses the whole, its first half, and the first batch of
    # that; then it refuses the second half, but takes both of its halves.
    proxy.hold().refuse(422, 42206, times=3).pass_on().refuse(422, 42206)
    with Producer(proxy.url) as producer:
        producer.send_batch(topic, {"value": ["0"], "partition": [0]})
        eventually(lambda: proxy.seen)
        deliveries = [producer.send_batch(topic, {"value": [f"{i}"] * 2, "partition": [0, 0]}) for i in range(1, 8)]
        proxy.release()
        assert [type(delivery.exception()) for delivery in deliveries] == [errors.InvalidRecordError, *[type(None)] * 6]
        with pytest.raises(errors.InvalidRecordError):
            producer.flush()
    assert values(store, topic) == {0: [0, *(i for i in range(2, 8) for _ in range(2))]}


def test_one_request_in_flight_is_one(topic: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch):
    taken: list[int] = []
    drain = RecordAccumulator.drain

    def counted(accumulator: RecordAccumulator) -> list:
        requests = drain(accumulator)
        taken.append(len(requests))
        return requests

    monkeypatch.setattr(RecordAccumulator, "drain", counted)
    proxy.hold()
    with Producer(proxy.url, linger_ms=0, max_in_flight_requests_per_connection=1) as producer:
        producer.send(topic, "0", partition=0)
        eventually(lambda: proxy.seen)
        before = len(taken)
        other = producer.send(topic, "1", partition=1)
        # The sender has looked for batches that may leave, and taken none.
        eventually(lambda: taken[before:])
        assert taken[before:] == [0]
        assert len(proxy.seen) == 1
        proxy.release()
        assert other.result(20).offset == 0


def test_without_acks_nothing_is_counted(topic: str, proxy: FaultyProxy):
    with Producer(proxy.url, acks=0) as producer:
        producer.send(topic, "0", partition=0).result()
    assert "acks=0" in proxy.seen[0].path
    assert "Logstore-Producer-Id" not in proxy.seen[0].headers
