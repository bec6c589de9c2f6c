"""The messages between brokers, as pure encoding and decoding (docs/peer-protocol.md has the layout).

Everything is little-endian. A message is a header of 12 bytes and a body; every request has one response with the same
correlation.

Invariants: a decoder trusts nothing that it can check. It allocates nothing by a count that the bytes after it do not
confirm, reads a body to its last byte, and raises MalformedMessageError for everything else. Rows are one tuple per
partition, never per record; frames stay views of the body.
"""

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from logstore.crc32c import crc32c
from logstore.errors import (
    CorruptionError,
    DataDirectoryError,
    LogStoreError,
    MalformedMessageError,
    NewerFormatError,
)
from logstore.filesystem import Buffer
from logstore.journal.frame import HEADER_BYTES, HONOURED, CheckedFrame, Frame, FrameFlags, decode_frame_header
from logstore.protocol.error_codes import code_of, error_of_kafka
from logstore.records.batch_identity import BatchIdentity

Body = Buffer | Sequence[Buffer]
"""The bytes of a body, in one piece or in several, which are sent in their order without being joined first."""

#: The version of every message. A broker refuses any other by name. By HELLO (``Hello.release``) a newer broker knows
#: what its peer takes.
VERSION: Final = 1
#: The longest message before the peer has proved that it knows the secret, header included.
HANDSHAKE_BYTES_MAX: Final = 4096
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32


class MessageType(IntEnum):
    HELLO = 1
    AUTH = 2
    FETCH = 3
    FETCHED = 4
    APPEND = 5
    APPENDED = 6
    DESCRIBE = 7
    DESCRIBED = 8
    HTTP = 9
    """After the response the connection continues as HTTP/1.1, for relayed requests."""
    ENLIST = 10
    """Reserved for transactions, as are the next two: refused by name."""
    WRITE_MARKERS = 11
    INIT_PRODUCER = 12


#: The requests, with the types of their responses.
ANSWER_TYPES: Final[Mapping[int, MessageType]] = {
    MessageType.HELLO: MessageType.HELLO,
    MessageType.AUTH: MessageType.AUTH,
    MessageType.FETCH: MessageType.FETCHED,
    MessageType.APPEND: MessageType.APPENDED,
    MessageType.DESCRIBE: MessageType.DESCRIBED,
    MessageType.HTTP: MessageType.HTTP,
}
RESERVED: Final = frozenset((MessageType.ENLIST, MessageType.WRITE_MARKERS, MessageType.INIT_PRODUCER))


# ---- header ----------------------------------------------------------------------------------------------------------

# Fields: the length of the rest, type, version, error, correlation.
_HEADER: Final = struct.Struct("<IBBhI")
_LENGTH_BYTES: Final = 4
MESSAGE_HEADER_BYTES: Final = _HEADER.size
BODY_BYTES_MAX: Final = (1 << 32) - 1 - (MESSAGE_HEADER_BYTES - _LENGTH_BYTES)


class Header(NamedTuple):
    """``error`` is a Kafka code, 0 in requests and successful responses. A response with another code has the body of
    ``encode_error``. It is an int16, as in Kafka: -1 is UNKNOWN_SERVER_ERROR.
    """

    type: int
    version: int
    error: int
    correlation: int
    body_bytes: int


class Message(NamedTuple):
    header: Header
    body: Buffer


def encode_header(message_type: int, correlation: int, body_bytes: int, error: int = 0) -> bytes:
    """Encode a header. Raises ValueError if the body is over ``BODY_BYTES_MAX``."""
    if body_bytes > BODY_BYTES_MAX:
        raise ValueError(f"a message between brokers may have {BODY_BYTES_MAX} bytes, not {body_bytes}")
    length = body_bytes + MESSAGE_HEADER_BYTES - _LENGTH_BYTES
    return _HEADER.pack(length, message_type, VERSION, error, correlation)


