from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.records.batch import record_sizes
from logstore.records.log_batches import WireBatch, int64_values, log_batches, to_log_batch
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA
from tests.support.records import Row, rows, wire_batch, wire_rows

_BEFORE = Row(7, b"before", None, None)
#: Each batch has its records, the gap before it, its append time, whether that takes precedence, and whether it is a
#: slice.
_BATCHES = st.lists(
    st.tuples(
        st.lists(rows, min_size=1, max_size=12), st.integers(0, 5), st.integers(0, 9), st.booleans(), st.booleans()
    ),
    max_size=6,
)


@given(_BATCHES)
@settings(deadline=None)
def test_offsets_rise_from_the_base_and_timestamps_are_filled_in(parts):
    given_batches, expected = [], []
    base = 0
    for records, gap, append_time, log_append_time, sliced in parts:
        base += gap
        batch = wire_batch([_BEFORE, *records] if sliced else records).slice(int(sliced))
        given_batches.append(WireBatch(batch, base, append_time, log_append_time))
        for offset, row in enumerate(records, base):
            timestamp = append_time if log_append_time or row.timestamp is None else row.timestamp
            expected.append((offset, replace(row, timestamp=timestamp)))
        base += len(records)
    found = []
    for batch in log_batches(given_batches):
        assert batch.schema.equals(LOG_SCHEMA)
        batch.validate(full=True)
        found += zip(batch.column("offset").to_pylist(), wire_rows(batch), strict=True)
    assert found == expected


def test_small_batches_are_put_together_and_large_ones_are_not_copied():
    small, large = wire_batch([Row(None, None, b"s", None)]), wire_batch([Row(1, None, b"x" * 200_000, None)])
    batches = [*[small] * 50, large, small, large]
    found = list(log_batches(WireBatch(batch, at, 0, False) for at, batch in enumerate(batches)))
    assert [batch.num_rows for batch in found] == [50, 1, 1, 1]
    assert found[1].column("value").buffers()[2].address == large.column("value").buffers()[2].address


def test_many_small_batches_do_not_become_a_large_one():
    batch = wire_batch([Row(None, None, b"x" * 10_000, None)])
    found = list(log_batches(WireBatch(batch, at, 0, False) for at in range(100)))
    assert sum(batch.num_rows for batch in found) == 100
    assert len(found) < 10
    assert max(batch.nbytes for batch in found) <= 128 * 1024


@pytest.mark.parametrize("more", range(9))
def test_buffers_may_be_longer_than_their_numbers(more):
    """Lengthen the buffers: Arrow only requires enough numbers, and not a whole one at the end."""
    whole = wire_batch([Row(5, b"k", b"v", None), Row(None, None, b"w", None), Row(7, None, None, None)])
    columns = []
    for column in whole.columns[:3]:
        longer = [None if b is None else pa.py_buffer(b.to_pybytes() + bytes(more)) for b in column.buffers()]
        columns.append(pa.Array.from_buffers(column.type, len(column), longer))
    batch = pa.RecordBatch.from_arrays([*columns, whole.column("headers")], schema=WIRE_SCHEMA)
    batch.validate(full=True)
    found = to_log_batch([WireBatch(batch, 10, 6, False)])
    assert int64_values(found.column("offset")).tolist() == [10, 11, 12]
    assert int64_values(found.column("timestamp")).tolist() == [5, 6, 7]
    assert record_sizes(batch).tolist() == [2, 1, 0]
