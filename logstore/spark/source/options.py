"""Options of the source, by the names of Spark's Kafka source; names are case-insensitive.

``parse_read_options`` refuses what is wrong both in a batch and in a stream: Spark requests the schema before it is
known which it will be, and errors of the schema appear at analysis. Options that only one of them accepts are refused
later, when it makes its reader: ``check_batch`` belongs to ``BatchReader``, ``check_stream`` to ``StreamReader``.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from logstore.errors import InvalidGroupError, InvalidRequestError
from logstore.names import GROUP_NAME_BYTES_MAX, is_group_name
from logstore.spark.option_checks import BOOTSTRAP, check_bootstrap, check_names
from logstore.spark.option_values import OptionValues
from logstore.spark.source.columns import ALL_COLUMNS, COLUMNS, HEADERS, read_columns
from logstore.spark.source.offset_json import TopicPartition
from logstore.spark.source.offset_options import (
    EARLIEST,
    LATEST,
    Offsets,
    Timestamps,
    check_ends,
    read_position,
)
from logstore.spark.source.subscription import SUBSCRIPTIONS, Subscription, read_subscription

__all__ = [
    "EARLIEST",
    "LATEST",
    "Offsets",
    "ReadOptions",
    "Subscription",
    "Timestamps",
    "TopicPartition",
    "check_batch",
    "check_stream",
    "parse_read_options",
]

log = logging.getLogger(__name__)

Isolation = Literal["read_uncommitted", "read_committed"]
Strategy = Literal["error", "latest"]

#: Defaults in ms.
MAX_TRIGGER_DELAY_MS, POLL_TIMEOUT_MS, RETRY_MS = 900_000, 120_000, 10_000

_ISOLATION = ("isolation", "kafka.isolation.level")
_RETRIES = ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
#: The first one given names this reader in the store's logs and metrics.
_CLIENT_IDS = ("kafka.client.id", "kafka.group.id", "groupIdPrefix")
_ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
_STRATEGIES: tuple[Strategy, ...] = ("error", "latest")
_OPTIONS = (
    *SUBSCRIPTIONS,
    *BOOTSTRAP,
    *_ISOLATION,
    *_RETRIES,
    *_CLIENT_IDS,
    "storage",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "columns",
    "pushFilters",
    "group",
    "kafkaConsumer.pollTimeoutMs",
)
_REFUSED = {
    "kafka.auto.offset.reset": "instead set the source option startingOffsets to 'earliest' or 'latest' to specify "
    "where to start. Structured Streaming manages which offsets are consumed. startingOffsets only applies when a new "
    "streaming query is started: resuming always picks up from where the query left off",
    "kafka.key.deserializer": "keys are given as bytes; deserialize them with DataFrame operations",
    "kafka.value.deserializer": "values are given as bytes; deserialize them with DataFrame operations",
    "kafka.enable.auto.commit": "the option group commits the offsets of completed batches",
    "kafka.interceptor.classes": "interceptors can modify records",
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a read. ``bootstrap`` (a running store) or ``storage`` (a data root) is empty.

    ``starting`` None is the earliest offset in a batch, the latest in a stream; ``ending`` None is the latest.
    """

    subscription: Subscription
    bootstrap: str = ""
    storage: str = ""
    starting: Offsets | Timestamps | None = None
    ending: Offsets | Timestamps | None = None
    starting_timestamp_strategy: Strategy = "error"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    #: Columns of the source, in the order of the rows.
    columns: tuple[str, ...] = COLUMNS
    #: Filters of a batch narrow the read; this is for a DataFrame that is used in one query only.
    push_filters: bool = False
    isolation: Isolation = "read_committed"
    #: The consumer group to which a stream commits its offsets; "" for none.
    group: str = ""
    client_id: str = "spark"
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    #: Seconds that a store that does not respond is asked again.
    retry_seconds: float = RETRY_MS / 1000
    #: How long a task keeps asking a leader that returns no records.
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    #: Lines for the log, about accepted options that do less than a user may expect.
    remarks: tuple[str, ...] = ()


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse and check options. Raises InvalidRequestError or InvalidTopicError naming the option and its values."""
    values = OptionValues(options, _OPTIONS)
    remarks = _remarks(values)
    subscription = read_subscription(values)
    starting, ending = read_position(values, "starting"), read_position(values, "ending")
    check_ends(starting, ending)
    bootstrap, storage = _where(values)
    least, most = values.number("minOffsetsPerTrigger", 1), values.number("maxOffsetsPerTrigger", 1)
    if least is not None and most is not None and least > most:
        raise InvalidRequestError(
            f"The value of minOffsetsPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    delay_ms = values.duration_ms("maxTriggerDelay")
    poll_timeout_ms = values.number("kafkaConsumer.pollTimeoutMs", 1)
    return ReadOptions(
        subscription=subscription,
        bootstrap=bootstrap,
        storage=storage,
        starting=starting,
        ending=ending,
        starting_timestamp_strategy=values.one_of("startingOffsetsByTimestampStrategy", _STRATEGIES, "error"),
        fail_on_data_loss=values.flag("failOnDataLoss", default=True),
        min_partitions=values.number("minPartitions", 1),
        max_records_per_partition=values.number("maxRecordsPerPartition", 1),
        columns=_columns(values),
        push_filters=values.flag("pushFilters", default=False),
        isolation=values.one_of(values.given(_ISOLATION), _ISOLATIONS, "read_committed"),
        group=_group(values, storage),
        client_id=next((values.text(name) for name in _CLIENT_IDS if values.text(name)), "spark"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=MAX_TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        retry_seconds=_retry_seconds(values),
        poll_timeout_ms=POLL_TIMEOUT_MS if poll_timeout_ms is None else poll_timeout_ms,
        remarks=remarks,
    )


def check_batch(options: ReadOptions) -> None:
    """Refuse stream options with InvalidRequestError, or log that they have no effect."""
    if isinstance(options.starting, Offsets):
        if options.starting.every == LATEST:
            raise InvalidRequestError("startingOffsets: starting offset can't be latest for batch queries")
        for (topic, partition), offset in (options.starting.by_partition or {}).items():
            if offset == LATEST:
                raise InvalidRequestError(f"startingOffsets for {topic}-{partition} can't be latest for batch queries")
    if options.group:
        raise InvalidRequestError(
            "option group is for streaming queries: a batch commits no offsets (logstore.spark.group_read does)"
        )
    given = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger is not None,
        "minOffsetsPerTrigger": options.min_offsets_per_trigger is not None,
        "maxTriggerDelay": options.max_trigger_delay_ms != MAX_TRIGGER_DELAY_MS,
    }
    for name, is_given in given.items():
        if is_given:
            log.warning("%s option ignored in batch queries", name)
    _log_remarks(options)


def check_stream(options: ReadOptions) -> None:
    """Raise InvalidRequestError for options that only a batch accepts."""
    if options.ending is not None:
        kind = "offset" if isinstance(options.ending, Offsets) else "timestamp"
        raise InvalidRequestError(f"ending {kind} not valid in streaming queries")
    _log_remarks(options)


def _log_remarks(options: ReadOptions) -> None:
    for remark in options.remarks:
        log.warning("%s", remark)


# ---- options of one subject -----------------------------------------------------------------------------------------


def _remarks(values: OptionValues) -> tuple[str, ...]:
    """Return remarks for the log. Kafka's consumer options have no effect; every other option is known, or refused."""
    ignored, remarks = check_names(values, "source", _OPTIONS, _REFUSED), []
    if ignored:
        remarks.append(f"options of Kafka's consumer that have no effect here: {', '.join(ignored)}")
    if "kafka.group.id" in values:
        remarks.append(
            "option kafka.group.id only names this reader in the store's logs and metrics; the option group commits "
            "the offsets of completed batches of a streaming query"
        )
        if "groupIdPrefix" in values:
            remarks.append("option groupIdPrefix is ignored, because kafka.group.id is given")
    return tuple(remarks)


