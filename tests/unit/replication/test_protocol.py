"""Messages between brokers: an encoded message can be decoded, and nothing else can."""

import contextlib
import struct
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logstore import errors
from logstore.errors import CorruptionError, LogStoreError, MalformedMessageError, NewerFormatError
from logstore.journal.frame import (
    FORMAT_VERSION,
    HEADER_BYTES,
    Frame,
    FrameFlags,
    FrameHeader,
    FrameType,
    encode_frame_header,
    encode_mark,
)
from logstore.records.batch_identity import BatchIdentity
from logstore.replication.protocol import (
    ANSWER_TYPES,
    BODY_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    MESSAGE_HEADER_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    RESERVED,
    Append,
    AppendedPart,
    AppendPart,
    DescribedRow,
    Fetch,
    FetchedRow,
    FetchRow,
    Header,
    Hello,
    MessageType,
    decode_append,
    decode_appended,
    decode_auth,
    decode_describe,
    decode_described,
    decode_error,
    decode_fetch,
    decode_fetched,
    decode_header,
    decode_hello,
    encode_append,
    encode_appended,
    encode_auth,
    encode_describe,
    encode_described,
    encode_error,
    encode_fetch,
    encode_fetched,
    encode_header,
    encode_hello,
    split_frames,
)

i16, i32, i64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
text, names = st.text(max_size=50), st.text(max_size=16)

hellos = st.builds(Hello, names, i32, i32, i64, st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES), names)
fetches = st.builds(
    Fetch, u32, u32, u32, st.lists(st.builds(FetchRow, u32, st.uuids(), i32, i32, i64, i32, u32)), st.lists(u32)
)
fetched = st.lists(
    st.tuples(st.builds(FetchedRow, u32, i16, i64, i64, i64, i32, i64, st.just(0)), st.binary(max_size=50)).map(
        lambda row: (row[0]._replace(frames_bytes=len(row[1])), row[1])
    )
)
append_parts = st.builds(
    AppendPart,
    st.uuids(),
    i32,
    st.builds(BatchIdentity, u64, i16, i64),
    u32,
    u32,
    i64,
    u64,
    st.binary(max_size=50),
)
appends = st.builds(Append, i16, u32, text, text, st.lists(append_parts))
failures = st.builds(
    lambda cls, message: AppendedPart(cls(message)),
    st.sampled_from([errors.NotLeaderOrFollowerError, errors.OutOfOrderSequenceError]),
    text,
)
appended = st.lists(st.one_of(st.builds(AppendedPart, st.none(), i64, i64, i64, st.booleans()), failures))
partitions = st.lists(st.tuples(st.uuids(), i32))
described = st.lists(st.builds(DescribedRow, i16, i32, i64, i64, i64, i64, i64, i64))


def joined(pieces) -> bytes:
    return b"".join(pieces)


def as_told(parts):
    """Replace errors by class and message, so that they compare."""
    return [(type(part.error), str(part.error), *part[1:]) for part in parts]


#: For each name: values, their encoder and decoder, and what is compared.
CODECS = {
    "hello": (hellos, encode_hello, decode_hello),
    "auth": (st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES), encode_auth, decode_auth),
    "fetch": (fetches, encode_fetch, decode_fetch),
    "fetched": (
        fetched,
        lambda rows: joined(encode_fetched([row for row, _ in rows], [frames for _, frames in rows])),
        lambda body: [(row, bytes(frames)) for row, frames in decode_fetched(body)],
    ),
    "append": (appends, lambda append: joined(encode_append(append)), decode_append),
    "appended": (appended, encode_appended, decode_appended),
    "describe": (partitions, encode_describe, decode_describe),
    "described": (described, encode_described, decode_described),
}
every_codec = pytest.mark.parametrize("codec", CODECS)


@every_codec
@given(data=st.data())
def test_every_message_is_decoded_as_it_was(codec, data):
    values, encode, decode = CODECS[codec]
    value = data.draw(values)
    found = decode(encode(value))
    assert (as_told(found) == as_told(value)) if codec == "appended" else (found == value)


@every_codec
@given(data=st.data())
def test_a_body_that_is_cut_or_too_long_is_refused(codec, data):
    values, encode, decode = CODECS[codec]
    body = encode(data.draw(values))
    cut = data.draw(st.integers(0, len(body) - 1))
    for wrong in (body[:cut], body + b"\0", body + body):
        with pytest.raises(MalformedMessageError):
            decode(wrong)


