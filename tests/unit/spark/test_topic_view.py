"""A view of a topic's table: what it returns, and what it refuses."""

import pytest

from logstore.errors import MissingRecordsError
from logstore.spark.offset_ranges import OffsetRange
from logstore.spark.topic_function import topic_records
from logstore.spark.topic_view import view_of_storage
from tests.support import foreign_writers as others
from tests.support.table_paths import create_table, path_of
from tests.support.topics import roll

TOPIC = "flights"


@pytest.fixture
def table(tmp_path):
    """Create two segments of ten records."""
    made = create_table(tmp_path / "topics" / TOPIC, num_partitions=1, config_overrides={})
    for base in (0, 10):
        roll(made, 0, base, base + 10)
    return made


def function_offsets(tmp_path, *ends: str) -> list[int]:
    batches = topic_records(TOPIC, *ends, None, str(tmp_path), default_bootstrap="")
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_read_of_records_that_another_writer_took_out_is_refused(tmp_path, table):
    others.overwrite(path_of(table), others.rows_of([]))
    roll(table, 0, 20, 30)
    view = view_of_storage(tmp_path, TOPIC)
    for start, end, told in ((0, 30, "0 to 19"), (5, 25, "5 to 19"), (5, 8, "5 to 7")):
        with pytest.raises(
            MissingRecordsError, match=rf"^flights-0: offsets {told} are missing: WRITE in version 3\. "
        ):
            view.plan([OffsetRange(0, start, end)])
    with pytest.raises(MissingRecordsError, match="offsets 0 to 19 are missing"):
        function_offsets(tmp_path, "earliest", "latest")
    # The other ranges are whole.
    assert view.plan([OffsetRange(0, 20, 30)]).history
    assert function_offsets(tmp_path, '{"0": 20}', "latest") == list(range(20, 30))


def test_records_that_somebody_deleted_are_passed_over(tmp_path, table):
    others.delete(path_of(table), '"offset" < 10')
    assert view_of_storage(tmp_path, TOPIC).plan([OffsetRange(0, 0, 20)]).history
    assert function_offsets(tmp_path, "earliest", "latest") == list(range(10, 20))
