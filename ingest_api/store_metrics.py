"""Metrics of topics, partitions, groups and problems, computed at each request for ``/metrics`` and not kept.

Invariants: a deleted topic or group has no series. At most ``SERIES_MAX`` partitions have their own series, and as many
partitions of groups: by name, whole topics (groups) at a time. Each of the next ``SERIES_MAX`` topics (groups) is
summed up as one partition ``(all)``, all others as topic (group) ``(other)``: no topic has such a name. Each other
broker that follows has one series, by its id. The event loop is never held for longer than a few hundred partitions
take.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from consumer_offsets.group_coordinator import GroupCoordinator
from logstore import __version__
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.broker.topics.leaders import PartitionCounts
from logstore.errors import UnknownGroupError
from logstore.log.partition_log import PartitionLog

SERIES_MAX: Final = 1_000
ALL: Final = "(all)"
OTHER: Final = "(other)"

# Other tasks of the event loop have their turn after this many partitions.
_STEP = 200


class _Gauge(NamedTuple):
    """``together`` sums several partitions up as one."""

    name: str
    help: str
    together: Callable[[Iterable[float]], float] = sum


_PARTITION_GAUGES = (
    _Gauge("logstore_partition_log_start_offset", "Records below were deleted."),
    _Gauge("logstore_partition_sealed_offset", "Records below are in the Delta table."),
    _Gauge("logstore_partition_high_watermark", "Records below are acknowledged and can be read."),
    _Gauge("logstore_partition_size_bytes", "Bytes of the Parquet files that the Delta table names."),
    _Gauge("logstore_partition_segments", "Parquet files that the Delta table names."),
    _Gauge("logstore_partition_unsealed_records", "Records not yet in Delta: journal only."),
    _Gauge("logstore_partition_unsealed_bytes", "Bytes of the journal that are not yet in Delta."),
    _Gauge("logstore_partition_unsealed_seconds", "How long the oldest un-sealed record has waited for a roll.", max),
)
_GROUP_GAUGES = (
    _Gauge(
        "logstore_group_lag",
        "Offsets from the group's committed offset, or from the log start if there is none, to the high watermark.",
    ),
)

_FOLLOWER_GAUGES = (
    _Gauge(
        "logstore_replica_lag_records",
        "Records that the follower has yet to fetch, in the partition with the most of them.",
        max,
    ),
    _Gauge("logstore_replica_lag_seconds", "For how long a replica of the follower has been behind.", max),
)

#: Labels, as text, and the values of gauges.
_Row = tuple[str, Sequence[float]]


class Observed(NamedTuple):
    """The numbers of a topic or group are of one moment; different topics and groups may be of different moments."""

    single: Sequence[tuple[str, str, str, float]]
    counters: Sequence[tuple[str, str, float]]
    partitions: Sequence[_Row]
    groups: Sequence[_Row]
    followers: Sequence[_Row]
    problems: Sequence[_Row]


async def observe(context: RequestContext, broker: Broker, groups: GroupCoordinator) -> Observed:
    topics: list[tuple[str, list[_Row]]] = []
    looked_at = 0
    # This is how Kafka counts: each broker what it leads, and the controller what has no leader.
    led, all_of_them, replicas = PartitionCounts(), PartitionCounts(), 0
    lagging: dict[int, Sequence[float]] = {}
    now = broker.clock.monotonic()
    for topic in broker.topics.served.all(context, include_internal=True):
        for state in broker.topics.leaders.partition_states(context, topic):
            all_of_them.add(topic, state)
            replicas += broker.broker_id in state.replicas
            if state.leader == broker.broker_id:
                led.add(topic, state)
        for log in topic.partitions:
            for follower, lag in _replica_lags(log, now):
                lagging[follower] = _together([("", lag), ("", lagging.get(follower, lag))], _FOLLOWER_GAUGES)
        rows = [(_labels(topic=topic.name, partition=log.partition), _numbers(log)) for log in topic.partitions]
        topics.append((topic.name, rows))
        looked_at += len(rows)
        if looked_at >= _STEP:
            looked_at = 0
            await asyncio.sleep(0)
    lags: list[tuple[str, list[_Row]]] = []
    every_log = [log for topic in broker.topics.served.all(context, include_internal=True) for log in topic.partitions]
    elsewhere = await broker.elsewhere.offsets(every_log)
    for group in groups.groups(context):
        with contextlib.suppress(UnknownGroupError):  # The group may be deleted meanwhile.
            found = groups.lag(context, group, elsewhere)
            rows = [(_labels(group=group, topic=lag.topic, partition=lag.partition), (lag.lag,)) for lag in found]
            lags.append((group, rows))
            looked_at += len(rows)
        if looked_at >= _STEP:
            looked_at = 0
            await asyncio.sleep(0)
    problems = broker.topics.problems.all(context)
    is_controller = broker.controller_id == broker.broker_id
    single = (
        ("logstore_active_controller_count", "1 at the broker that elects leaders, else 0.", "", is_controller),
        (
            "logstore_offline_partitions_count",
            "Partitions of the cluster without a leader; the controller reports them, other brokers report 0.",
            "",
            all_of_them.unavailable if is_controller else 0,
        ),
        (
            "logstore_under_replicated_partitions",
            "Partitions led here with fewer replicas in sync than they have.",
            "",
            led.under_replicated,
        ),
        (
            "logstore_under_min_isr_partition_count",
            "Partitions led here with fewer replicas in sync than min.insync.replicas.",
            "",
            led.under_min_isr,
        ),
        ("logstore_partition_count", "Partitions of which this broker has a replica.", "", replicas),
        ("logstore_leader_count", "Partitions that this broker leads.", "", led.partitions),
        ("logstore_build_info", "Always 1; the label is the release.", _labels(version=__version__), 1),
        ("logstore_ready", "1 if appends are taken, else 0.", "", broker.not_ready_reason is None),
        ("logstore_journal_max_bytes", "The setting journal.max.bytes.", "", broker.settings.journal_max_bytes),
        (
            "logstore_journal_needed_bytes",
            "Bytes of journal files that hold something un-sealed; bounded by journal.max.bytes.",
            "",
            broker.journal.needed_bytes,
        ),
        ("logstore_topics", "Topics, including internal ones.", "", len(topics)),
        ("logstore_partitions", "Partitions of all topics.", "", sum(len(rows) for _, rows in topics)),
        ("logstore_groups", "Consumer groups that have committed something.", "", len(lags)),
    )
    counters = (
        (
            "logstore_isr_shrinks_total",
            "How often this leader took replicas out of an ISR.",
            broker.replica_manager.isr_shrinks,
        ),
        (
            "logstore_isr_expands_total",
            "How often this leader took replicas into an ISR.",
            broker.replica_manager.isr_expands,
        ),
    )
    return Observed(
        single,
        counters,
        _bounded(topics, _PARTITION_GAUGES, lambda name: _labels(topic=name, partition=ALL)),
        _bounded(lags, _GROUP_GAUGES, lambda name: _labels(group=name, topic=ALL, partition=ALL)),
        [(_labels(follower=follower), lags) for follower, lags in sorted(lagging.items())],
        [
            (_labels(topic=p.topic, partition="" if p.partition is None else p.partition, state=p.state.value), (1,))
            for p in problems[:SERIES_MAX]
        ],
    )


def render(observed: Observed) -> bytes:
    """Return the numbers in Prometheus' text format. prometheus_client would take ten times as long."""
    problems = (
        _Gauge(
            "logstore_topic_problems", "Topics and partitions that are not served completely; doctor shows the reasons."
        ),
    )
    lines: list[str] = []
    for name, help_text, labels, value in observed.single:
        lines += _family(_Gauge(name, help_text), 0, [(labels, (value,))])
    for name, help_text, value in observed.counters:
        lines += _family(_Gauge(name, help_text), 0, [("", (value,))], "counter")
    for gauges, rows in (
        (_PARTITION_GAUGES, observed.partitions),
        (_GROUP_GAUGES, observed.groups),
        (_FOLLOWER_GAUGES, observed.followers),
        (problems, observed.problems),
    ):
        for at, gauge in enumerate(gauges):
            lines += _family(gauge, at, rows)
    lines.append("")
    return "\n".join(lines).encode()


