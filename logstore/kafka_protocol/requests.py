"""Requests: header (``RequestHeader.json``, versions 1 and 2) and message, read and written as the payload of a frame.

Bytes of a request after the last field are ignored, as in Kafka: librdkafka sends three extra bytes after an empty
Metadata request of version 13.
"""

import functools
import struct
from typing import Any, Final, NamedTuple

import msgspec

from logstore.errors import MalformedMessageError, UnsupportedVersionError
from logstore.filesystem import Buffer
from logstore.kafka_protocol.apis import API_VERSIONS, APIS
from logstore.kafka_protocol.decoders import Decoder, decoder
from logstore.kafka_protocol.definitions import request_and_response
from logstore.kafka_protocol.encoders import encoder
from logstore.kafka_protocol.varints import skip_tagged_fields

# API key and version, correlation id, length of the client id.
_HEADER: Final = struct.Struct(">hhih")
_FRAME_HEADER: Final = struct.Struct(">ihhih")
# Kafka defines no tagged fields for this header, so its clients never reach the bound.
_HEADER_TAGS_MAX: Final = 1000


class Request(msgspec.Struct, frozen=True, gc=False):
    """``message`` is None for ApiVersions in a version that is not served: the response is one of version 0 with
    UNSUPPORTED_VERSION and the versions that are served (KIP-511).
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    message: Any

    @property
    def response_version(self) -> int:
        return 0 if self.message is None else self.api_version


# SaslHandshake and SaslAuthenticate.
_SASL: Final = (17, 36)


class _Codec(NamedTuple):
    is_flexible: bool
    decode: Decoder | None


@functools.cache
def _codec(api_key: int, version: int) -> _Codec:
    api = APIS.get(api_key)
    if api is None:
        why = ": there is no SASL, clients need security.protocol=PLAINTEXT" if api_key in _SASL else ""
        raise UnsupportedVersionError(f"The store does not serve Kafka's API {api_key}{why}")
    if not api.version_min <= version <= api.version_max:
        raise UnsupportedVersionError(
            f"The store serves {api.name} in versions {api.version_min} to {api.version_max}, not in {version}"
        )
    request, _ = request_and_response(api_key)
    return _Codec(request.is_flexible(version), decoder(request.name, version))


def read_request(frame: Buffer) -> Request:
    """Read the request of a frame, without the frame's length. ``records`` in its message are slices of ``frame``.

    Raises MalformedMessageError if it cannot be read, UnsupportedVersionError if API or version are not served. Kafka
    closes the connection after both.
    """
    try:
        key, version, correlation_id, length = _HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedMessageError(f"A request of {len(frame)} bytes has no room for its header") from None
    try:
        is_flexible, decode = _codec(key, version)
    except UnsupportedVersionError:
        if key != API_VERSIONS:
            raise
        is_flexible, decode = False, None
    position = _HEADER.size
    client_id = None
    if length >= 0:
        position += length
        client_id = _client_id(frame, length)
    if decode is None:
        return Request(key, version, correlation_id, client_id, None)
    if is_flexible:
        try:
            if frame[position]:
                position, _ = skip_tagged_fields(frame, position, _HEADER_TAGS_MAX)
            else:
                position += 1
        except IndexError:
            raise MalformedMessageError("The header of a request goes beyond its end") from None
    return Request(key, version, correlation_id, client_id, decode(frame, position))


def _client_id(frame: Buffer, length: int) -> str:
    end = _HEADER.size + length
    if end > len(frame):
        raise MalformedMessageError(f"A client id of {length} bytes goes beyond the end of its request")
    try:
        return str(frame[_HEADER.size : end], "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessageError(f"A client id is no UTF-8: {error}") from None


def write_request(api_key: int, version: int, correlation_id: int, client_id: str | None, message: Any) -> list[Buffer]:
    """Return the frame with its length, as buffers to be sent one after the other, for any API and version that Kafka
    has.
    """
    request, _ = request_and_response(api_key)
    text = b"" if client_id is None else client_id.encode()
    frame = bytearray(_FRAME_HEADER.pack(0, api_key, version, correlation_id, -1 if client_id is None else len(text)))
    frame += text
    if request.is_flexible(version):
        frame.append(0)
    buffers = encoder(request.name, version)(message, frame)
    struct.pack_into(">i", frame, 0, sum(map(len, buffers)) - 4)
    return buffers
