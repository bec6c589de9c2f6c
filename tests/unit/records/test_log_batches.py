from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.records.log_batches import WireBatch, log_batches
from logstore.records.schema import LOG_SCHEMA
from tests.support.records import Row, rows, wire_batch, wire_rows

_BEFORE = Row(7, b"before", None, None)
#: Records of a batch, the gap before it, its append time, whether that overrules, and whether it is a slice.
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


def test_many_small_ones_do_not_become_a_large_one():
    batch = wire_batch([Row(None, None, b"x" * 10_000, None)])
    found = list(log_batches(WireBatch(batch, at, 0, False) for at in range(100)))
    assert sum(batch.num_rows for batch in found) == 100
    assert len(found) < 10
    assert max(batch.nbytes for batch in found) <= 128 * 1024