@every_codec
@given(data=st.data())
def test_garbage_is_refused_or_read_but_nothing_else(codec, data):
    values, encode, decode = CODECS[codec]
    body = bytearray(data.draw(st.one_of(st.binary(max_size=200), values.map(encode))))
    for at in data.draw(st.lists(st.integers(0, max(0, len(body) - 1)), max_size=5)) if body else []:
        body[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessageError):
        decode(bytes(body))


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (decode_fetch, struct.pack("<IIIII", 1, 1, 1, 2**32 - 1, 0)),
        (decode_fetch, struct.pack("<IIIII", 1, 1, 1, 0, 2**32 - 1)),
        (decode_fetched, struct.pack("<I", 2**32 - 1)),
        (decode_fetched, struct.pack("<IIhqqqiqI", 1, 0, 0, 0, 0, 0, -1, -1, 2**32 - 1)),
        (decode_append, struct.pack("<hIIHH", -1, 1, 2**32 - 1, 0, 0)),
        (decode_append, struct.pack("<hIIHH16siQhqIIqQI", -1, 1, 1, 0, 0, bytes(16), *[0] * 8, 2**32 - 1)),
        (decode_appended, struct.pack("<I", 2**32 - 1)),
        (decode_describe, struct.pack("<I", 2**32 - 1)),
        (decode_described, struct.pack("<I", 2**32 - 1)),
        (decode_hello, struct.pack("<iiq32sH", 1, 2, 3, bytes(32), 2**16 - 1)),
    ],
)
def test_a_count_that_the_bytes_do_not_bear_out_costs_no_memory(decode, body):
    body += bytes(10)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError):
            decode(body)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_text_that_is_no_utf_8_is_refused():
    body = encode_hello(Hello("abcd", 1, 2, 3, bytes(32), "1")).replace(b"abcd", b"a\xff\xfed")
    with pytest.raises(MalformedMessageError, match="UTF-8"):
        decode_hello(body)


def test_a_stranger_has_short_names():
    with pytest.raises(MalformedMessageError, match="65 bytes"):
        decode_hello(encode_hello(Hello("c" * 65, 1, 2, 3, bytes(32), "1")))
    assert len(encode_hello(Hello("c" * 64, 1, 2, 3, bytes(32), "r" * 64))) < HANDSHAKE_BYTES_MAX


# ---- header ----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(MessageType), u32, st.integers(0, BODY_BYTES_MAX), i16)
def test_a_header_is_decoded_as_it_was(message_type, correlation, body_bytes, error):
    header = encode_header(message_type, correlation, body_bytes, error)
    assert len(header) == MESSAGE_HEADER_BYTES
    assert decode_header(header) == Header(message_type, 1, error, correlation, body_bytes)


def test_the_layout_of_a_header_is_the_documented_one():
    assert encode_header(MessageType.FETCH, 0x01020304, 5, -1) == bytes(
        [13, 0, 0, 0, 3, 1, 0xFF, 0xFF, 0x04, 0x03, 0x02, 0x01]
    )


@pytest.mark.parametrize("length", range(8))
def test_a_length_below_the_headers_own_is_refused(length):
    with pytest.raises(MalformedMessageError, match="shorter than its header"):
        decode_header(struct.pack("<IBBhI", length, 3, 1, 0, 0))


def test_a_body_of_more_than_4_gib_is_never_sent():
    with pytest.raises(ValueError, match="may have"):
        encode_header(MessageType.FETCHED, 0, BODY_BYTES_MAX + 1)


def test_types_have_the_documented_numbers():
    assert {one.name: one.value for one in MessageType} == {
        "HELLO": 1,
        "AUTH": 2,
        "FETCH": 3,
        "FETCHED": 4,
        "APPEND": 5,
        "APPENDED": 6,
        "DESCRIBE": 7,
        "DESCRIBED": 8,
        "HTTP": 9,
        "ENLIST": 10,
        "WRITE_MARKERS": 11,
        "INIT_PRODUCER": 12,
    }
    assert not ANSWER_TYPES.keys() & RESERVED


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        errors.NotLeaderOrFollowerError("x"),
        errors.UnknownTopicIdError("x"),
        errors.UnknownTopicError("x"),
        errors.FencedLeaderEpochError("x"),
        errors.OutOfOrderSequenceError("x"),
        errors.IdempotencyKeyReusedError("x"),
        errors.StorageFullError("x"),
        errors.StorageError("x"),
        errors.QuarantinedError("x"),
        errors.RequestTimedOutError("x"),
        errors.InvalidRecordError("x"),
        errors.RecordTooLargeError("x"),
        errors.ThrottledError("x"),
        errors.MissingRecordsError("x"),
        errors.CorruptionError("x"),
        errors.PeerAuthenticationError("x"),
        errors.OffsetOutOfRangeError("x", log_start_offset=-1, high_watermark=-1),
        LogStoreError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_class_and_message(error):
    found = decode_error(error.kafka_code, encode_error(error))
    assert (type(found), found.message) == (type(error), error.message)


def test_an_error_that_this_release_does_not_know_keeps_kafkas_code_or_its_kind():
    assert type(decode_error(6, struct.pack("<HH", 59999, 1) + b"x")) is errors.NotLeaderOrFollowerError
    assert type(decode_error(3999, struct.pack("<HH", 42901, 1) + b"x")) is errors.ThrottledError
    assert type(decode_error(3999, struct.pack("<HH", 50399, 1) + b"x")) is errors.BrokerNotReadyError


