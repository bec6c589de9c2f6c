"""A planned batch is read only while the records of its files have not changed."""

import pytest

from logstore.spark.history_check import HistoryReadError
from logstore.spark.source.batch_reader import BatchReader
from logstore.spark.source.options import parse_read_options
from tests.support import foreign_writers as others
from tests.support.table_paths import create_table, path_of
from tests.support.topics import joined, rewrite_files, roll


@pytest.fixture
def table(tmp_path):
    """Create two segments of ten records."""
    made = create_table(tmp_path / "data" / "topics" / "t", num_partitions=1, config_overrides={})
    for base in (0, 10):
        roll(made, 0, base, base + 10)
    return made


def planned(table):
    """Return a function that reads the offsets of a reader's plan, made from the table alone."""
    reader = BatchReader(parse_read_options({"storage": str(path_of(table).parents[1]), "subscribe": "t"}))
    parts = reader.partitions()
    return lambda: [o for part in parts for batch in reader.read(part) for o in batch.column("offset").to_pylist()]


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda path: others.delete(path, '"offset" = 3'), "DELETE"),
        (lambda path: others.update(path, '"offset" = 3', "new"), "UPDATE"),
        (lambda path: others.merge(path, [3], b"new"), "MERGE"),
    ],
)
def test_a_plan_from_before_a_change_of_another_writer_is_refused(table, change, operation):
    read = planned(table)
    assert read() == list(range(20))
    change(path_of(table))
    with pytest.raises(
        HistoryReadError,
        match=rf"topic t: another writer changed the table \({operation} in version 3\) since this DataFrame was "
        "planned; make the DataFrame again",
    ):
        read()
    assert planned(table)() == [o for o in range(20) if operation != "DELETE" or o != 3]


def test_rolls_merges_and_rewrites_leave_a_plan_as_it_is(table):
    read = planned(table)
    roll(table, 0, 20, 30)
    files = table.snapshot().segments(0)
    rewrite_files(table, 0, [file.path for file in files], (joined(table, files),), data_change=False)
    assert read() == list(range(20))
    read = planned(table)
    others.optimize(path_of(table))
    assert read() == list(range(30))
