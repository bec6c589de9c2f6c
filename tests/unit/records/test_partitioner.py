import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.records.batch import DecodedRecords
from logstore.records.partitioner import choose_partitions, murmur2, murmur2_column
from tests.support.records import Row, wire_batch

# apache/kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2; and the empty key.
_KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
}


def _murmur2_of_one(data: bytes) -> int:
    """Kafka's Utils.murmur2, line by line, unsigned."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    for i in range(0, len(data) & ~3, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    tail = data[len(data) & ~3 :]
    for i in reversed(range(len(tail))):
        h ^= tail[i] << 8 * i
    if tail:
        h = h * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize(("key", "expected"), _KAFKA_VECTORS.items())
def test_kafkas_own_vectors(key, expected):
    assert murmur2(key) == expected


@given(
    st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=100, max_size=140), max_size=60), st.integers(0, 9)
)
@settings(deadline=None)
def test_a_column_hashes_as_its_keys_do_one_by_one(keys, skip):
    column = pa.array(keys, pa.binary())[skip:]
    hashes = murmur2_column(column)
    assert hashes.dtype == np.uint32
    assert [h for h, key in zip(hashes.tolist(), keys[skip:], strict=True) if key is not None] == [
        _murmur2_of_one(key) for key in keys[skip:] if key is not None
    ]


def test_very_long_keys_among_short_ones():
    keys = [bytes(range(256)) * 600, b"k"] * 10 + [b"ab" * 33_333]
    assert murmur2_column(pa.array(keys, pa.binary())).tolist() == [_murmur2_of_one(key) for key in keys]


def _records(keys, partitions=None) -> DecodedRecords:
    named = None if partitions is None else np.array(partitions, np.int32)
    return DecodedRecords(wire_batch([Row(None, key, b"v", None) for key in keys]), named)


def test_explicit_then_key_then_sticky():
    # toPositive(-973932308) % 7 and toPositive(479470107) % 7, as Kafka's default partitioner computes them.
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
