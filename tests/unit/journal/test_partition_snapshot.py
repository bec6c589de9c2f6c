import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptionError
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.records.batch_identity import RememberedBatch, unpack_batches
from logstore.records.transactions import Marker, OpenTransaction

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
uint63 = st.integers(0, 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)
producer_epochs = st.integers(0, 2**15 - 1)

open_transactions = st.lists(
    st.builds(OpenTransaction, uint63, producer_epochs, uint63, int64), max_size=3, unique_by=lambda row: row[0]
)
markers = st.lists(
    st.builds(Marker, uint63, producer_epochs, int32, uint63, int64), max_size=3, unique_by=lambda row: row[0]
)
remembered = st.lists(
    st.builds(
        RememberedBatch,
        owner=uint64,
        epoch=int16,
        sequence=int64,
        record_count=st.integers(1, 2**31 - 1),
        base_offset=st.integers(0, 2**63 - 1),
        append_time_ms=st.integers(0, 2**63 - 1),
    ),
    max_size=4,
)


@given(
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=5),
    remembered,
    remembered,
    open_transactions,
    markers,
)
def test_a_snapshot_is_read_back(sealed, epochs, producers, keys, opened, ended):
    packed = b"".join(batch.pack() for batch in producers), b"".join(batch.pack() for batch in keys)
    snapshot = PartitionSnapshot(sealed, tuple(epochs), sealed, *packed, 7, tuple(opened), tuple(ended))
    assert PartitionSnapshot.decode(snapshot.encode()) == snapshot
    assert list(unpack_batches(snapshot.producers)) == producers
    assert list(unpack_batches(snapshot.idempotency_keys)) == keys


def test_a_snapshot_may_have_fields_that_a_later_release_adds():
    fields = msgspec.msgpack.decode(PartitionSnapshot(5, ((0, 0),)).encode())
    assert fields == {
        "sealed_offset": 5,
        "leader_epochs": [[0, 0]],
        "producers": [],
        "open_transactions": [],
        "idempotency_keys": [],
        "log_end_offset": 0,
        "producers_forgotten_up_to": -1,
        "markers": [],
    }
    assert PartitionSnapshot.decode(PartitionSnapshot(5, (), producers_whole_from=3).encode()).producers_whole_from == 3
    later = fields | {"share_groups": {"a": 1}}
    assert PartitionSnapshot.decode(msgspec.msgpack.encode(later)) == PartitionSnapshot(5, ((0, 0),))


def test_snapshots_of_the_first_releases_are_read():
    first = {"sealed_offset": 5, "leader_epochs": [[0, 0]]}
    empty = {"producers": [], "open_transactions": [], "idempotency_keys": []}
    for fields in (first, first | empty):
        assert PartitionSnapshot.decode(msgspec.msgpack.encode(fields)) == PartitionSnapshot(5, ((0, 0),))


def test_transactions_of_a_snapshot_are_lists_of_numbers():
    snapshot = PartitionSnapshot(
        5, (), 9, open_transactions=(OpenTransaction(3, 1, 7, 1_000),), markers=(Marker(4, 2, 11, 8, 1_001),)
    )
    fields = msgspec.msgpack.decode(snapshot.encode())
    assert fields["open_transactions"] == [[3, 1, 7, 1_000]]
    assert fields["markers"] == [[4, 2, 11, 8, 1_001]]


_FIRST = {"sealed_offset": 5, "leader_epochs": []}


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        PartitionSnapshot(5, (), 5, producers=bytes(33)).encode(),
        msgspec.msgpack.encode(_FIRST | {"open_transactions": [[1, 0, 5]]}),
        msgspec.msgpack.encode(_FIRST | {"open_transactions": [[1, 0, 5, 0], [1, 1, 6, 0]]}),
        msgspec.msgpack.encode(_FIRST | {"markers": [[1, -1, 0, 5, 0]]}),
        msgspec.msgpack.encode(_FIRST | {"markers": 7}),
        # This is a skipped field that is nested deeper than a parser goes.
        b"\x81\xa1x" + b"\x91" * 200_000,
    ],
)
def test_a_snapshot_that_does_not_parse_is_corruption(payload):
    with pytest.raises(CorruptionError, match="snapshot"):
        PartitionSnapshot.decode(payload)
