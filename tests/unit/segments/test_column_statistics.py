"""No bound of a column hides a value: texts are cut, and the largest one is rounded up."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from logstore.segments.column_statistics import column_statistics

# These are the characters at the ends of the ranges that UTF-8 stores in one to four bytes.
CHARACTERS = st.sampled_from("\0a\x7f\x80é\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010fffe\U0010ffff")
TEXTS = st.builds(lambda head, tail: head * 16 + tail, CHARACTERS, st.text(CHARACTERS, max_size=24))


def bounds_of(values: list[object], kind: pa.DataType, rows: int = 2) -> tuple[object, object]:
    sink = io.BytesIO()
    pq.write_table(pa.table({"offset": range(len(values)), "c": pa.array(values, kind)}), sink, row_group_size=rows)
    (found,) = column_statistics(pq.read_metadata(sink))
    assert (found.path, found.nulls) == (("c",), values.count(None))
    return found.low, found.high


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_texts_lie_within_their_bounds(values: list[str]) -> None:
    low, high = bounds_of(list(values), pa.string())
    assert isinstance(low, str)
    assert len(low) <= 32
    for value in values:
        assert low.encode() <= value.encode()
        if high is not None:
            assert isinstance(high, str)
            assert len(high) <= 32
            assert value.encode() <= high.encode()


def test_row_groups_without_a_value_do_not_take_the_bounds_away() -> None:
    assert bounds_of([None, None, 3, None, 1, 2], pa.int64()) == (1, 3)
    assert bounds_of([None, None], pa.int64()) == (None, None)


def test_a_text_of_which_parquet_keeps_no_bounds_leaves_the_file_without() -> None:
    assert bounds_of(["a", "b", "x" * 5000], pa.string()) == (None, None)


def test_numbers_that_json_lacks_leave_the_file_without() -> None:
    assert bounds_of([1.0, float("inf")], pa.float64()) == (None, None)
