import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.records.partition_split import split_by_partition
from tests.support.records import Row, rows, wire_batch, wire_rows


@given(st.lists(st.tuples(rows, st.sampled_from([0, 1, 2, 40_000])), min_size=1, max_size=30), st.integers(0, 3))
@settings(deadline=None)
def test_each_partition_has_its_records_in_the_order_given(pairs, skip):
    skip = min(skip, len(pairs) - 1)
    batch = wire_batch([record for record, _ in pairs]).slice(skip)
    pairs = pairs[skip:]
    split = split_by_partition(batch, np.array([partition for _, partition in pairs], np.int32))
    order = range(len(pairs)) if split.order is None else split.order.tolist()
    assert [(partition, end) for partition, _, end in split.ranges] == [
        (partition, sum(its <= partition for _, its in pairs)) for partition in sorted({its for _, its in pairs})
    ]
    split.batch.validate(full=True)
    for partition, start, end in split.ranges:
        expected = [(row, record) for row, (record, its) in enumerate(pairs) if its == partition]
        assert list(zip(order[start:end], wire_rows(split.batch.slice(start, end - start)), strict=True)) == expected


def test_records_of_one_partition_are_not_copied():
    batch = wire_batch([Row(None, b"k", b"v", None)] * 3)
    split = split_by_partition(batch, np.array([7, 7, 7], np.int32))
    assert split.batch is batch
    assert (split.order, split.ranges) == (None, [(7, 0, 3)])


def test_columns_without_a_value_take_no_place_for_their_rows():
    batch = wire_batch([Row(None, None, b"v", None)] * 1_000)
    columns = [*batch.columns[:3], pa.nulls(1_000, batch.schema.field("headers").type)]
    batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    split = split_by_partition(batch, np.arange(1_000, dtype=np.int32) % 2)
    assert split.batch.column("headers").values.nbytes == 0
