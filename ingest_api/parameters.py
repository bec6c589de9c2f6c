"""Query parameters and partitions in paths, read strictly.

The parameters of the record routes are declared here, once, and documented from that; other routes have models.

Numbers are decimal digits and nothing else (no exponent, space, leading zero or other script's digits). A parameter
that is unknown, given twice or has no value is refused rather than guessed: a misspelt ``max_wait`` must not silently
mean the default. ParameterError says what to send; a bad path raises the 404 of the resource.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from ingest_api.errors import NoSuchResourceError, ParameterError
from logstore.errors import UnknownPartitionError
from logstore.limits import FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from logstore.quantities import TIME_FORMS, timestamp_ms
from logstore.records.where.evaluation import Where
from logstore.records.where.expression import both, key_equals
from logstore.records.where.parser import parse_where

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_NUMBER = re.compile(r"[+-]?[0-9]+")
_ZONE_AFTER_SPACE = re.compile(r"(:[0-9]{2}(?:[.,][0-9]+)?) ([0-9]{2}:?[0-9]{2})$")
_OFFSET_MAX = 2**63 - 1
_FIELDS_MAX = 100
_SHOWN_MAX = 60


@dataclass(frozen=True, slots=True)
class IntegerParameter:
    """A number. If ``default`` is None, the description says what absence means."""

    name: str
    minimum: int
    maximum: int
    default: int | None
    description: str

    def read(self, text: str) -> int:
        if not _INTEGER.fullmatch(text) or not self.minimum <= int(text) <= self.maximum:
            raise ParameterError(
                f"Query parameter {self.name} cannot be {shown(text)}: "
                f"send a whole number from {self.minimum} to {self.maximum}."
            )
        return int(text)

    @property
    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "integer",
            "format": "int64",
            "minimum": self.minimum,
            "maximum": self.maximum,
        }
        return schema if self.default is None else {**schema, "default": self.default}


@dataclass(frozen=True, slots=True)
class ChoiceParameter:
    """A choice, from text to value. The first one is the default, unless the description says what absence means."""

    name: str
    choices: dict[str, int]
    description: str
    has_default: bool = True

    @property
    def default(self) -> int | None:
        return next(iter(self.choices.values())) if self.has_default else None

    def read(self, text: str) -> int:
        if text not in self.choices:
            raise ParameterError(
                f"Query parameter {self.name} cannot be {shown(text)}: send one of {', '.join(self.choices)}."
            )
        return self.choices[text]

    @property
    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "enum": list(self.choices)}
        return {**schema, "default": next(iter(self.choices))} if self.has_default else schema


@dataclass(frozen=True, slots=True)
class TextParameter:
    """A text that its route reads; ``schema`` describes it."""

    name: str
    description: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})

    @property
    def json_schema(self) -> dict[str, Any]:
        return self.schema


Parameter = IntegerParameter | ChoiceParameter

ACKS = ChoiceParameter(
    "acks",
    {"all": -1, "-1": -1, "1": 1, "0": 0},
    "When to respond: `all` or `-1`, when the records are durable on all in-sync replicas; `1`, when they are "
    "durable on the leader; `0`, at once with 202, before anything is durable.",
)
TIMEOUT_MS = IntegerParameter(
    "timeout_ms",
    1,
    3_600_000,
    30_000,
    "How long the append may take, in ms. After that the response is 504 with error_code 50401: the records may "
    "or may not be stored.",
)
KEY_FORMAT = ChoiceParameter(
    "key_format",
    {"json": 0, "string": 1},
    "For records in JSON: `json` stores a key as its JSON text, a text with its quotes; `string` stores a text "
    "as its UTF-8 bytes, and any other key as its JSON text. Default: the topic's `key.format`.",
    has_default=False,
)
OFFSET = IntegerParameter("offset", 0, _OFFSET_MAX, None, "The first offset to read. Default: the log start offset.")
MAX_BYTES = IntegerParameter(
    "max_bytes",
    0,
    FETCH_BYTES_MAX,
    FETCH_BYTES_DEFAULT,
    "The most bytes of keys, values and headers to return. One record is always returned, even if it is larger.",
)
MIN_BYTES = IntegerParameter(
    "min_bytes", 0, FETCH_BYTES_MAX, 1, "Wait until there are this many bytes, or `max_wait_ms` have passed."
)
MAX_WAIT_MS = IntegerParameter(
    "max_wait_ms",
    0,
    FETCH_WAIT_MS_MAX,
    500,
    "How long to wait for `min_bytes`, in ms; after that the response may be empty.",
)
POLL_TIMEOUT = IntegerParameter(
    "timeout",
    -1,
    2**31 - 1,
    -1,
    f"How long to wait for records, in ms, at most {FETCH_WAIT_MS_MAX}. -1: as the instance was created.",
)
POLL_MAX_BYTES = IntegerParameter(
    "max_bytes",
    -1,
    2**63 - 1,
    -1,
    "The most bytes of keys, values and headers to return, no more than `consumer.request.max.bytes`. One record "
    "is always returned, even if it is larger. -1: that setting.",
)
FROM = TextParameter(
    "from",
    "Where to begin: `earliest`, `latest` (default), or a position: the id of an event, or the next offset of "
    "each partition, as `0:17,1:5` (partitions that it leaves out begin at their log start). The header "
    "`Last-Event-ID`, which a browser sends when it connects again, takes precedence.",
    {"type": "string", "default": "latest"},
)
PARTITION = TextParameter(
    "partition",
    "The partitions to stream, as `0,3`. Default: all, including those that are added later.",
    {"type": "string", "pattern": "^[0-9]+(,[0-9]+)*$"},
)
KEY = TextParameter(
    "key",
    "Only records with this key: JSON, or a text without quotes, which is read as a JSON string. With "
    "`key_format=string` it is the key's text itself, with `format=binary` its bytes as base64.",
)
RECORD_KEY = TextParameter(
    "key", "Only records with this key. Give a key that is a JSON string without its quotes: `alice`."
)
WHERE = TextParameter(
    "where",
    'Only records that this expression selects: `$.user == "ada" and timestamp >= "2026-11-21"`. With it, or '
    "with `key`, a response may be empty before the end of the log; the next request begins at "
    "`Logstore-Next-Offset`.",
)
EVENT_FORMAT = ChoiceParameter(
    "format",
    {"json": 0, "binary": 1},
    "The format of keys and values: `json`, as the records endpoint shows them without an Accept (`key_format` "
    "and `value_format` mark those that are not JSON), or `binary`, base64.",
)
ISOLATION_LEVEL = ChoiceParameter(
    "isolation_level",
    {"read_committed": 1, "read_uncommitted": 0},
    "`read_committed`: only records below the last stable offset; `read_uncommitted`: all below the high watermark.",
)
# A time may also be a number.
_TIMESTAMP = IntegerParameter("timestamp", TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX, None, "")


def read_query(request: Request, known: Sequence[Parameter] = ()) -> dict[str, int | None]:
    """Return the value of every ``known`` parameter, its default where absent."""
    return parse_query(request.scope["query_string"], known)


def parse_query(query: bytes, known: Sequence[Parameter]) -> dict[str, int | None]:
    """Return the values of ``read_query`` for a query as it was sent."""
    return values_of(query_texts(query, [parameter.name for parameter in known]), known)


def values_of(texts: Mapping[str, str], known: Sequence[Parameter]) -> dict[str, int | None]:
    """Return the values of ``read_query`` for texts by the parameter's name."""
    return {
        parameter.name: parameter.read(texts[parameter.name]) if parameter.name in texts else parameter.default
        for parameter in known
    }


