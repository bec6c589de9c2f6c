"""Media types of requests and responses, and the compression of bodies.

Owns the reading of Content-Type, Accept and Content-Encoding (RFC 9110, sections 8.3, 8.4 and 12.5.1). Raises
UnsupportedMediaTypeError (415) and NotAcceptableError (406), both naming what the resource accepts.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers

from ingest_api.errors import NotAcceptableError, UnsupportedMediaTypeError

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
KAFKA_V2 = "application/vnd.kafka.v2+json"
KAFKA = "application/vnd.kafka+json"
KAFKA_JSON_V2 = "application/vnd.kafka.json.v2+json"
KAFKA_BINARY_V2 = "application/vnd.kafka.binary.v2+json"

#: Media types of responses with metadata, the best first.
METADATA_TYPES = (KAFKA_V2, KAFKA, JSON)
#: Media types of bodies in plain JSON (administration, delete-records).
JSON_REQUEST_TYPES = (JSON, KAFKA_V2, KAFKA)
CONTENT_CODINGS = ("gzip", "zstd")

_SCHEMA_REGISTRY_TYPES = re.compile(r"application/vnd\.kafka\.(avro|jsonschema|protobuf)\b")
_NAME = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_MEDIA_RANGE = re.compile(rf"({_NAME})/({_NAME})")
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*(?:({_NAME})=({_NAME}|{_QUOTED}))?")
_COMMA = re.compile(r"[ \t]*(,[ \t]*|$)")
_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
_HEADER_SHOWN_MAX = 100
# Clients send the same few headers again and again.
_HEADER_CACHED_MAX = 256


@dataclass(frozen=True, slots=True)
class MediaRange:
    """One element of Accept, or a Content-Type. ``kind`` is lower case; ``q`` is 1 unless given."""

    kind: str
    parameters: dict[str, str]
    q: float = 1.0

    @property
    def specificity(self) -> int:
        return 0 if self.kind == "*/*" else 1 if self.kind.endswith("/*") else 2

    def covers(self, media_type: str) -> bool:
        if self.kind == "*/*":
            return True
        if self.kind.endswith("/*"):
            return media_type.startswith(self.kind[:-1])
        return self.kind == media_type


def parse_media_ranges(header: str) -> Sequence[MediaRange]:
    """Return the elements of a list of media ranges with their parameters. Raises ValueError if it is malformed."""
    return _parse_again(header) if len(header) <= _HEADER_CACHED_MAX else _parse(header)


@functools.lru_cache(256)
def _parse_again(header: str) -> Sequence[MediaRange]:
    return _parse(header)


def _parse(header: str) -> Sequence[MediaRange]:
    ranges: list[MediaRange] = []
    position = 0
    while position < len(header):
        if not (found := _MEDIA_RANGE.match(header, position)):
            raise ValueError(header)
        kind = found[0].lower()
        if kind.startswith("*/") and kind != "*/*":
            raise ValueError(header)
        position = found.end()
        parameters: dict[str, str] = {}
        while parameter := _PARAMETER.match(header, position):
            if parameter[1]:
                parameters[parameter[1].lower()] = _unquote(parameter[2])
            position = parameter.end()
        quality = parameters.pop("q", "1")
        if not _QUALITY.fullmatch(quality):
            raise ValueError(header)
        ranges.append(MediaRange(kind, parameters, float(quality)))
        if not (comma := _COMMA.match(header, position)):
            raise ValueError(header)
        position = comma.end()
        if comma[1] and position == len(header):
            raise ValueError(header)
    return ranges


def request_media_type(headers: Headers, taken: Sequence[str]) -> str:
    """Return the media type of the body, one of ``taken``. Raises UnsupportedMediaTypeError if it is another one.

    A charset other than UTF-8 is refused for any type; other parameters are ignored.
    """
    given = headers.getlist("content-type")
    advice = f"Send one of {', '.join(taken)}."
    if len(given) != 1 or not given[0].strip():
        count = "no" if len(given) < 2 else "more than one"
        raise UnsupportedMediaTypeError(f"The request has {count} Content-Type. {advice}")
    try:
        ranges = parse_media_ranges(given[0].strip())
    except ValueError:
        ranges = []
    if len(ranges) != 1:
        raise UnsupportedMediaTypeError(f"Content-Type {_shown(given[0])} is not a media type. {advice}")
    media_type = ranges[0]
    if media_type.kind not in taken:
        if _SCHEMA_REGISTRY_TYPES.match(media_type.kind):
            advice = f"There is no schema registry here. {advice}"
        raise UnsupportedMediaTypeError(f"Content-Type {_shown(given[0])} is not supported here. {advice}")
    charset = media_type.parameters.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaTypeError(f"Charset {_shown(charset)} is not supported: send UTF-8.")
    return media_type.kind


def request_coding(headers: Headers) -> str | None:
    """Return the body's compression, one of CONTENT_CODINGS, or None. Raises UnsupportedMediaTypeError for any other,
    or several.
    """
    given = ",".join(headers.getlist("content-encoding")).strip().lower()
    coding = {"": None, "identity": None, "x-gzip": "gzip"}.get(given, given)
    if coding is not None and coding not in CONTENT_CODINGS:
        raise UnsupportedMediaTypeError(
            f"Content-Encoding {_shown(given)} is not supported. "
            f"Send the body as it is, or one of {', '.join(CONTENT_CODINGS)}."
        )
    return coding


def response_media_type(headers: Headers, given: Sequence[str]) -> str:
    """Return the media type that the client prefers of ``given`` (the server's order decides among equals).

    Raises NotAcceptableError if Accept is malformed or excludes them all. For each type the most specific range counts,
    so that ``*/*, application/json;q=0`` excludes JSON.
    """
    accept = ",".join(value for value in headers.getlist("accept") if value.strip()).strip()
    if not accept:
        return given[0]
    try:
        ranges = parse_media_ranges(accept)
    except ValueError:
        raise NotAcceptableError(f"Accept {_shown(accept)} is malformed. Ask for one of {', '.join(given)}.") from None
    best, best_quality = "", 0.0
    for media_type in given:
        matching = [found for found in ranges if found.covers(media_type)]
        if matching and (quality := max(matching, key=lambda found: (found.specificity, found.q)).q) > best_quality:
            best, best_quality = media_type, quality
    if not best:
        raise NotAcceptableError(
            f"Accept {_shown(accept)} allows nothing of what there is. Ask for one of {', '.join(given)}."
        )
    return best


def asks_for(headers: Headers, media_types: Sequence[str]) -> bool:
    """Return whether Accept, which is well formed, has one of ``media_types`` by name, so not only by a wildcard."""
    accept = ",".join(value for value in headers.getlist("accept") if value.strip())
    return any(found.q and found.kind in media_types for found in parse_media_ranges(accept.strip()))


def _unquote(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _shown(header: str) -> str:
    return repr(header if len(header) <= _HEADER_SHOWN_MAX else header[:_HEADER_SHOWN_MAX] + "...")
