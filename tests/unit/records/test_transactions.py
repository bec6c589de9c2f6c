import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptionError, DataDirectoryError
from logstore.records.transactions import (
    ControlType,
    EndTransactionMarker,
    Marker,
    OpenTransaction,
    markers_from_rows,
    open_transactions_from_rows,
)

# org.apache.kafka.common.record.EndTransactionMarker writes these: key 0000 0001, value 0000 0000004F.
COMMIT = bytes.fromhex("0400 00000001 00000000004f")


@pytest.mark.parametrize("kind", ControlType)
@pytest.mark.parametrize("coordinator_epoch", [-(2**31), -1, 0, 79, 2**31 - 1])
def test_a_marker_is_read_back(kind, coordinator_epoch):
    marker = EndTransactionMarker(kind, coordinator_epoch)
    assert EndTransactionMarker.decode(memoryview(marker.encode()), "a frame") == marker


def test_key_and_value_of_a_marker_are_kafkas():
    assert EndTransactionMarker(ControlType.COMMIT, 79).encode() == COMMIT
    assert EndTransactionMarker(ControlType.ABORT, 79).encode() == COMMIT.replace(b"\x01", b"\x00")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("0400 00000002 00000000004f", r"the frame is a control record of type 2 \(version 0, value 0\)"),
        ("0400 0000ffff 00000000004f", "type -1"),
        ("0400 00010001 00000000004f", "version 1, value 0"),
        ("0400 00000001 00010000004f", "version 0, value 1"),
        ("0600 000100010000 00010000004f00", "version 1, value 1"),
    ],
)
def test_a_control_record_of_another_kind_or_version_is_refused_by_name(payload, message):
    with pytest.raises(DataDirectoryError, match=message):
        EndTransactionMarker.decode(bytes.fromhex(payload), "the frame")


@given(st.binary(max_size=20) | st.builds(lambda cut: COMMIT[:cut], st.integers(0, len(COMMIT) - 1)))
def test_other_bytes_are_no_control_record(payload):
    try:
        found = EndTransactionMarker.decode(payload, "the frame")
    except (CorruptionError, DataDirectoryError):
        return
    assert found.encode() == payload


def test_transactions_are_stored_as_lists():
    opened = (OpenTransaction(2**63 - 1, 2**15 - 1, 7, 1_000), OpenTransaction(0, 0, 0, 0))
    ended = (Marker(4, 2, -1, 8, 1_001),)
    assert open_transactions_from_rows(json.loads(json.dumps(opened))) == opened
    assert markers_from_rows(json.loads(json.dumps(ended))) == ended
    assert open_transactions_from_rows([]) == markers_from_rows([]) == ()


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        [7],
        [[1, 0, 5]],
        [[1, 0, 5, 0, 0, 0]],
        [[-1, 0, 5, 0]],
        [[2**63, 0, 5, 0]],
        [[1, -1, 5, 0]],
        [[1, 2**15, 5, 0]],
        [[1, 0, -5, 0]],
        [[1, 0, 5, "0"]],
        [[1, 0, 5, 0.5]],
        [[1, 0, 5, 0], [1, 1, 6, 0]],
    ],
)
def test_other_lists_are_no_open_transactions(rows):
    with pytest.raises(ValueError, match="no open transactions"):
        open_transactions_from_rows(rows)


@pytest.mark.parametrize(
    "rows", [None, [[1, 0, 0, 5]], [[1, 0, 2**31, 5, 0]], [[1, 0, 0, -1, 0]], [[1, 0, 0, 5, 0]] * 2]
)
def test_other_lists_are_no_markers(rows):
    with pytest.raises(ValueError, match="no markers"):
        markers_from_rows(rows)
