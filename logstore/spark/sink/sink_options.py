"""Options of the sink, by the names of Spark's Kafka sink; names are case-insensitive.

Producer configurations are Kafka's names with the prefix ``kafka.``. Those that have a meaning here are fields of
``SinkOptions``. Those that would change the job are refused with the reason. The others are about Kafka's own client or
its brokers: they have no effect, and the log lists them.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from logstore.client.producer.options import DEFAULT_MAX_REQUEST_SIZE, RETRIES_MAX
from logstore.errors import InvalidRequestError
from logstore.limits import GIB
from logstore.spark.option_checks import BOOTSTRAP, check_bootstrap, check_names
from logstore.spark.option_values import OptionValues

logger = logging.getLogger(__name__)

#: A part of every ``Idempotency-Key``, which has at most 255 printable ASCII characters.
_APP_ID = re.compile(r"[!-~]{1,180}")

_OPTIONS = (
    *BOOTSTRAP,
    "topic",
    "includeHeaders",
    "txnAppId",
    "txnVersion",
    "kafka.acks",
    "kafka.client.id",
    "kafka.compression.type",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.max.request.size",
    "kafka.request.timeout.ms",
    "kafka.retries",
    "kafka.retry.backoff.max.ms",
    "kafka.retry.backoff.ms",
)
#: Spark's own options, which it also passes to the sink. Under ``spark.databricks.delta.schema.autoMerge.enabled``
#: Spark 4.2 fails in an assertion, unless a write has ``mergeSchema``; a topic has one schema either way.
_SPARKS = ("path", "checkpointLocation", "queryName", "mergeSchema")

_KEY_AND_VALUE = "keys and values are columns, cast them to string or binary"
_PARTITIONER = "keys are hashed as by Kafka's default; column 'partition' names another partition"
#: Refused configurations with the reasons.
_REFUSED = {
    "kafka.key.serializer": _KEY_AND_VALUE,
    "kafka.value.serializer": _KEY_AND_VALUE,
    "kafka.interceptor.classes": "the sink sends columns, there is no Kafka producer in it",
    "kafka.partitioner.class": _PARTITIONER,
    "kafka.partitioner.ignore.keys": _PARTITIONER,
    "kafka.transactional.id": "the sink makes an Idempotency-Key for every request",
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked options of a write. ``topic`` "" means the column's. Times are in milliseconds, sizes in bytes.

    The retry fields have the names that ``client.producer.retries`` reads.
    """

    bootstrap: str
    topic: str = ""
    acks: Literal["all", "1"] = "all"
    client_id: str = "spark"
    codec: str | None = None
    #: If set, a repeated request is stored once.
    idempotent: bool = True
    max_request_size: int = DEFAULT_MAX_REQUEST_SIZE
    request_timeout_ms: int = 30_000
    #: The total time for all tries of a request.
    delivery_timeout_ms: int = 120_000
    retries: int = RETRIES_MAX
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    #: A name and a number that a program gives to a batch write, like Delta's options of these names; "" and 0 if not
    #: given.
    txn_app_id: str = ""
    txn_version: int = 0


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options. Raises InvalidRequestError naming the option and its allowed values."""
    values = OptionValues(options, (*_OPTIONS, *_SPARKS))
    # Kafka's producer options have no effect, or are refused; every other option is known, or refused.
    if ignored := check_names(values, "sink", _OPTIONS, _REFUSED):
        logger.warning("options of Kafka's producer that have no effect here: %s", ", ".join(ignored))
    values.flag("includeHeaders", default=False)
    codec = values.one_of("kafka.compression.type", ("none", "lz4", "zstd"), "none")
    app_id, version = _transaction(values)
    return SinkOptions(
        bootstrap=_bootstrap(values),
        topic=_topic(values),
        acks="1" if values.one_of("kafka.acks", ("all", "-1", "1"), "all") == "1" else "all",
        client_id=values.text("kafka.client.id") or "spark",
        codec=None if codec == "none" else codec,
        idempotent=values.flag("kafka.enable.idempotence", default=True),
        max_request_size=_number(values, "kafka.max.request.size", 1, DEFAULT_MAX_REQUEST_SIZE, GIB),
        request_timeout_ms=_number(values, "kafka.request.timeout.ms", 1, 30_000),
        delivery_timeout_ms=_number(values, "kafka.delivery.timeout.ms", 1, 120_000),
        retries=_number(values, "kafka.retries", 0, RETRIES_MAX),
        retry_backoff_ms=_number(values, "kafka.retry.backoff.ms", 0, 100),
        retry_backoff_max_ms=_number(values, "kafka.retry.backoff.max.ms", 0, 1_000),
        txn_app_id=app_id,
        txn_version=version,
    )


def _number(values: OptionValues, name: str, least: int, default: int, most: int = RETRIES_MAX) -> int:
    number = values.number(name, least)
    if number is not None and number > most:
        raise InvalidRequestError(f"{name} is at most {most}, got '{number}'")
    return default if number is None else number


def _bootstrap(values: OptionValues) -> str:
    addresses = check_bootstrap(values)
    if not addresses:
        raise InvalidRequestError(
            "Option 'bootstrap.servers' (or 'kafka.bootstrap.servers') must be specified: host:port of the store's "
            "HTTP listener, such as 127.0.0.1:8082"
        )
    return ",".join(addresses)


def _topic(values: OptionValues) -> str:
    if "path" in values and "topic" not in values:
        raise InvalidRequestError(
            f"The sink writes to a topic, not to the path '{values.text('path')}': name the topic with the option "
            "topic, and leave the argument of save() or start() out"
        )
    if "topic" in values and not values.text("topic"):
        raise InvalidRequestError("topic is empty: give a topic's name, or leave it out for column 'topic'")
    return values.text("topic")


def _transaction(values: OptionValues) -> tuple[str, int]:
    app_id, version = values.text("txnAppId"), values.number("txnVersion", 0)
    if ("txnAppId" in values) != ("txnVersion" in values):
        raise InvalidRequestError("options txnAppId and txnVersion belong together: give both or neither")
    if "txnAppId" in values and not _APP_ID.fullmatch(app_id):
        raise InvalidRequestError(f"txnAppId is 1 to 180 printable ASCII characters without spaces, got '{app_id}'")
    return app_id, version or 0
