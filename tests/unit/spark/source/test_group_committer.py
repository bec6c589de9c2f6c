"""The thread that commits a query's positions outlives every error."""

from logstore.client.admin import Admin
from logstore.errors import StoreUnreachableError
from logstore.spark.source.group_committer import GroupCommitter
from logstore.spark.source.stream_offset import StreamOffset


def test_a_fault_of_this_program_is_shown_once_and_the_next_position_is_tried(caplog):
    tried: list[Exception] = []

    def connect() -> Admin:
        tried.append([StoreUnreachableError("away"), KeyError("fault")][len(tried) % 2])
        raise tried[-1]

    committer = GroupCommitter("g", connect)
    for end in range(6):
        committer.offer(StreamOffset({("t", 0): end}, {"t": "id"}))
        committer.flush(10)
    assert len(tried) == 6
    expected, fault = caplog.records
    assert "away; the query continues" in expected.getMessage()
    assert expected.exc_info is None
    assert "'fault'; the query continues" in fault.getMessage()
    assert fault.exc_info