def decode_header(data: Buffer) -> Header:
    """Decode the header at the beginning of ``data``, which has at least ``MESSAGE_HEADER_BYTES``.

    Raises MalformedMessageError for a length below the header's own; the reader bounds lengths.
    """
    length, message_type, version, error, correlation = _HEADER.unpack_from(data)
    body_bytes = length - (MESSAGE_HEADER_BYTES - _LENGTH_BYTES)
    if body_bytes < 0:
        raise MalformedMessageError(f"a message of {length} bytes behind its length is shorter than its header")
    return Header(message_type, version, error, correlation, body_bytes)


# ---- HELLO, AUTH -----------------------------------------------------------------------------------------------------

_HELLO: Final = struct.Struct("<iiq32s")
# Bounds a stranger's names, which may get into the log.
_NAME_BYTES_MAX: Final = 64


class Hello(NamedTuple):
    """The first message in both directions: its sender, and the broker that it is for."""

    cluster_id: str
    broker_id: int
    peer_id: int
    """The broker that is meant; in the answer the one that asked."""
    broker_epoch: int
    """The czxid of the speaker's registration."""
    nonce: bytes
    """``NONCE_BYTES``, new for each connection."""
    release: str


def encode_hello(hello: Hello) -> bytes:
    head = _HELLO.pack(hello.broker_id, hello.peer_id, hello.broker_epoch, hello.nonce)
    return head + _text(hello.cluster_id) + _text(hello.release)


def decode_hello(body: Buffer) -> Hello:
    reader = _Reader(body, "HELLO")
    broker_id, peer_id, broker_epoch, nonce = reader.take(_HELLO)
    cluster_id, release = reader.text(_NAME_BYTES_MAX), reader.text(_NAME_BYTES_MAX)
    reader.end()
    return Hello(cluster_id, broker_id, peer_id, broker_epoch, nonce, release)


def encode_auth(proof: bytes) -> bytes:
    """Encode ``proof``, which ``peer_auth`` makes: ``PROOF_BYTES``."""
    return bytes(proof)


def decode_auth(body: Buffer) -> bytes:
    if len(body) != PROOF_BYTES:
        raise MalformedMessageError(f"AUTH has a proof of {len(body)} bytes instead of {PROOF_BYTES}")
    return bytes(body)


# ---- FETCH, FETCHED --------------------------------------------------------------------------------------------------

_FETCH: Final = struct.Struct("<IIIII")
_FETCH_ROW: Final = struct.Struct("<I16siiqiI")
_INDEX: Final = struct.Struct("<I")
_COUNT: Final = struct.Struct("<I")
_FETCHED_ROW: Final = struct.Struct("<IhqqqiqI")


class FetchRow(NamedTuple):
    """A partition that is new in the session, or whose row has changed (KIP-227, KIP-595)."""

    session_index: int
    """Chosen by the follower: the partition's name in this session."""
    topic_id: UUID
    partition: int
    leader_epoch: int
    fetch_offset: int
    """The follower's durable log end offset: so a row is also its acknowledgement."""
    last_fetched_epoch: int
    """The epoch of the record before ``fetch_offset``; -1 without one."""
    partition_max_bytes: int


