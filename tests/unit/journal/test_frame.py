from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.crc32c import crc32c
from logstore.errors import CorruptionError, DataDirectoryError
from logstore.journal.frame import (
    HEADER_BYTES,
    FileHeader,
    Frame,
    FrameFlags,
    FrameHeader,
    FrameType,
    PartitionSnapshot,
    decode_file_header,
    decode_frame_header,
    encode_file_header,
    encode_frame_header,
    encode_mark,
)
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, RememberedBatch, unpack_batches
from tests.support.journals import data_frame

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)

headers = st.builds(
    FrameHeader,
    type=st.sampled_from(FrameType),
    flags=st.sampled_from([FrameFlags(value) for value in range(4)]),
    topic_id=st.uuids(),
    partition=int32,
    base_offset=int64,
    record_count=int32,
    leader_epoch=int32,
    append_time_ms=int64,
    max_timestamp_ms=int64,
    inflated_bytes=uint64,
    identity=st.just(NO_IDENTITY)
    | st.builds(BatchIdentity, owner=uint64, epoch=int16.filter(lambda epoch: epoch != -1), sequence=int64),
)


@given(headers, st.binary(max_size=300), uint64, uint64, uint64, st.integers(0, 50))
def test_a_frame_is_read_back_as_it_was_written(header, payload, position, durable_end, file_id, before):
    encoded = encode_frame_header(Frame(header, payload), position=position, durable_end=durable_end, file_id=file_id)
    assert len(encoded) == HEADER_BYTES

    stored = decode_frame_header(bytes(before) + encoded + payload, before, position, file_id)

    assert stored == (header, len(payload), crc32c(payload), durable_end)
    assert type(stored.header.type) is FrameType
    assert type(stored.header.topic_id) is UUID


@given(headers, uint64, uint64, st.integers(0, HEADER_BYTES * 8 - 1))
def test_every_flipped_bit_of_a_header_is_found(header, position, file_id, bit):
    encoded = bytearray(encode_frame_header(Frame(header, b"x"), position=position, durable_end=0, file_id=file_id))
    encoded[bit // 8] ^= 1 << bit % 8
    assert decode_frame_header(bytes(encoded), 0, position, file_id) is None


def test_a_frame_counts_only_in_its_place_and_file():
    encoded = encode_frame_header(data_frame(3), position=1000, durable_end=900, file_id=7)
    assert decode_frame_header(encoded, 0, 1000, 7) is not None
    assert decode_frame_header(encoded, 0, 1000, None) is not None
    assert decode_frame_header(encoded, 0, 1001, 7) is None
    assert decode_frame_header(encoded, 0, 1000, 8) is None
    assert decode_frame_header(encoded[:-1], 0, 1000, 7) is None


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, pa.py_buffer])
def test_payloads_of_every_buffer_type_have_one_checksum(wrap):
    # 0xE3069283 is the check value of CRC-32C (RFC 3720) for these nine digits.
    assert crc32c(wrap(b"123456789")) == 0xE3069283


def _with_byte(encoded: bytes, at: int, value: int) -> bytes:
    changed = bytearray(encoded)
    changed[at] = value
    changed[4:8] = crc32c(changed[8:HEADER_BYTES]).to_bytes(4, "little")
    return bytes(changed)


@pytest.mark.parametrize(("at", "value"), [(8, 3), (9, 99), (10, 128)])
def test_a_frame_of_a_newer_release_is_refused_not_cut(at, value):
    encoded = encode_frame_header(data_frame(0), position=0, durable_end=0, file_id=1)
    with pytest.raises(DataDirectoryError, match="release"):
        decode_frame_header(_with_byte(encoded, at, value), 0, 0, 1)


def test_file_header():
    header = FileHeader(file_id=2**64 - 1, start=12345, created_ms=1_700_000_000_000)
    encoded = encode_file_header(header)
    assert len(encoded) == HEADER_BYTES
    assert decode_file_header(encoded, 12345) == header
    assert decode_file_header(encoded, 12346) is None, "a file under another's name"
    assert decode_file_header(encoded[:100], 12345) is None
    assert decode_file_header(bytes(HEADER_BYTES), 0) is None
    with pytest.raises(DataDirectoryError, match="version 3"):
        decode_file_header(_with_byte(encoded, 8, 3), 12345)


def test_a_mark_says_that_all_before_it_is_durable():
    stored = decode_frame_header(encode_mark(durable_end=500, file_id=9), 0, 500, 9)
    assert stored is not None
    assert (stored.header.type, stored.payload_length, stored.durable_end) == (FrameType.MARK, 0, 500)


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
)
def test_snapshot_state_is_read_back(sealed, epochs, producers, keys):
    packed = b"".join(batch.pack() for batch in producers), b"".join(batch.pack() for batch in keys)
    snapshot = PartitionSnapshot(sealed, tuple(epochs), sealed, *packed, producers_forgotten_up_to=7)
    assert PartitionSnapshot.decode(snapshot.encode()) == snapshot
    assert list(unpack_batches(snapshot.producers)) == producers
    assert list(unpack_batches(snapshot.idempotency_keys)) == keys


def test_snapshot_state_has_room_for_what_later_releases_add():
    fields = msgspec.msgpack.decode(PartitionSnapshot(5, ((0, 0),)).encode())
    assert fields == {
        "sealed_offset": 5,
        "leader_epochs": [[0, 0]],
        "producers": [],
        "open_transactions": [],
        "idempotency_keys": [],
        "log_end_offset": 0,
        "producers_forgotten_up_to": -1,
    }
    later = fields | {"share_groups": {"a": 1}}
    assert PartitionSnapshot.decode(msgspec.msgpack.encode(later)) == PartitionSnapshot(5, ((0, 0),))


def test_snapshot_state_of_the_first_releases_reads():
    first = {"sealed_offset": 5, "leader_epochs": [[0, 0]]}
    empty = {"producers": [], "open_transactions": [], "idempotency_keys": []}
    for fields in (first, first | empty):
        assert PartitionSnapshot.decode(msgspec.msgpack.encode(fields)) == PartitionSnapshot(5, ((0, 0),))


@pytest.mark.parametrize("payload", [b"\xc1", PartitionSnapshot(5, (), 5, producers=bytes(33)).encode()])
def test_a_snapshot_that_does_not_parse_is_corruption(payload):
    with pytest.raises(CorruptionError, match="snapshot"):
        PartitionSnapshot.decode(payload)