def _where(values: OptionValues) -> tuple[str, str]:
    """Return the addresses of a store, and a data root: one of them is empty."""
    bootstrap, storage = values.text(values.given(BOOTSTRAP)), values.text("storage")
    if not bootstrap and not storage:
        raise InvalidRequestError(
            "Option 'bootstrap.servers' (or 'kafka.bootstrap.servers') must be specified: host:port of the store's "
            "HTTP listener; or the option 'storage', the store's data root, to read sealed records without a store"
        )
    if bootstrap and storage:
        raise InvalidRequestError(
            f"options {values.given(BOOTSTRAP)} and storage: give a running store or its data root, not both"
        )
    check_bootstrap(values)
    return bootstrap, storage


def _columns(values: OptionValues) -> tuple[str, ...]:
    include_headers = values.flag("includeHeaders", default=False)
    if "columns" not in values:
        return ALL_COLUMNS if include_headers else COLUMNS
    columns = read_columns(values.text("columns"))
    if "includeHeaders" in values and include_headers != (HEADERS in columns):
        raise InvalidRequestError(
            "options columns and includeHeaders say different things: leave includeHeaders out, and name headers among "
            "the columns to have them"
        )
    return columns


def _group(values: OptionValues, storage: str) -> str:
    group = values.text("group")
    if "group" in values and not is_group_name(group):
        raise InvalidGroupError(
            f"option group: {group!r} cannot be a group's name: 1 to {GROUP_NAME_BYTES_MAX} bytes of UTF-8"
        )
    if group and storage:
        raise InvalidRequestError("option group: offsets are committed through a running store: give bootstrap.servers")
    return group


def _retry_seconds(values: OptionValues) -> float:
    """Return the total time, from the number of retries and their interval."""
    if not any(name in values for name in _RETRIES):
        return RETRY_MS / 1000
    retries, interval_ms = (values.number(name, 0) for name in _RETRIES)
    return (3 if retries is None else retries) * (1000 if interval_ms is None else interval_ms) / 1000
