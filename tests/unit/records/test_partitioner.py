import numpy as np

from logstore.records.batch import DecodedRecords
from logstore.records.partitioner import choose_partitions
from tests.support.records import Row, wire_batch


def _records(keys, partitions=None) -> DecodedRecords:
    named = None if partitions is None else np.array(partitions, np.int32)
    return DecodedRecords(wire_batch([Row(None, key, b"v", None) for key in keys]), named)


def test_explicit_then_key_then_sticky():
    # Kafka's default partitioner computes toPositive(-973932308) % 7 and toPositive(479470107) % 7.
    by_key = [(-973932308 & 0x7FFFFFFF) % 7, 479470107 % 7]
    chosen = choose_partitions(_records([b"21", b"abc", None, b"21", None], [-1, -1, -1, 6, 0]), 7, sticky=4)
    assert chosen.dtype == np.int32
    assert chosen.tolist() == [*by_key, 4, 6, 0]


def test_an_empty_key_is_a_key():
    assert choose_partitions(_records([b""]), 1_000, sticky=4).tolist() == [275646681 % 1_000]


def test_no_keys_go_to_the_sticky_partition():
    assert choose_partitions(_records([None, None]), 3, sticky=2).tolist() == [2, 2]


def test_a_named_partition_that_the_topic_does_not_have_is_left_to_the_topic():
    assert choose_partitions(_records([None, None], [2, 3]), 3, sticky=0).tolist() == [2, 3]
