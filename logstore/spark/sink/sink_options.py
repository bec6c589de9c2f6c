"""Options of the sink, by the names of Spark's Kafka sink; names are case-insensitive.

Producer configurations are ``kafka.`` and Kafka's name. Those that have a meaning here are fields of ``SinkOptions``.
Those that would make the job another one are refused with the reason. The others are about Kafka's own client or its
brokers: they are ignored, and the log says so.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeVar

from logstore.client.addresses import parse_bootstrap
from logstore.client.producer.options import DEFAULT_MAX_REQUEST_SIZE, RETRIES_MAX
from logstore.errors import InvalidRequestError
from logstore.limits import GIB

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A part of every ``Idempotency-Key``, which has at most 255 printable ASCII characters.
_APP_ID = re.compile(r"[!-~]{1,180}")
_INTEGER = re.compile(r"[0-9]{1,18}")

_KEY_AND_VALUE = "is not supported: keys and values are columns, cast them to string or binary"
_NO_SECURITY = "is not supported: the store has no authentication and no TLS of its own; https:// in bootstrap.servers"
_PARTITIONER = "is not supported: keys are hashed as by Kafka's default; column 'partition' names another partition"
#: Refused configurations, and why.
_REFUSED = {
    "key.serializer": _KEY_AND_VALUE,
    "value.serializer": _KEY_AND_VALUE,
    "interceptor.classes": "is not supported: the sink sends columns, there is no Kafka producer in it",
    "partitioner.class": _PARTITIONER,
    "partitioner.ignore.keys": _PARTITIONER,
    "transactional.id": "is not supported: the sink makes an Idempotency-Key for every request",
}
_REFUSED_PREFIXES = ("sasl.", "ssl.", "security.")
#: Spark's own options, which it gives to the sink, too.
_SPARKS = frozenset({"path", "checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked options of a write. ``topic`` "" is the column's. Times are in milliseconds, sizes in bytes.

    The retry fields have the names that ``client.producer.retries`` reads.
    """

    bootstrap: str
    topic: str = ""
    acks: Literal["all", "1"] = "all"
    client_id: str = "spark"
    codec: Literal["lz4", "zstd"] | None = None
    #: Whether a request that comes again is stored once.
    idempotent: bool = True
    max_request_size: int = DEFAULT_MAX_REQUEST_SIZE
    request_timeout_ms: int = 30_000
    #: How long a request is tried in all.
    delivery_timeout_ms: int = 120_000
    retries: int = RETRIES_MAX
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    #: A name and a number that a program gives to a batch write, as Delta's options of these names; "" and 0 without.
    txn_app_id: str = ""
    txn_version: int = 0


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """InvalidRequestError that names the option and the values that it may have."""
    given = {name.lower(): value for name, value in options.items()}
    for name, value in given.items():
        _refuse(name, value)
    read = _Reader(given)
    found = SinkOptions(
        bootstrap=_bootstrap(given),
        topic=_topic(given),
        acks=read.one_of("kafka.acks", {"all": "all", "-1": "all", "1": "1"}, "all"),
        client_id=given.get("kafka.client.id", "spark"),
        codec=read.one_of("kafka.compression.type", {"none": None, "lz4": "lz4", "zstd": "zstd"}, None),
        idempotent=read.one_of("kafka.enable.idempotence", _BOOLEANS, default=True),
        max_request_size=read.integer("kafka.max.request.size", DEFAULT_MAX_REQUEST_SIZE, 1, GIB),
        request_timeout_ms=read.integer("kafka.request.timeout.ms", 30_000, 1),
        delivery_timeout_ms=read.integer("kafka.delivery.timeout.ms", 120_000, 1),
        retries=read.integer("kafka.retries", RETRIES_MAX, 0),
        retry_backoff_ms=read.integer("kafka.retry.backoff.ms", 100, 0),
        retry_backoff_max_ms=read.integer("kafka.retry.backoff.max.ms", 1_000, 0),
        txn_app_id=given.get("txnappid", ""),
        txn_version=read.integer("txnVersion", 0, 0, 2**63 - 1),
    )
    read.one_of("includeHeaders", _BOOLEANS, default=False)
    if ("txnappid" in given) != ("txnversion" in given):
        raise InvalidRequestError("Options txnAppId and txnVersion belong together: give both or neither")
    if "txnappid" in given and not _APP_ID.fullmatch(found.txn_app_id):
        raise InvalidRequestError(
            f"Option txnAppId is {found.txn_app_id!r}: give 1 to 180 printable ASCII characters without spaces"
        )
    _check_names(given, read.known)
    return found


_BOOLEANS = {"true": True, "false": False}


class _Reader:
    """Reads options, and remembers which there are."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self.known = {"bootstrap.servers", "kafka.bootstrap.servers", "topic", "kafka.client.id", "txnappid"}

    def one_of(self, name: str, values: Mapping[str, T], default: T) -> T:
        text = self._text(name)
        if text is None:
            return default
        if text.lower() not in values:
            raise InvalidRequestError(f"Option {name} is {text!r}: give {' or '.join(values)}")
        return values[text.lower()]

    def integer(self, name: str, default: int, least: int, most: int = RETRIES_MAX) -> int:
        text = self._text(name)
        if text is None:
            return default
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise InvalidRequestError(f"Option {name} is {text!r}: give a whole number from {least} to {most}")
        return int(text)

    def _text(self, name: str) -> str | None:
        self.known.add(name.lower())
        text = self._given.get(name.lower())
        return None if text is None else text.strip()


def _refuse(name: str, value: str) -> None:
    kafkas = name.removeprefix("kafka.")
    if kafkas == name or (kafkas == "security.protocol" and value.strip().upper() == "PLAINTEXT"):
        return
    reason = _REFUSED.get(kafkas) or (_NO_SECURITY if kafkas.startswith(_REFUSED_PREFIXES) else "")
    if reason:
        raise InvalidRequestError(f"Kafka option '{kafkas}' {reason}")


def _bootstrap(given: Mapping[str, str]) -> str:
    named = {given[name] for name in ("bootstrap.servers", "kafka.bootstrap.servers") if name in given}
    if not named:
        raise InvalidRequestError(
            "Option 'bootstrap.servers' (or 'kafka.bootstrap.servers') must be specified: host:port of the store's "
            "HTTP port, such as 127.0.0.1:8082"
        )
    if len(named) > 1:
        raise InvalidRequestError(
            "Options bootstrap.servers and kafka.bootstrap.servers are one option and differ: give one of them"
        )
    return ",".join(parse_bootstrap(named.pop()))


def _topic(given: Mapping[str, str]) -> str:
    topic = given.get("topic", "").strip()
    if "topic" in given and not topic:
        raise InvalidRequestError("Option topic is empty: give a topic's name, or leave it out for column 'topic'")
    return topic


def _check_names(given: Mapping[str, str], known: set[str]) -> None:
    """Every option is known, or refused. Kafka's producer options without a meaning here are named in the log."""
    unknown = sorted(given.keys() - known - _SPARKS)
    for name in unknown:
        if not name.startswith("kafka."):
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the sink has {', '.join(sorted(known))}"
            raise InvalidRequestError(f"The sink has no option '{name}': {hint}")
    if unknown:
        logger.warning("options of Kafka's producer that have no effect here: %s", ", ".join(unknown))
