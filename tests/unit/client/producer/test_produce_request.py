"""The parts of a produce request, and whether the outcome of each is in doubt."""

import numpy as np
import pyarrow as pa
import pytest

from logstore import errors
from logstore.client.metadata import TopicIdentity, TopicPartitions
from logstore.client.producer.delivery import Outcome
from logstore.client.producer.produce_request import ProduceRequest
from logstore.client.producer.produce_response import read_response
from logstore.client.producer.producer_batch import ProducerBatch, join_many, split
from logstore.client.producer.producer_identity import Identity
from logstore.client.producer.record_columns import from_columns

AMONG = TopicPartitions("id", 4)


def batch(partition: int, count: int = 2) -> ProducerBatch:
    columns, _ = from_columns({"value": [f"{partition}-{i}" for i in range(count)]})
    (found,) = split(
        Outcome("t"),
        columns,
        np.full(count, partition, np.int32),
        np.arange(count),
        chosen_among=AMONG,
        deadline=0.0,
        codec=None,
        max_bytes=10_000,
    )
    return found


def request(*partitions: int) -> ProduceRequest:
    sequences = {partition: 10 * partition for partition in partitions}
    return ProduceRequest(TopicIdentity("t", "id"), [batch(p) for p in partitions], Identity(7, 0), sequences)


def partitions_of(requests: list[ProduceRequest]) -> list[list[int]]:
    return [list(found.partitions) for found in requests]


def test_each_partition_has_its_own_error_and_only_its_own_doubt():
    whole = request(0, 1, 2)
    whole.in_doubt.add(1)
    full, ready = errors.StorageFullError("full"), errors.BrokerNotReadyError("not ready")
    whole.refusals = {1: full}
    found = whole.by_error(ready)
    assert [(list(part.partitions), error) for part, error in found] == [([1], full), ([0, 2], ready)]
    assert [part.in_doubt for part, _ in found] == [{1}, set()]


@pytest.mark.parametrize(
    "kind", [errors.InvalidRecordError, errors.OutOfOrderSequenceError, errors.RecordTooLargeError]
)
def test_partitions_by_themselves_are_counted_as_in_the_whole(kind: type[errors.LogStoreError]):
    later, first = request(0, 1, 1, 2).halves(kind("no"), None)
    assert partitions_of([first, later]) == [[0, 1], [2]]
    assert first.headers["Logstore-Base-Sequences"] == "0=0,1=10"
    assert later.headers["Logstore-Base-Sequences"] == "2=20"


@pytest.mark.parametrize("kind", [errors.InvalidRecordError, errors.RecordTooLargeError])
def test_batches_of_a_partition_are_counted_again_unless_they_may_be_stored(kind: type[errors.LogStoreError]):
    whole = request(1, 1)
    later, first = whole.halves(kind("no"), None)
    assert [first.batches, later.batches] == [[each] for each in whole.batches]
    assert first.identity is later.identity is None
    whole.in_doubt.add(1)
    assert whole.halves(kind("no"), None) == []


@pytest.mark.parametrize(("kind", "cut"), [(errors.InvalidRecordError, False), (errors.RecordTooLargeError, True)])
def test_one_batch_is_cut_only_for_its_size(kind: type[errors.LogStoreError], cut: bool):
    assert bool(request(1).halves(kind("no"), None)) == cut


def test_joined_batches_are_taken_apart_again_in_order():
    batches = [batch(1) for _ in range(7)]
    (whole,) = join_many(batches, None)
    assert whole.batches == tuple(batches)
    assert pa.ipc.read_record_batch(whole.message, from_columns({"value": [b""]})[0].schema).num_rows == 14
    waiting, found = [ProduceRequest(TopicIdentity("t", "id"), [whole])], []
    while waiting:
        part = waiting.pop()
        halves = part.halves(errors.InvalidRecordError("no"), None)
        waiting += halves
        if not halves:
            found += part.batches
    assert [each.outcome for each in found] == [each.outcome for each in batches]


def test_nothing_of_a_failed_partition_counts_as_stored():
    batches = [batch(0), batch(1), batch(1)]
    answer = (
        b'{"ranges":[{"partition":0,"base_offset":5,"count":2},{"partition":1,"base_offset":9,"count":2},'
        b'{"partition":1,"base_offset":null,"count":2,"error_code":50302,"error":"full"}]}'
    )
    response = read_response(answer, "t", batches)
    assert response.stored == [(batches[0], 5)]
    assert {p: type(error) for p, error in response.failed.items()} == {1: errors.StorageFullError}
    with pytest.raises(errors.LogStoreError, match="other records"):
        read_response(answer, "t", batches[:2])
