"""Logs and metrics of the store. Owns the set-up of structlog and every Prometheus metric that is counted as events
happen; metrics that are computed at a scrape are in ``ingest_api.store_metrics``. Invariants: metrics are in a separate
registry, with a bounded number of label values: the first ``CLIENT_LABELS_MAX`` names that clients choose and the first
``TOPIC_LABELS_MAX`` topics are counted separately, the rest as ``other`` and ``(other)``; topics are forgotten when
they are deleted. Log lines go to stderr, stdout is for output.
"""

import asyncio
import logging
import re
import sys
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from itertools import accumulate
from typing import Any, Final, Protocol, Self, cast

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

CLIENT_LABELS_MAX: Final = 100
OTHER_CLIENT: Final = "other"
TOPIC_LABELS_MAX: Final = 1_000
#: This is not a legal name.
OTHER_TOPICS: Final = "(other)"
METRICS_CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

# The buckets go from a fast local fsync (0.1 ms) to a request that waits for a roll (30 s).
_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#: The bound for an event that strangers can cause as often as they like.
_LINES_PER_SECOND: Final = 5
_BYTES = tuple(float(4**n) for n in range(5, 14))  # 1 KiB to 64 MiB

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

_topics: set[str] = set()
_clients: set[str] = set()
_labels_lock = threading.Lock()


class CountedTopic(Protocol):
    """A topic whose events are counted until it is ``deleted``."""

    name: str
    deleted: bool


class HttpRequests(Collector):
    """The requests of HTTP that were answered. It belongs to the event loop, so it has no locks: with a Counter and a
    Histogram a request of one record would spend a tenth of its calls on metrics.
    """

    def __init__(self) -> None:
        self._answered: defaultdict[tuple[str, str, str, str], int] = defaultdict(int)
        # For each bucket, the number of requests in it; then the sum of the seconds of all.
        self._seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * (len(_SECONDS) + 2))

    def answered(self, method: str, route: str, status: str, client: str, seconds: float) -> None:
        """Count a request."""
        self._answered[method, route, status, client] += 1
        times = self._seconds[method, route]
        times[bisect_left(_SECONDS, seconds)] += 1
        times[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "logstore_http_requests", "HTTP requests answered.", labels=("method", "route", "status", "client")
        )
        for labels, count in list(self._answered.items()):
            requests.add_metric(labels, count)
        yield requests
        seconds = HistogramMetricFamily(
            "logstore_http_request_seconds",
            "Time from a request's first byte to the end of its response; for a stream of events, to the start of the "
            "response.",
            labels=("method", "route"),
        )
        bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
        for of, (*counts, total) in list(self._seconds.items()):
            seconds.add_metric(of, list(zip(bounds, accumulate(counts), strict=True)), total)
        yield seconds


class _TopicCounter(Counter):
    """A counter whose first label is a topic."""

    def count(self, topic: CountedTopic, amount: float, *labels: str) -> None:
        """Count ``amount``, unless the topic was deleted before its last request ended: its series would come back for
        good.
        """
        if not topic.deleted:
            self.labels(topic.name, *labels).inc(amount)

    def labels(self, *values: object, **named: object) -> Self:
        # A series that exists needs neither the checks nor the lock of ``Counter``.
        if not named and (known := cast("dict[tuple[object, ...], Self]", self._metrics).get(values)) is not None:
            return known
        if values and values[0] not in _topics:
            values = (_label(str(values[0]), _topics, TOPIC_LABELS_MAX, OTHER_TOPICS), *values[1:])
        return super().labels(*values, **named)


def _label(name: str, known: set[str], known_max: int, other: str) -> str:
    """Return ``name`` if it is one of the first ``known_max``, else ``other``."""
    if name in known:
        return name
    with _labels_lock:
        if len(known) < known_max:
            known.add(name)
            return name
    return other


class FewLines:
    """Lines of one event: a few each second, and the number of the others. Strangers must not fill the disk. It is for
    the event loop.
    """

    def __init__(self, write: Callable[..., object], event: str) -> None:
        self._write = write
        self._event = event
        self._second = 0
        self._logged = 0
        self._unnamed = 0

    def add(self, **fields: object) -> None:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._logged = second, 0
        if self._logged >= _LINES_PER_SECOND:
            self._unnamed += 1
            return
        self._write(self._event, **fields, others_before=self._unnamed)
        self._logged += 1
        self._unnamed = 0


