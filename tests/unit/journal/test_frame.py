import re
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.crc32c import crc32c
from logstore.errors import DataDirectoryError
from logstore.journal.frame import (
    FILE_MAGIC,
    FORMAT_VERSION,
    FRAME_MAGIC,
    HEADER_BYTES,
    HONOURED,
    KNOWN,
    FileHeader,
    Frame,
    FrameFlags,
    FrameHeader,
    FrameType,
    StoredHeader,
    decode_file_header,
    decode_frame_header,
    encode_file_header,
    encode_frame_header,
    encode_mark,
)
from logstore.journal.identity import JournalIdentity
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity
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


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (8, 5, "position 700 has format version 5, and this release knows 1, 2, 3 and 4"),
        (8, 0, "position 700 has format version 0"),
        (9, 0, r"position 700 \(format version 4\) has type 0, flags 0x0, which this release does not know"),
        (9, 7, "position 700 .* has type 7"),
        (9, 99, "position 700 .* has type 99"),
        (10, 8, "position 700 .* has type 1, flags 0x8"),
        (10, 128, "position 700 .* flags 0x80"),
        (11, 1, "position 700 .* flags 0x100"),
        (10, 4, r"position 700 has the flag TRANSACTIONAL \(4\), which this release does not serve.* start that one"),
    ],
)
def test_a_frame_that_is_not_honoured_is_refused_by_name_not_cut(at, value, message):
    encoded = encode_frame_header(data_frame(0), position=700, durable_end=0, file_id=1)
    with pytest.raises(DataDirectoryError, match=message):
        decode_frame_header(_with_byte(encoded, at, value), 0, 700, 1)


@pytest.mark.parametrize("kind", [FrameType.DATA, FrameType.KAFKA_BATCH])
def test_inspection_of_a_journal_may_see_a_frame_that_a_start_refuses(kind):
    header = data_frame(0).header._replace(type=kind, flags=FrameFlags.TRANSACTIONAL)
    encoded = encode_frame_header(Frame(header, b""), position=0, durable_end=0, file_id=1)
    with pytest.raises(DataDirectoryError, match=r"has the flag TRANSACTIONAL \(4\)"):
        decode_frame_header(encoded, 0, 0, 1)
    found = decode_frame_header(encoded, 0, 0, 1, KNOWN)
    assert found is not None
    assert found.header == header


@given(headers, uint64, int16, int32, st.just(0) | uint64, uint64)
def test_a_frame_of_version_1_has_its_sender_in_todays_terms_and_keeps_it_when_it_is_copied_forward(
    header, producer_id, epoch, sequence, key_hash, inflated_bytes
):
    header = header._replace(type=FrameType.DATA)
    encoded = bytearray(encode_frame_header(Frame(header, b""), position=0, durable_end=0, file_id=1))
    # docs/journal-format.md describes the versions.
    fields = ((producer_id, 8), (key_hash, 8), (sequence, 4), (epoch, 2), (inflated_bytes, 8))
    encoded[96:126] = b"".join(value.to_bytes(size, "little", signed=value < 0) for value, size in fields)
    expected = BatchIdentity(producer_id, epoch, sequence) if epoch >= 0 else NO_IDENTITY
    if key_hash:
        expected = BatchIdentity(key_hash, -1, sequence)

    stored = decode_frame_header(_with_byte(bytes(encoded), 8, 1), 0, 0, 1)

    assert stored.header == header._replace(identity=expected, inflated_bytes=inflated_bytes)
    identity = stored.header.identity
    assert (identity.is_keys, identity.is_producers) == (key_hash > 0, not key_hash and epoch >= 0)
    copied = encode_frame_header(Frame(stored.header, b""), position=0, durable_end=0, file_id=1)
    assert decode_frame_header(copied, 0, 0, 1).header == stored.header


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", FrameType)
@pytest.mark.parametrize("flags", range(8))
def test_a_frame_of_the_version_before_has_the_types_and_flags_of_that_version(kind, flags, version):
    header = data_frame(0).header._replace(type=kind, flags=FrameFlags(flags))
    encoded = encode_frame_header(Frame(header, b"payload"), position=0, durable_end=0, file_id=1)
    before = _with_byte(encoded, 8, version)
    if kind <= FrameType.MARK and flags < FrameFlags.TRANSACTIONAL:
        found, *rest = decode_frame_header(before, 0, 0, 1)
        assert rest == [7, crc32c(b"payload"), 0]
        # The last two fields describe the sender, whose numbers are elsewhere in version 1.
        assert found[:-2] == header[:-2]
        assert found == header or version == 1
    else:
        for kinds in (HONOURED, KNOWN):
            with pytest.raises(
                DataDirectoryError, match=rf"version {version}\) has type {int(kind)}, flags {flags:#x}"
            ):
                decode_frame_header(before, 0, 0, 1, kinds)


def test_a_control_frame_takes_an_offset_and_holds_no_record():
    def taken(kind, count):
        header = data_frame(5).header._replace(type=kind, record_count=count)
        return header.takes_offsets, header.has_records, header.end_offset

    assert taken(FrameType.DATA, 3) == taken(FrameType.KAFKA_BATCH, 3) == (True, True, 8)
    assert taken(FrameType.CONTROL, 1) == (True, False, 6)
    for kind in (FrameType.SNAPSHOT, FrameType.MARK, FrameType.TRUNCATE):
        assert taken(kind, 0) == (False, False, 5)