def query_texts(query: bytes, known: Sequence[str]) -> dict[str, str]:
    """Return the parameters in the query, by name: each is ``known``, occurs once, and is not empty."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise ParameterError(f"The query has more than {_FIELDS_MAX} parameters; {_advice(known)}") from None
    texts: dict[str, str] = {}
    for name, text in pairs:
        if name not in known:
            raise ParameterError(f"There is no query parameter {shown(name)} here; {_advice(known, name)}")
        if name in texts:
            raise ParameterError(f"Query parameter {name} is given twice: send it once.")
        if not text:
            raise ParameterError(f"Query parameter {name} has no value: leave it out or give one.")
        texts[name] = text
    return texts


def read_timestamp(text: str, now_ms: int) -> int:
    """Return the query parameter ``timestamp`` in ms since 1970, UTC. Relative times count from ``now_ms``."""
    if _NUMBER.fullmatch(text):
        return _TIMESTAMP.read(text)
    try:
        # A "+" in a query means a space: this accepts an 08:00:00+01:00 that was not escaped.
        return timestamp_ms(_ZONE_AFTER_SPACE.sub(r"\1+\2", text), now_ms)
    except ValueError:
        raise ParameterError(f"Query parameter timestamp cannot be {shown(text)}: send {TIME_FORMS}.") from None


def selection_of(key: str | None, where: str | None) -> Where | None:
    """Return the expression of the parameters ``key`` and ``where``. Raises InvalidWhereError."""
    node = both(None if key is None else key_equals(key), None if where is None else parse_where(where))
    return None if node is None else Where(node)


def required(value: int | None) -> int:
    """Return the value of a parameter that has a default."""
    assert value is not None
    return value


def partition_in_path(request: Request) -> int:
    """Return the partition that the path names. Raises UnknownPartitionError (404) unless it is in plain decimal
    digits.
    """
    return partition_number(request.path_params["partition"])


def partition_number(text: str) -> int:
    """Return the partition that a part of the path names, as ``partition_in_path`` does."""
    if not _PARTITION.fullmatch(text) or int(text) >= 2**31:
        raise UnknownPartitionError(
            f"Partition {shown(text)} not found: a partition is a whole number from 0, written in decimal digits."
        )
    return int(text)


def broker_number(text: str) -> int:
    """Return the id of a broker that a part of the path names. Raises NoSuchResourceError for any other text."""
    if not _PARTITION.fullmatch(text) or int(text) >= 2**31:
        raise NoSuchResourceError(f"Broker {shown(text)} not found: an id is a whole number from 0, in decimal digits.")
    return int(text)


def shown(text: str) -> str:
    """Return a client's text, quoted, and short enough for a message."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


def _advice(known: Sequence[str], name: str = "") -> str:
    if not known:
        return "this resource takes none."
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"what it takes is {', '.join(known)}."
