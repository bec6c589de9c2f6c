from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from logstore.client.producer.partitioner import Partitioner
from logstore.client.producer.record_columns import RecordList
from logstore.errors import InvalidRecordError


def batch(*keys: bytes | None) -> pa.RecordBatch:
    records = RecordList()
    for key in keys:
        records.flat += (b"v", key, None)
    return records.columns()[0]


def chosen(partitioner: Partitioner, keys: list[bytes | None], count: int, named: list[int] | None = None) -> list[int]:
    return partitioner.partition(
        "t", batch(*keys), None if named is None else np.array(named, np.int32), count
    ).tolist()


def test_murmur2_is_kafkas():
    # These are the hashes of org.apache.kafka.common.utils.UtilsTest.testMurmur2, before Utils.toPositive and modulo.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    found = chosen(Partitioner("murmur2"), list(hashes), 1_000)
    assert found == [(value & 0x7FFFFFFF) % 1_000 for value in hashes.values()]


def test_without_a_key_a_batch_sticks_to_a_partition_and_batches_take_turns():
    choice = Partitioner("murmur2")
    found = [chosen(choice, [None, b"foobar", None], 3) for _ in range(3)]
    assert all(first == last for first, _, last in found)
    assert {first for first, _, _ in found} == {0, 1, 2}
    assert len({middle for _, middle, _ in found}) == 1


def test_sticky_ignores_keys():
    choice = Partitioner("sticky")
    found = [set(chosen(choice, [b"a", b"b", None, b"c"], 3)) for _ in range(3)]
    assert sorted(partition for (partition,) in found) == [0, 1, 2]


def test_round_robin_goes_record_by_record_over_batches():
    choice = Partitioner("round_robin")
    found = chosen(choice, [b"a"] * 5, 3) + chosen(choice, [b"a"] * 4, 3)
    assert [(after - before) % 3 for before, after in pairwise(found)] == [1] * 8


@pytest.mark.parametrize("partitioner", ["murmur2", "sticky", "round_robin", lambda _key, _count: 2])
def test_a_named_partition_wins(partitioner):
    assert chosen(Partitioner(partitioner), [b"a", None, b"b"], 3, [1, 0, -1])[:2] == [1, 0]


def test_a_function_sees_each_key_and_the_number_of_partitions():
    seen = []

    def choose(key: bytes | None, count: int) -> int:
        seen.append((key, count))
        return len(key or b"")

    assert chosen(Partitioner(choose), [b"", b"aa", None], 3) == [0, 2, 0]
    assert seen == [(b"", 3), (b"aa", 3), (None, 3)]


@pytest.mark.parametrize("answer", [3, -1, "0", None, 1.0])
def test_a_function_that_gives_no_partition_is_named(answer):
    with pytest.raises(InvalidRecordError, match=r"for key b'k': it must be a number from 0 to 2"):
        chosen(Partitioner(lambda _key, _count: answer), [b"k"], 3)


def test_a_function_that_fails_is_named():
    with pytest.raises(InvalidRecordError, match=r"failed on key b'k': ZeroDivisionError") as raised:
        chosen(Partitioner(lambda _key, _count: 1 // 0), [b"k"], 3)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