def _family(gauge: _Gauge, at: int, rows: Iterable[_Row], kind: str = "gauge") -> Iterator[str]:
    name = gauge.name
    yield f"# HELP {name} {gauge.help}"
    yield f"# TYPE {name} {kind}"
    for labels, values in rows:
        yield f"{name}{labels} {values[at]:.16g}"


def _replica_lags(log: PartitionLog, now: float) -> Iterator[tuple[int, Sequence[float]]]:
    """Yield the numbers of ``_FOLLOWER_GAUGES`` for each follower, as the leader counts them. History in the table is
    never fetched, so it is not lag, even for a follower whose position is unknown.
    """
    end, sealed = log.log_end_offset, log.sealed_offset
    for broker_id, follower in log.followers.items():
        yield broker_id, (end - max(follower.position, sealed), follower.behind_s(end, now))


def _numbers(log: PartitionLog) -> Sequence[float]:
    return (
        log.log_start_offset,
        log.sealed_offset,
        log.high_watermark,
        log.segments.size_bytes,
        len(log.segments),
        log.log_end_offset - log.sealed_offset,
        log.unsealed_bytes,
        log.unsealed_ms / 1000,
    )


def _bounded(
    named: Iterable[tuple[str, Sequence[_Row]]], gauges: Sequence[_Gauge], whole: Callable[[str], str]
) -> list[_Row]:
    """Return the rows of topics or groups within the bounds that the module's docstring names."""
    series: list[_Row] = []
    summed: list[_Row] = []
    others: list[_Row] = []
    for name, rows in named:
        if len(series) + len(rows) <= SERIES_MAX:
            series += rows
        elif len(summed) < SERIES_MAX and name != OTHER:  # A group can have any name, also this one.
            summed.append((whole(name), _together(rows, gauges)))
        else:
            others += rows
    series += summed
    if others:
        series.append((whole(OTHER), _together(others, gauges)))
    return series


def _together(rows: Sequence[_Row], gauges: Sequence[_Gauge]) -> Sequence[float]:
    return [gauge.together(values[at] for _, values in rows) for at, gauge in enumerate(gauges)]


def _labels(**labels: object) -> str:
    return "{" + ",".join([f'{name}="{_escaped(str(value))}"' for name, value in labels.items()]) + "}"


def _escaped(text: str) -> str:
    # A group may have any name, and so may a directory that is not served as a topic.
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text
