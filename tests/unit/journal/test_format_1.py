"""Snapshots of version 1; ``test_frame.py`` tests frame headers of version 1, and ``tests/golden`` whole journals."""

import struct

import msgspec
import pytest

from logstore.errors import CorruptionError
from logstore.journal.format_1 import snapshot_payload
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.records.batch_identity import RememberedBatch

ROW = struct.Struct("<Qhiiqq")


def test_a_snapshot_has_its_rows_in_todays_form():
    producer, other = (5 << 32, 2, 7, 3, 10, 1_000), (6, 0, 2**31 - 1, 1, 13, 1_001)
    key = (2**64 - 1, -1, -(2**31), 1, 14, 1_002)
    state = {
        "sealed_offset": 7,
        "leader_epochs": [(0, 0), (3, 5)],
        "producers": [ROW.pack(*producer), ROW.pack(*other)],
        "open_transactions": [],
        "idempotency_keys": [ROW.pack(*key)],
        "log_end_offset": 15,
        "producers_forgotten_up_to": 4,
    }
    packed = [b"".join(RememberedBatch(*row).pack() for row in rows) for rows in ([producer, other], [key])]
    found = PartitionSnapshot.decode(snapshot_payload(msgspec.msgpack.encode(state)))
    assert found == PartitionSnapshot(7, ((0, 0), (3, 5)), 15, *packed, 4)


def test_a_snapshot_of_the_first_releases_remembers_nobody():
    state = {"sealed_offset": 7, "leader_epochs": [], "producers": [], "open_transactions": []}
    assert PartitionSnapshot.decode(snapshot_payload(msgspec.msgpack.encode(state))) == PartitionSnapshot(7, ())


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"sealed_offset": 7}),
        msgspec.msgpack.encode({"sealed_offset": 7, "leader_epochs": [], "producers": [b"x" * 38]}),
    ],
)
def test_a_snapshot_that_does_not_parse_is_damage(payload):
    with pytest.raises(CorruptionError, match="does not parse"):
        snapshot_payload(payload)