REQUESTS: Final = HttpRequests()
REGISTRY.register(REQUESTS)
KAFKA_REQUESTS: Final = Counter(
    "logstore_kafka_requests", "Answered requests of Kafka's protocol.", ("api", "client"), registry=REGISTRY
)
KAFKA_REQUEST_SECONDS: Final = Histogram(
    "logstore_kafka_request_seconds",
    "Time from the last byte of a request of Kafka's protocol to its response, including what it waits for.",
    ("api",),
    buckets=_SECONDS,
    registry=REGISTRY,
)
KAFKA_CONNECTIONS: Final = Gauge(
    "logstore_kafka_connections", "Connections of Kafka's clients; bounded by max.connections.", registry=REGISTRY
)
TLS_CERTIFICATE_EXPIRY: Final = Gauge(
    "logstore_tls_certificate_expiry_timestamp_seconds",
    "When the certificate of ssl.keystore.location expires; 0 without TLS.",
    registry=REGISTRY,
)
TLS_HANDSHAKES_FAILED: Final = Counter(
    "logstore_tls_failed_handshakes",
    "TLS handshakes that failed, by listener (HTTP, KAFKA, PEER); the log has the reasons.",
    ("listener",),
    registry=REGISTRY,
)
THROTTLED: Final = Counter(
    "logstore_throttled_requests",
    "Requests refused with 429, by the bound that was reached: journal, journal_topic, in_flight, idempotency_keys, "
    "event_streams or quota.",
    ("reason",),
    registry=REGISTRY,
)
RELAYED_REQUESTS: Final = Counter(
    "logstore_relayed_requests", "HTTP requests that were forwarded to the broker that answers them.", registry=REGISTRY
)
JOB_TOPICS: Final = Counter(
    "logstore_job_topics",
    "Topics that a job of serve --jobs has changed, or has failed on.",
    ("operation", "outcome"),
    registry=REGISTRY,
)
JOB_SECONDS: Final = Counter(
    "logstore_job_seconds", "Time that a job of serve --jobs has worked.", ("operation",), registry=REGISTRY
)
JOB_LAST_RUN: Final = Gauge(
    "logstore_job_last_run_timestamp_seconds",
    "When a job of serve --jobs last finished all topics that were due, without a failure.",
    ("operation",),
    registry=REGISTRY,
)
JOBS_PROCESS_ENDED: Final = Counter(
    "logstore_jobs_process_ended",
    "How often the process of serve --jobs ended before the store did.",
    registry=REGISTRY,
)
IN_FLIGHT_BYTES: Final = Gauge(
    "logstore_in_flight_bytes",
    "Bytes of request bodies being worked on; bounded by queued.max.request.bytes.",
    registry=REGISTRY,
)
PRODUCED_RECORDS: Final = _TopicCounter("logstore_produced_records", "Records appended.", ("topic",), registry=REGISTRY)
PRODUCED_BYTES: Final = _TopicCounter(
    "logstore_produced_bytes", "Bytes of keys, values and headers appended.", ("topic",), registry=REGISTRY
)
REPLAYED_RECORDS: Final = _TopicCounter(
    "logstore_replayed_records",
    "Records of repeated requests, which were stored before and were not stored again.",
    ("topic",),
    registry=REGISTRY,
)
PRODUCERS_FORGOTTEN: Final = Counter(
    "logstore_producers_forgotten",
    "Idempotent producers that a partition forgot because it had no room for more.",
    registry=REGISTRY,
)
FETCHED_RECORDS: Final = _TopicCounter("logstore_fetched_records", "Records served.", ("topic",), registry=REGISTRY)
FETCHED_BYTES: Final = _TopicCounter(
    "logstore_fetched_bytes", "Bytes of keys, values and headers served.", ("topic",), registry=REGISTRY
)
EVENT_STREAMS: Final = Gauge(
    "logstore_event_streams", "Streams of events that are open; bounded by max.event.streams.", registry=REGISTRY
)
EVENTS_SENT: Final = Counter("logstore_events_sent", "Records sent as events, once for each stream.", registry=REGISTRY)
EVENT_STREAMS_CUT: Final = Counter(
    "logstore_event_streams_cut", "Streams cut because the client took nothing for too long.", registry=REGISTRY
)
JOURNAL_FSYNC_SECONDS: Final = Histogram(
    "logstore_journal_fsync_seconds", "Time of one fdatasync of the journal.", buckets=_SECONDS, registry=REGISTRY
)
JOURNAL_GROUP_BYTES: Final = Histogram(
    "logstore_journal_group_bytes", "Bytes that one fdatasync made durable.", buckets=_BYTES, registry=REGISTRY
)
JOURNAL_RETAINED_BYTES: Final = Gauge(
    "logstore_journal_retained_bytes",
    "Bytes of all journal files on disk, also of files that are no longer needed.",
    registry=REGISTRY,
)
ROLLS: Final = _TopicCounter(
    "logstore_rolls",
    "Rolls, by outcome: committed, refused or failed.",
    ("topic", "outcome"),
    registry=REGISTRY,
)
ROLL_SECONDS: Final = Histogram(
    "logstore_roll_seconds",
    "Time of a roll, up to the durable commit.",
    buckets=_SECONDS,
    registry=REGISTRY,
)
COLUMN_MISFITS: Final = _TopicCounter(
    "logstore_column_misfits",
    "Records that were rolled without columns, because their values did not fit.",
    ("topic",),
    registry=REGISTRY,
)