def test_a_message_with_a_name_that_is_not_unicode_is_sent_nevertheless():
    assert decode_error(-1, encode_error(LogStoreError("file \udcff"))).message == "file ?"


def test_a_long_message_of_an_error_is_cut():
    assert len(encode_error(LogStoreError("é" * 100_000))) < 5_000


# ---- frames ----------------------------------------------------------------------------------------------------------

TOPIC = UUID(int=7)
NO_FLAGS = FrameFlags(0)


def frame(
    payload: bytes = b"payload",
    *,
    base_offset: int = 100,
    frame_type=FrameType.DATA,
    flags=NO_FLAGS,
    count: int = 3,
) -> Frame:
    identity = BatchIdentity(5, 1, 7)
    return Frame(FrameHeader(frame_type, flags, TOPIC, 2, base_offset, count, 4, 1_000, 1_001, 64, identity), payload)


def stored(one: Frame, position: int = 12_345, file_id: int = 99) -> bytes:
    return encode_frame_header(one, position=position, durable_end=position, file_id=file_id) + one.payload


payloads = st.lists(st.binary(max_size=100), min_size=1, max_size=5)


@given(payloads, u64, u64)
@example([b"", b""], 0, 0)
def test_frames_are_split_wherever_they_were_stored(found, position, file_id):
    frames = [frame(payload, base_offset=at * 3) for at, payload in enumerate(found)]
    for buffer in (bytes, bytearray, memoryview):
        got = split_frames(buffer(b"".join(stored(one, position, file_id) for one in frames)))
        assert [Frame(one.header, bytes(one.payload)) for one in got] == frames


def test_a_copy_has_the_checksum_that_was_checked_when_it_came():
    answer = bytearray(stored(frame(b"payload")))
    (copy,) = split_frames(answer)
    answer[HEADER_BYTES] ^= 1  # memory fails after the check
    with pytest.raises(CorruptionError):
        split_frames(stored(copy))


def test_payloads_are_views_of_the_answer():
    answer = bytearray(stored(frame(b"payload")))
    (found,) = split_frames(answer)
    answer[HEADER_BYTES] = ord("P")
    assert bytes(found.payload) == b"Payload"


def test_no_bytes_are_no_frames():
    assert split_frames(b"") == []


@given(payloads, st.data())
def test_a_flipped_bit_anywhere_is_found(found, data):
    buffer = bytearray(b"".join(map(stored, map(frame, found))))
    at = data.draw(st.integers(0, len(buffer) - 1))
    buffer[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptionError):
        split_frames(buffer)


def test_every_byte_of_a_frame_counts():
    buffer = bytearray(stored(frame()))
    for at in range(len(buffer)):
        buffer[at] ^= 1
        with pytest.raises(CorruptionError):
            split_frames(buffer)
        buffer[at] ^= 1
    assert split_frames(buffer)


@given(payloads, st.data())
def test_frames_that_are_cut_are_found(found, data):
    whole = [stored(frame(payload)) for payload in found]
    buffer = b"".join(whole)
    cut = data.draw(st.integers(1, len(whole[-1]) - 1))
    with pytest.raises(CorruptionError):
        split_frames(buffer[:-cut])


@pytest.mark.parametrize("frame_type", [FrameType.SNAPSHOT, FrameType.TRUNCATE])
def test_frames_that_take_no_offsets_are_refused(frame_type):
    with pytest.raises(CorruptionError, match=f"{frame_type.name}, which is no part of a log"):
        split_frames(stored(frame()) + stored(frame(b"", frame_type=frame_type)))


def test_a_mark_is_refused():
    with pytest.raises(CorruptionError, match="MARK"):
        split_frames(encode_mark(durable_end=0, file_id=1))


def test_a_transaction_marker_is_taken():
    one = frame(b"marker", frame_type=FrameType.CONTROL, count=1)
    assert split_frames(stored(one))[0].header == one.header


def test_a_record_batch_of_a_kafka_client_is_copied_as_it_is():
    one = frame(b"a record batch", frame_type=FrameType.KAFKA_BATCH, flags=FrameFlags.LOG_APPEND_TIME)
    (copy,) = split_frames(stored(one))
    assert (copy.header, bytes(copy.payload)) == one


@pytest.mark.parametrize("frame_type", [FrameType.KAFKA_BATCH, FrameType.DATA])
def test_frames_that_this_release_does_not_honour_are_refused_by_name(frame_type):
    with pytest.raises(NewerFormatError, match="TRANSACTIONAL"):
        split_frames(stored(frame(frame_type=frame_type, flags=FrameFlags.TRANSACTIONAL)))


def test_a_copied_frame_forgets_that_the_leader_had_copied_it_forward():
    flags = FrameFlags.RELOCATED | FrameFlags.LOG_APPEND_TIME
    (found,) = split_frames(stored(frame(flags=flags)))
    assert found.header == frame(flags=FrameFlags.LOG_APPEND_TIME).header
    assert found.header.type is FrameType.DATA
    assert FORMAT_VERSION == 4  # a new version has its own frames to test here
