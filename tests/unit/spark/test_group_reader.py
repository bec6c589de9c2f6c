"""The first offset of a group, in a log that reaches from 10 to 20."""

import logging

import pytest

from logstore.errors import OffsetOutOfRangeError
from logstore.spark.group_reader import GroupRange, NoCommittedOffsetError, _Committed, _to_read
from logstore.spark.offset_ranges import LogBounds

LOG = LogBounds(3, 10, 20)


def to_read(committed: _Committed | None, auto_offset_reset: str = "earliest") -> tuple[int, int]:
    found = _to_read("t", LOG, committed, auto_offset_reset)
    assert found == GroupRange("t", 3, found.start, found.end, committed and committed.offset)
    return found.start, found.end


@pytest.mark.parametrize("offset", [10, 15, 20])
@pytest.mark.parametrize("auto_offset_reset", ["earliest", "latest", "none"])
def test_a_committed_offset_in_the_log_is_the_start(offset, auto_offset_reset, caplog):
    assert to_read(_Committed(offset, 20), auto_offset_reset) == (offset, 20)
    assert not caplog.records


@pytest.mark.parametrize("committed", [None, _Committed(9, 20), _Committed(21, 20), _Committed(0, 0)])
def test_without_a_usable_committed_offset_auto_offset_reset_decides(committed, caplog):
    assert to_read(committed, "earliest") == (10, 20)
    assert to_read(committed, "latest") == (20, 20)
    assert len(caplog.records) == (0 if committed is None else 2)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    with pytest.raises(NoCommittedOffsetError if committed is None else OffsetOutOfRangeError, match="partition 3"):
        to_read(committed, "none")


@pytest.mark.parametrize("auto_offset_reset", ["earliest", "latest", "none"])
def test_an_offset_committed_after_the_end_was_looked_up_is_not_beyond_it(auto_offset_reset, caplog):
    assert to_read(_Committed(25, 25), auto_offset_reset) == (25, 25)
    assert not caplog.records
