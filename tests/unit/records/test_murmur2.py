import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.records.murmur2 import murmur2, murmur2_column

pytestmark = pytest.mark.usefixtures("with_and_without_c")

# These come from testMurmur2 in apache/kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java; the
# empty key is added.
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
    """Compute Kafka's Utils.murmur2, line by line, unsigned."""
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
