"""Responses: header (``ResponseHeader.json``, versions 0 and 1) and message, written and read as frames."""

import functools
import struct
from typing import Any, Final, NamedTuple

from logstore.errors import MalformedMessageError
from logstore.filesystem import Buffer
from logstore.kafka_protocol.apis import API_VERSIONS
from logstore.kafka_protocol.decoders import decoder
from logstore.kafka_protocol.definitions import request_and_response
from logstore.kafka_protocol.encoders import Encoder, encoder
from logstore.kafka_protocol.varints import skip_tagged_fields

# Length of the frame, correlation id; with an empty section of tagged fields.
_HEADER: Final = struct.Struct(">ii")
_FLEXIBLE_HEADER: Final = struct.Struct(">iix")
_HEADER_TAGS_MAX: Final = 1000


class _Codec(NamedTuple):
    header: struct.Struct
    encode: Encoder


def _has_flexible_header(api_key: int, version: int) -> bool:
    """Return whether the header is flexible. A client that asks for ApiVersions does not know yet what the broker
    understands, so it gets header version 0.
    """
    _, response = request_and_response(api_key)
    return api_key != API_VERSIONS and response.is_flexible(version)


@functools.cache
def _codec(api_key: int, version: int) -> _Codec:
    _, response = request_and_response(api_key)
    header = _FLEXIBLE_HEADER if _has_flexible_header(api_key, version) else _HEADER
    return _Codec(header, encoder(response.name, version))


def write_response(api_key: int, version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """Return the frame with its length, as buffers to be sent one after the other. ``version`` is the request's
    ``response_version``. Records stay where they are until the buffers are sent.
    """
    header, encode = _codec(api_key, version)
    frame = bytearray(header.pack(0, correlation_id))
    buffers = encode(message, frame)
    struct.pack_into(">i", frame, 0, sum(map(len, buffers)) - 4)
    return buffers


def read_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Return the correlation id and the message of a frame, without the frame's length. Raises MalformedMessageError if
    it cannot be read.
    """
    _, response = request_and_response(api_key)
    position = 4
    try:
        (correlation_id,) = struct.unpack_from(">i", frame)
        if _has_flexible_header(api_key, version):
            position, _ = skip_tagged_fields(frame, position, _HEADER_TAGS_MAX)
    except (struct.error, IndexError):
        raise MalformedMessageError(f"A response of {len(frame)} bytes has no room for its header") from None
    return correlation_id, decoder(response.name, version)(frame, position)