class Fetch(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    rows: list[FetchRow]
    forgotten: list[int]
    """Session indexes."""


class FetchedRow(NamedTuple):
    """The leader's response for one partition. Unknown offsets are -1."""

    session_index: int
    error: int
    """A Kafka code."""
    high_watermark: int
    sealed_offset: int
    log_start_offset: int
    diverging_epoch: int
    """-1, or the largest epoch up to the follower's last one that the leader has; then its end, and no frames."""
    diverging_end_offset: int
    frames_bytes: int


def encode_fetch(fetch: Fetch) -> bytes:
    """Encode a FETCH; a row takes 44 bytes."""
    head = _FETCH.pack(fetch.max_wait_ms, fetch.min_bytes, fetch.max_bytes, len(fetch.rows), len(fetch.forgotten))
    pack = _FETCH_ROW.pack
    rows = [pack(index, topic_id.bytes, *rest) for index, topic_id, *rest in fetch.rows]
    return b"".join((head, *rows, *map(_INDEX.pack, fetch.forgotten)))


def decode_fetch(body: Buffer) -> Fetch:
    reader = _Reader(body, "FETCH")
    max_wait_ms, min_bytes, max_bytes, rows, forgotten = reader.take(_FETCH)
    found = [FetchRow(index, _uuid(topic_id), *rest) for index, topic_id, *rest in reader.rows(_FETCH_ROW, rows)]
    dropped = [index for (index,) in reader.rows(_INDEX, forgotten)]
    reader.end()
    return Fetch(max_wait_ms, min_bytes, max_bytes, found, dropped)


def encode_fetched(rows: Sequence[FetchedRow], frames: Iterable[Buffer]) -> list[Buffer]:
    """Encode a FETCHED. ``frames`` has the bytes of the frames of all rows in order, in pieces of any size, as many
    bytes as the rows name. A frame is its header of 128 bytes as stored, and its payload.
    """
    pieces = list(frames)
    assert sum(map(len, pieces)) == sum(row.frames_bytes for row in rows)
    return [b"".join((_COUNT.pack(len(rows)), *[_FETCHED_ROW.pack(*row) for row in rows])), *pieces]


def decode_fetched(body: Buffer) -> list[tuple[FetchedRow, memoryview]]:
    """Return the rows, each with its frames (``split_frames``), which are views of ``body``."""
    reader = _Reader(body, "FETCHED")
    (count,) = reader.take(_COUNT)
    rows = [FetchedRow._make(row) for row in reader.rows(_FETCHED_ROW, count)]
    found = [(row, reader.bytes(row.frames_bytes)) for row in rows]
    reader.end()
    return found


# ---- frames of FETCHED -----------------------------------------------------------------------------------------------

# By version, type and flags. RELOCATED is left out, because only the sending journal knows whether it copied a frame
# forward.
_SENT_KINDS: Final = {
    kind: (frame_type, flags & ~FrameFlags.RELOCATED) for kind, (frame_type, flags) in HONOURED.items()
}


def split_frames(buffer: Buffer) -> list[Frame]:
    """Split one partition's bytes into frames as the leader's journal has them: headers of 128 bytes with payloads.

    A frame is believed if magic, header CRC and payload CRC are right. Position, ``durable_end`` and file id are the
    leader's and are ignored; the flag RELOCATED is dropped. Payloads are views of ``buffer``, and keep their CRC.

    Raises CorruptionError for bytes that are not whole frames and for frames that take no offsets, NewerFormatError for
    frames of a version, type or flag that this release does not honour. Then nothing of the response may be believed.
    """
    data = memoryview(buffer)
    end, at = len(data), 0
    frames: list[Frame] = []
    while at < end:
        try:
            stored = decode_frame_header(data, at, None, None, _SENT_KINDS)
        except DataDirectoryError as error:
            raise NewerFormatError(f"the leader sent a frame that is not taken: {error.message}") from error
        if stored is None:
            raise CorruptionError(f"byte {at} of {end} that the leader sent for a partition is not a frame's first")
        header, length, payload_crc, _ = stored
        begin = at + HEADER_BYTES
        at = begin + length
        payload = data[begin:at]
        if len(payload) < length or crc32c(payload) != payload_crc:
            raise CorruptionError(
                f"the payload of the frame at offset {header.base_offset} that the leader sent is cut or damaged"
            )
        if not header.takes_offsets:
            raise CorruptionError(f"the leader sent a frame of type {header.type.name}, which is no part of a log")
        frames.append(CheckedFrame.of(header, payload, payload_crc))
    return frames


# ---- APPEND, APPENDED ------------------------------------------------------------------------------------------------

_APPEND: Final = struct.Struct("<hII")
_APPEND_PART: Final = struct.Struct("<16siQhqIIqQI")
_APPENDED_PART: Final = struct.Struct("<hqqq?")


class AppendPart(NamedTuple):
    """Records for one partition: a validated batch, as the journal's frames have it.

    The leader decides on offsets, append time and flags.
    """

    topic_id: UUID
    partition: int
    identity: BatchIdentity
    record_count: int
    untimed_count: int
    """Records without a timestamp, which get the append time."""
    max_timestamp_ms: int
    """The largest timestamp of the records that have one; meaningless if none has."""
    inflated_bytes: int
    payload: Buffer
    """One encapsulated Arrow IPC record batch message, the payload of a DATA frame."""


class Append(NamedTuple):
    """``principal`` and ``client_id`` belong to the client that sent the records to the other broker."""

    acks: int
    timeout_ms: int
    principal: str
    client_id: str
    parts: list[AppendPart]


class AppendedPart(NamedTuple):
    """The outcome for the part at the same place of the request. Offsets and times are -1 beside an error."""

    error: LogStoreError | None
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    repeated: bool = False
    """The batch was stored before, and not again."""


def encode_append(append: Append) -> list[Buffer]:
    """Encode an APPEND; a part takes 66 bytes and its payload."""
    pieces: list[Buffer] = [
        _APPEND.pack(append.acks, append.timeout_ms, len(append.parts)),
        _text(append.principal),
        _text(append.client_id),
    ]
    pieces.extend(
        _APPEND_PART.pack(
            part.topic_id.bytes,
            part.partition,
            *part.identity,
            part.record_count,
            part.untimed_count,
            part.max_timestamp_ms,
            part.inflated_bytes,
            len(part.payload),
        )
        for part in append.parts
    )
    return [b"".join(pieces), *[part.payload for part in append.parts]]


def decode_append(body: Buffer) -> Append:
    """Decode an APPEND. The payloads are views of ``body`` and are not checked."""
    reader = _Reader(body, "APPEND")
    acks, timeout_ms, count = reader.take(_APPEND)
    principal, client_id = reader.text(), reader.text()
    parts = [
        AppendPart(
            _uuid(topic_id),
            partition,
            BatchIdentity(owner, epoch, sequence),
            record_count,
            untimed_count,
            max_timestamp_ms,
            inflated_bytes,
            reader.bytes(payload_bytes),
        )
        for (
            topic_id,
            partition,
            owner,
            epoch,
            sequence,
            record_count,
            untimed_count,
            max_timestamp_ms,
            inflated_bytes,
            payload_bytes,
        ) in list(reader.rows(_APPEND_PART, count))
    ]
    reader.end()
    return Append(acks, timeout_ms, principal, client_id, parts)


def encode_appended(parts: Sequence[AppendedPart]) -> bytes:
    pieces = [_COUNT.pack(len(parts))]
    for error, *offsets in parts:
        pieces.append(_APPENDED_PART.pack(0 if error is None else error.kafka_code, *offsets))
        if error is not None:
            pieces.append(encode_error(error))
    return b"".join(pieces)


def decode_appended(body: Buffer) -> list[AppendedPart]:
    reader = _Reader(body, "APPENDED")
    (count,) = reader.take(_COUNT)
    reader.expect(_APPENDED_PART, count)
    parts = []
    for _ in range(count):
        kafka_code, base_offset, append_time_ms, log_start_offset, repeated = reader.take(_APPENDED_PART)
        error = None if kafka_code == 0 else reader.error(kafka_code)
        parts.append(AppendedPart(error, base_offset, append_time_ms, log_start_offset, bool(repeated)))
    reader.end()
    return parts


# ---- DESCRIBE, DESCRIBED ---------------------------------------------------------------------------------------------

_PARTITION: Final = struct.Struct("<16si")
_DESCRIBED_ROW: Final = struct.Struct("<hiqqqqqq")


class DescribedRow(NamedTuple):
    """The leader's offsets of the partition at the same place of the request; -1 beside an error."""

    error: int
    """A Kafka code."""
    leader_epoch: int = -1
    log_start_offset: int = -1
    sealed_offset: int = -1
    high_watermark: int = -1
    log_end_offset: int = -1
    last_stable_offset: int = -1
    unsealed_bytes: int = -1
    """In the leader's journal."""


def encode_describe(partitions: Sequence[tuple[UUID, int]]) -> bytes:
    """Encode a DESCRIBE of ``partitions``, each a topic id and a number."""
    rows = [_PARTITION.pack(topic_id.bytes, partition) for topic_id, partition in partitions]
    return b"".join((_COUNT.pack(len(rows)), *rows))


def decode_describe(body: Buffer) -> list[tuple[UUID, int]]:
    reader = _Reader(body, "DESCRIBE")
    (count,) = reader.take(_COUNT)
    found = [(_uuid(topic_id), partition) for topic_id, partition in reader.rows(_PARTITION, count)]
    reader.end()
    return found


def encode_described(rows: Sequence[DescribedRow]) -> bytes:
    return b"".join((_COUNT.pack(len(rows)), *[_DESCRIBED_ROW.pack(*row) for row in rows]))


def decode_described(body: Buffer) -> list[DescribedRow]:
    reader = _Reader(body, "DESCRIBED")
    (count,) = reader.take(_COUNT)
    found = [DescribedRow._make(row) for row in reader.rows(_DESCRIBED_ROW, count)]
    reader.end()
    return found


# ---- errors ----------------------------------------------------------------------------------------------------------

_ERROR: Final = struct.Struct("<H")
_TEXT_BYTES: Final = struct.Struct("<H")
_TEXT_BYTES_MAX: Final = (1 << 16) - 1
# An error's message is a sentence; one that quotes a client may be long.
_ERROR_TEXT_MAX: Final = 2048


def encode_error(error: LogStoreError) -> bytes:
    """Encode the body of an error response: our own error code and the message. The header has the Kafka code."""
    return _ERROR.pack(code_of(error)) + _text(error.message[:_ERROR_TEXT_MAX])


def decode_error(kafka_code: int, body: Buffer) -> LogStoreError:
    """Decode the error of a response whose header has ``kafka_code``, as the class that was raised if this release has
    it.
    """
    reader = _Reader(body, "an error")
    error = reader.error(kafka_code)
    reader.end()
    return error


# ---- fields ----------------------------------------------------------------------------------------------------------

# The same topic ids come again and again, and making a UUID takes longer than the rest of a row.
_uuid = functools.lru_cache(maxsize=4096)(lambda raw: UUID(bytes=raw))


def _text(text: str) -> bytes:
    """Encode a text. Raises ValueError for more than 64 KiB."""
    encoded = text.encode(errors="replace")
    if len(encoded) > _TEXT_BYTES_MAX:
        raise ValueError(f"a text between brokers may have {_TEXT_BYTES_MAX} bytes, not {len(encoded)}")
    return _TEXT_BYTES.pack(len(encoded)) + encoded


class _Reader:
    """Reads a body from its beginning. Every method raises MalformedMessageError for what does not fit."""

    __slots__ = ("_at", "_body", "_what")

    def __init__(self, body: Buffer, what: str) -> None:
        self._body = memoryview(body)
        self._what = what
        self._at = 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.bytes(layout.size))

    def rows(self, layout: struct.Struct, count: int) -> Iterator[tuple[Any, ...]]:
        return layout.iter_unpack(self.bytes(count * layout.size))

    def expect(self, layout: struct.Struct, count: int) -> None:
        """Require at least ``count`` more rows."""
        self._require(count * layout.size)

    def bytes(self, count: int) -> memoryview:
        begin, self._at = self._at, self._at + self._require(count)
        return self._body[begin : self._at]

    def text(self, bytes_max: int = _TEXT_BYTES_MAX) -> str:
        (count,) = self.take(_TEXT_BYTES)
        if count > bytes_max:
            raise MalformedMessageError(f"{self._what} has a text of {count} bytes; {bytes_max} are taken there")
        encoded = self.bytes(count)
        try:
            return str(encoded, "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessageError(f"{self._what} has a text that is not UTF-8") from error

    def error(self, kafka_code: int) -> LogStoreError:
        (code,) = self.take(_ERROR)
        return error_of_kafka(kafka_code, code, self.text())

    def end(self) -> None:
        if self._at < len(self._body):
            raise MalformedMessageError(f"{self._what} has {len(self._body) - self._at} bytes behind its end")

    def _require(self, count: int) -> int:
        if count > len(self._body) - self._at:
            raise MalformedMessageError(
                f"{self._what} ends after {len(self._body)} bytes, and says that {count} follow byte {self._at}"
            )
        return count
