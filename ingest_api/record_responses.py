"""Response bodies of the record routes: made column by column, large ones sent in pieces.

Invariant: every response with a body has a Content-Length.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingest_api.content_types import METADATA_TYPES
from ingest_api.errors import http_error, shown_message
from logstore.broker.admission import Reservation
from logstore.broker.produce.batcher import RecordPlaces
from logstore.broker.produce.result import NO_OFFSET, ProduceResult
from logstore.errors import LogStoreError
from logstore.filesystem import Buffer
from logstore.records import native

_PIECE_BYTES = 256 * 1024
# For fewer records, an object for each costs less than the steps over columns.
_MATRIX_RECORDS_MIN = 64
_OFFSETS_BEGIN, _OFFSETS_END = b'{"offsets":[', b'],"key_schema_id":null,"value_schema_id":null}'


class _Offset(msgspec.Struct, gc=False):
    """The place of a record, or the reason why it has none."""

    partition: int | None
    offset: int | None
    error_code: int | None = None
    error: str | None = None


class _Offsets(msgspec.Struct):
    offsets: list[_Offset]
    key_schema_id: None = None
    value_schema_id: None = None


_ENCODER = msgspec.json.Encoder()


_CONTENT_TYPES = {media_type: (b"content-type", media_type.encode()) for media_type in METADATA_TYPES}


class BytesResponse(Response):
    """A Response with status 200 and a body of bytes of one of METADATA_TYPES, made in as few steps as possible."""

    def __init__(self, body: bytes, media_type: str) -> None:
        self.status_code = 200
        self.body = body
        self.background = None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), _CONTENT_TYPES[media_type]]


class RecordsResponse(Response):
    """A large body, sent as fast as the client reads it (``protocol`` cuts off a slow client). Its memory is reserved
    until it is sent.

    The pieces of ``body`` are sent as they are, small ones together.
    """

    def __init__(
        self, body: Sequence[Buffer], reservation: Reservation, *, media_type: str, headers: Mapping[str, str]
    ) -> None:
        length = {"Content-Length": str(sum(map(len, body)))}
        super().__init__(None, 200, {**headers, **length}, media_type)
        self._pieces = body
        self._reservation = reservation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        with self._reservation:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            gathered: list[Buffer] = []
            size = 0
            for piece in self._pieces:
                if size + len(piece) > _PIECE_BYTES:
                    await _send_more(send, b"".join(gathered))
                    gathered, size = [], 0
                if len(piece) > _PIECE_BYTES:
                    await _send_more(send, piece)
                else:
                    gathered.append(piece)
                    size += len(piece)
            # Send the rest, small or empty. The server accepts it when at most such a rest of the earlier pieces is
            # still to be sent.
            await send({"type": "http.response.body", "body": b"".join(gathered)})


async def _send_more(send: Send, piece: Buffer) -> None:
    if piece:
        await send({"type": "http.response.body", "body": piece, "more_body": True})


def common_error(places: RecordPlaces) -> LogStoreError | None:
    """Return the error of the request as a whole, if all of its partitions have the same kind of error."""
    if not places.errors or any(offset != NO_OFFSET for offset in places.offsets):
        return None
    first, *others = places.errors.values()
    return None if any(type(other) is not type(first) for other in others) else first


def offsets_of(
    partitions: Iterable[int], offsets: Iterable[int], errors: Mapping[int, LogStoreError] | None = None
) -> bytes:
    """Return the v2 response: one object per record, in the order of the request.

    Records that were not stored have no place and the error of their partition, from ``errors``, as in REST Proxy v2.
    """
    places = zip(partitions, offsets, strict=True)
    if errors:
        refused = {partition: _Offset(None, None, **_error_fields(error)) for partition, error in errors.items()}
        rows = [refused.get(partition) or _Offset(partition, offset) for partition, offset in places]
    else:
        rows = list(itertools.starmap(_Offset, places))
    return _ENCODER.encode(_Offsets(rows))


def _error_fields(error: LogStoreError) -> dict[str, Any]:
    return {"error_code": http_error(error).error_code, "error": shown_message(error.message)}


def produced_offsets(result: ProduceResult) -> bytes:
    """Return the response that ``offsets_of`` returns, without a Python object per record."""
    partitions, offsets = result.places()
    if errors := result.errors():
        return offsets_of(partitions.tolist(), offsets.tolist(), errors)
    if native.NATIVE is not None:
        return b"".join((_OFFSETS_BEGIN, native.NATIVE.places_text(partitions, offsets), _OFFSETS_END))
    if result.count < _MATRIX_RECORDS_MIN:
        return offsets_of(partitions.tolist(), offsets.tolist())
    return _matrix_of_places(result, offsets)


def _matrix_of_places(result: ProduceResult, offsets: np.ndarray) -> bytes:
    """Return the response without C: every record's text has the same length, shorter numbers begin with spaces (which
    JSON allows), and all texts are one matrix of bytes.
    """
    ranges = result.partitions
    partition_digits = len(str(max(produced.partition for produced in ranges)))
    offset_digits = len(str(max(produced.base_offset + produced.count - 1 for produced in ranges)))
    text = b'{"partition":%*d,"offset":%*d,"error_code":null,"error":null},'
    texts = [text % (partition_digits, r.partition, offset_digits, r.base_offset) for r in ranges]
    text_of = np.zeros(result.count, np.intp)
    for at, produced in enumerate(ranges):
        text_of[slice(None) if produced.rows is None else produced.rows] = at
    matrix = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), -1)[text_of]
    digits = np.empty((offset_digits, result.count), np.uint8)
    for place in range(offset_digits - 1, -1, -1):
        rest = offsets // 10
        digits[place] = (offsets - 10 * rest) + ord("0")
        if place < offset_digits - 1:
            digits[place][offsets == 0] = ord(" ")
        offsets = rest
    end = texts[0].index(b',"error_code"')
    matrix[:, end - offset_digits : end] = digits.T
    return b"".join((_OFFSETS_BEGIN, matrix.reshape(-1)[:-1].tobytes(), _OFFSETS_END))


def produced_ranges(result: ProduceResult) -> bytes:
    """Return the response by ranges, for bodies in columns: offsets are consecutive within a partition.

    If records of some partitions were not stored, every range also has its error, or null.
    """
    ranges: list[dict[str, Any]] = [
        {"partition": produced.partition, "base_offset": produced.base_offset, "count": produced.count}
        for produced in result.partitions
    ]
    if result.errors():
        for described, produced in zip(ranges, result.partitions, strict=True):
            if produced.error is None:
                described |= {"error_code": None, "error": None}
            else:
                described |= {"base_offset": None, **_error_fields(produced.error)}
    return msgspec.json.encode({"ranges": ranges})