def test_file_header():
    identity = JournalIdentity(UUID(int=2**128 - 1), 2**63)
    header = FileHeader(file_id=2**64 - 1, start=12345, created_ms=1_700_000_000_000, identity=identity)
    encoded = encode_file_header(header)
    assert len(encoded) == HEADER_BYTES
    assert decode_file_header(encoded, 12345) == header
    assert decode_file_header(encoded, 12346) is None, "a file under another's name"
    assert decode_file_header(encoded[:100], 12345) is None
    assert decode_file_header(bytes(HEADER_BYTES), 0) is None
    for earlier in (1, 2, 3):
        assert decode_file_header(_with_byte(encoded, 8, earlier), 12345) == header._replace(identity=None)
    for unknown in (0, 5, 255):
        with pytest.raises(DataDirectoryError, match=f"12345 has format version {unknown}, .* knows 1, 2, 3 and 4"):
            decode_file_header(_with_byte(encoded, 8, unknown), 12345)


def test_a_mark_says_that_all_before_it_is_durable():
    stored = decode_frame_header(encode_mark(durable_end=500, file_id=9), 0, 500, 9)
    assert stored is not None
    assert (stored.header.type, stored.payload_length, stored.durable_end) == (FrameType.MARK, 0, 500)


file_ids = st.none() | st.just(7)
places = st.integers(0, 40)


def decoded(data, at, position, file_id):
    """Return None, a header, or a refusal that says why and where. Any other exception is an error of the decoder."""
    try:
        return decode_frame_header(data, at, position, file_id)
    except DataDirectoryError as error:
        refusal = error
    why = "format version|has the flag TRANSACTIONAL"
    remedy = "start (the release that wrote it|that one)"
    assert re.fullmatch(f"the journal frame at position {position} .*({why}).*{remedy}.*", str(refusal)), refusal
    return refusal


@given(st.binary(max_size=300), places, uint64, file_ids)
def test_random_bytes_are_no_frame(data, at, position, file_id):
    assert decoded(data, at, position, file_id) is None


@given(headers, st.binary(min_size=0, max_size=HEADER_BYTES - 1), places, uint64, file_ids)
def test_random_bytes_behind_a_magic_or_a_cut_header_are_no_frame(header, body, at, position, file_id):
    data = bytes(at) + FRAME_MAGIC + body
    assert decoded(data, at, position, file_id) is None
    encoded = encode_frame_header(Frame(header, b""), position=position, durable_end=0, file_id=7)
    assert decoded(bytes(at) + encoded[: len(body)], at, position, file_id) is None


@given(headers, st.binary(min_size=HEADER_BYTES - 8, max_size=HEADER_BYTES - 8), st.integers(8, 127), uint64)
def test_any_frame_header_with_a_good_sum_is_taken_or_refused_by_name(header, body, kept, position):
    """Begin like a true header and then continue with anything, as a future release may."""
    encoded = encode_frame_header(Frame(header, b"x"), position=position, durable_end=0, file_id=7)
    forged = bytearray(encoded[:kept] + body[kept - 8 :])
    forged[24:32] = position.to_bytes(8, "little")
    forged[4:8] = crc32c(bytes(forged[8:])).to_bytes(4, "little")
    found = decoded(bytes(forged), 0, position, None)
    assert found is not None
    version, kind, flags = forged[8], forged[9], int.from_bytes(forged[10:12], "little")
    honoured = {1: (1, 2, 3), 2: (1, 2, 3), 3: (1, 2, 3, 4, 5, 6), 4: (1, 2, 3, 4, 5, 6)}
    assert isinstance(found, StoredHeader) == (kind in honoured.get(version, ()) and flags < 4)
    if isinstance(found, StoredHeader):
        assert (found.header.type, found.header.flags) == (kind, flags)
        again = encode_frame_header(
            Frame(found.header, b""), position=position, durable_end=found.durable_end, file_id=7
        )
        assert decoded(again, 0, position, 7).header == found.header


@given(headers, st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**16 - 1))
def test_unknown_versions_types_and_flags_are_refused_by_their_numbers(header, version, kind, flags):
    encoded = bytearray(encode_frame_header(Frame(header, b""), position=700, durable_end=0, file_id=7))
    encoded[8:12] = bytes((version, kind)) + flags.to_bytes(2, "little")
    encoded[4:8] = crc32c(bytes(encoded[8:])).to_bytes(4, "little")
    found = decoded(bytes(encoded), 0, 700, 7)
    if isinstance(found, DataDirectoryError):
        said = str(found)
        if version not in (1, 2, 3, 4):
            assert f"format version {version}," in said
        elif kind not in range(1, 7 if version > 2 else 4) or flags >= (8 if version > 2 else 4):
            assert f"type {kind}, flags {flags:#x}" in said
        else:
            assert "TRANSACTIONAL" in said
            assert flags >= 4
    else:
        assert (found.header.type, found.header.flags) == (kind, flags)


@given(st.binary(max_size=HEADER_BYTES + 10), uint64)
def test_random_bytes_are_no_file_header(data, start):
    assert decode_file_header(data, start) is None


@given(uint64, st.booleans(), st.integers(0, 255), st.binary(min_size=119, max_size=119))
def test_any_file_header_with_a_good_sum_is_taken_or_refused_by_name(start, own, version, rest):
    body = bytes((version,)) + rest
    if own:
        body = body[:16] + start.to_bytes(8, "little") + body[24:]
    data = FILE_MAGIC + crc32c(body).to_bytes(4, "little") + body
    if not 1 <= version <= FORMAT_VERSION:
        with pytest.raises(DataDirectoryError, match=f"position {start} has format version {version},"):
            decode_file_header(data, start)
    else:
        stored_start = int.from_bytes(body[16:24], "little")
        assert (decode_file_header(data, start) is not None) == (stored_start == start)