MERGES: Final = _TopicCounter(
    "logstore_merges",
    "Merges of small segments by the store, by outcome: committed, refused or failed.",
    ("topic", "outcome"),
    registry=REGISTRY,
)
MERGED_SEGMENTS: Final = _TopicCounter(
    "logstore_merged_segments", "Small segments that the store has joined.", ("topic",), registry=REGISTRY
)
MERGED_BYTES: Final = _TopicCounter(
    "logstore_merged_bytes", "Bytes of the segments that the store has joined.", ("topic",), registry=REGISTRY
)
DELETED_FILE_BYTES: Final = _TopicCounter(
    "logstore_deleted_file_bytes",
    "Bytes of files that the store deleted after they had left the table.",
    ("topic",),
    registry=REGISTRY,
)

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")

# They have no local variables, because these hold records.
_PLAIN_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)

_TOPIC_METRICS: Final = (
    PRODUCED_RECORDS,
    PRODUCED_BYTES,
    REPLAYED_RECORDS,
    FETCHED_RECORDS,
    FETCHED_BYTES,
    ROLLS,
    COLUMN_MISFITS,
    MERGES,
    MERGED_SEGMENTS,
    MERGED_BYTES,
    DELETED_FILE_BYTES,
)

#: Fields of the request that is being handled, for every line logged meanwhile.
LOG_FIELDS: Final[ContextVar[Mapping[str, str]]] = ContextVar("log_fields", default={})  # noqa: B039 - never changed


def client_label(client_id: str | None) -> str:
    """Return the label of a client's name: itself for the first ``CLIENT_LABELS_MAX`` names, then ``other``; "" if
    unnamed.
    """
    return _label(client_id, _clients, CLIENT_LABELS_MAX, OTHER_CLIENT) if client_id else ""


def forget_topic(topic: str) -> None:
    """Drop a deleted topic's series."""
    for metric in _TOPIC_METRICS:
        metric.remove_by_labels({"topic": topic})
    _topics.discard(topic)


def render_metrics() -> bytes:
    """Return all counted metrics in Prometheus' text format, of type ``METRICS_CONTENT_TYPE``."""
    return generate_latest(REGISTRY)


def _with_log_fields(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    # One variable has all fields: structlog has one for each, and setting those takes longer than many a request.
    return {**LOG_FIELDS.get(), **event}


def _without_colours(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Remove colours: some libraries (delta-rs) put them into the text of errors."""
    return {name: _plain(value) for name, value in event.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _COLOURS.sub("", value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def configure_logging(level: str = "info", format: str = "console") -> None:
    """Send structlog's and the standard library's events at ``level`` or above to stderr, one line each.

    ``console`` is for people, ``json`` for programs. ``LOG_FIELDS`` (the request id) are on every line. May be called
    again.
    """
    shared: list[structlog.typing.Processor] = [
        _with_log_fields,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor]
    if format == "json":
        last = [_PLAIN_TRACEBACKS, _without_colours, structlog.processors.JSONRenderer()]
    else:
        console = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        last = [structlog.processors.format_exc_info, _without_colours, console]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a module's logger follows a later call
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # The access log repeats the request metrics; Spark's chatter is of interest only when debugging.
    for name in ("uvicorn.access", "py4j"):
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
