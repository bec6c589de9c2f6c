"""Pages of Parquet, written by hand: their values are found, and copies have those of the kept rows."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.kafka_batches import plain_pages
from logstore.kafka_batches.plain_pages import PageCodec, PlainPage, copied_bytes
from tests.support.examples import examples
from tests.support.plain_pages import Values, levels_of, page_of

assert plain_pages.PAGE_CODEC is None or isinstance(plain_pages.PAGE_CODEC, PageCodec)
pytestmark = pytest.mark.skipif(plain_pages.PAGE_CODEC is None, reason="there is no C compiler")

_VALUES = st.lists(st.none() | st.binary(max_size=9) | st.just(b"v" * 300), min_size=1, max_size=80)


def codec() -> PageCodec:
    assert plain_pages.PAGE_CODEC is not None
    return plain_pages.PAGE_CODEC


def values_of(page: PlainPage) -> Values:
    offsets = np.frombuffer(page.offsets, np.int32, page.rows + 1).tolist()
    valid = np.unpackbits(np.frombuffer(page.valid, np.uint8), count=page.rows, bitorder="little").tolist()
    assert valid.count(0) == page.null_count
    data = page.data.to_pybytes()
    for at, is_valid in enumerate(valid):
        assert 0 <= offsets[at] + 4 * is_valid <= offsets[at + 1] <= len(data)
    return [data[offsets[at] + 4 : offsets[at + 1]] if is_valid else None for at, is_valid in enumerate(valid)]


def copied(page: PlainPage, kept: np.ndarray) -> bytes:
    before = b"before"
    size = codec().copied_size(page, kept)
    assert size <= copied_bytes(page.data.size, page.rows)
    out = pa.py_buffer(bytearray(before.ljust(len(before) + size + 8, b"?")))
    codec().copy(page, kept, out, len(before))
    whole = out.to_pybytes()
    assert whole.startswith(before)
    assert whole.endswith(b"?" * 8)
    return whole[len(before) : -8]


@given(_VALUES, st.integers(0, 2**32).map(Random))
def test_values_and_kept_values_are_found(values: Values, chance: Random) -> None:
    page = codec().read(pa.py_buffer(page_of(values, levels_of(values, chance))), len(values))
    assert page is not None
    assert values_of(page) == values
    kept = np.array([chance.random() < 0.7 for _ in values])
    left = [value for value, is_kept in zip(values, kept, strict=True) if is_kept]
    copy = codec().read(pa.py_buffer(copied(page, kept)), len(left))
    assert copy is not None
    assert values_of(copy) == left


@given(_VALUES, st.integers(0, 2**32).map(Random))
def test_a_page_with_more_or_fewer_bytes_or_values_is_not_taken(values: Values, chance: Random) -> None:
    levels = levels_of(values, chance)
    page = page_of(values, levels)
    for other in (page[:-1], page + b"\0", page_of(values, levels[:-1]), page[:3], b""):
        assert codec().read(pa.py_buffer(other), len(values)) is None
    assert codec().read(pa.py_buffer(page), len(values) + 16) is None
    if values[-1] is not None:
        assert codec().read(pa.py_buffer(page), len(values) - 1) is None


@pytest.mark.parametrize(
    "levels",
    [
        b"",
        b"\x08",  # no level follows
        b"\x08\x02",  # a level of 2
        b"\x00\x01",  # no levels in a run
        b"\x01",
        b"\xff\xff\xff\xff\x7f\x01",  # a number of 35 bits
        b"\x80\x80\x80\x80\x80\x01\x01",  # one that does not end
        b"\xff\xff\xff\xff\x0f\x01",  # 2^31 bytes of levels
    ],
)
def test_other_levels_are_not_taken(levels: bytes) -> None:
    values: Values = [b"a", b"b", None, b"c"]
    assert codec().read(pa.py_buffer(page_of(values, b"\x03\x0b")), 4) is not None
    assert codec().read(pa.py_buffer(page_of(values, levels)), 4) is None


def test_a_run_of_levels_may_be_longer_than_the_page() -> None:
    page = codec().read(pa.py_buffer(page_of([b"a", b"b"], b"\xfe\xff\xff\xff\x0f\x01")), 2)
    assert page is not None
    assert values_of(page) == [b"a", b"b"]


@given(_VALUES, st.integers(0, 2**32).map(Random))
def test_damaged_pages_are_not_taken_or_have_values_within_them(values: Values, chance: Random) -> None:
    good = page_of(values, levels_of(values, chance))
    for _ in range(examples(50)):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        page = codec().read(pa.py_buffer(bytes(bad)), len(values))
        if page is not None:
            values_of(page)
            copied(page, np.array([chance.random() < 0.5 for _ in values]))
