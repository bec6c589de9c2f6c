"""Measures, goals and results of a run: plain values and arithmetic, no processes.

A ratio is always ours over theirs within one round, when both ran one after the other: a machine that was slower for a
while slowed both down. Reports give the median of a ratio over the rounds, with the lowest and the highest.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn of one contender. None means that it was not measured. A MB is a million bytes.

    ``mb_s`` counts only keys and values. ``server_cpu_us`` and ``client_cpu_us`` are CPU time per record. ``peak_mb``
    is the highest resident size of the server process since its start (VmHWM), ``resident_mb`` that at the end of the
    turn. ``ready_s`` is the time from the start of the process until it is ready, ``live_s`` until its liveness check
    succeeds, ``stop_s`` from SIGTERM to its end. ``joined_s`` is from its start until its replicas are in sync, which
    took ``joined_cpu_s`` of CPU time. ``outage_s`` is from the end of a leader until each partition has acknowledged a
    record. ``longest_ms`` is the longest wait of a request, ``rest_percent`` the share of a core without requests.
    ``leader_cpu_us``, ``follower_cpu_us`` (of one) and ``forwarder_cpu_us`` (of a broker that forwards records) are CPU
    time per record of a cluster's parts. ``calls`` are the server's calls of Python functions per record. ``throttled``
    counts responses with 429, ``errors`` those that a client's
    program saw.
    """

    records_s: float | None = None
    mb_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    ready_s: float | None = None
    live_s: float | None = None
    stop_s: float | None = None
    joined_s: float | None = None
    joined_cpu_s: float | None = None
    outage_s: float | None = None
    longest_ms: float | None = None
    rest_percent: float | None = None
    peak_mb: float | None = None
    resident_mb: float | None = None
    server_cpu_us: float | None = None
    leader_cpu_us: float | None = None
    follower_cpu_us: float | None = None
    forwarder_cpu_us: float | None = None
    client_cpu_us: float | None = None
    calls: float | None = None
    throttled: float | None = None
    errors: float | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    title: str
    digits: int

    def format(self, value: float | None) -> str:
        return "" if value is None else f"{value:,.{self.digits}f}"


METRICS: dict[str, Metric] = {
    "records_s": Metric("records/s", 0),
    "mb_s": Metric("MB/s", 1),
    "p50_ms": Metric("p50 ms", 2),
    "p99_ms": Metric("p99 ms", 2),
    "p999_ms": Metric("p99.9 ms", 2),
    "ready_s": Metric("ready s", 2),
    "live_s": Metric("live s", 2),
    "stop_s": Metric("stop s", 2),
    "joined_s": Metric("in sync s", 2),
    "joined_cpu_s": Metric("CPU s", 2),
    "outage_s": Metric("all acknowledge s", 2),
    "longest_ms": Metric("longest ms", 0),
    "rest_percent": Metric("% of a core at rest", 2),
    "peak_mb": Metric("peak MB", 0),
    "resident_mb": Metric("resident MB", 0),
    "server_cpu_us": Metric("server us/record", 2),
    "leader_cpu_us": Metric("leader us/record", 2),
    "follower_cpu_us": Metric("follower us/record", 2),
    "forwarder_cpu_us": Metric("forwarder us/record", 2),
    "client_cpu_us": Metric("client us/record", 2),
    "calls": Metric("calls/record", 2),
    "throttled": Metric("429", 0),
    "errors": Metric("errors", 0),
}
assert list(METRICS) == [field.name for field in fields(Sample)]


@dataclass(frozen=True, slots=True)
class Target:
    """A goal: ``of`` / ``against`` in ``metric`` (without ``against``: the figure of ``of``) has to be at least or at
    most this value; without a bound it is only reported. Both are names of contenders.
    """

    metric: str
    against: str | None = None
    of: str = "ours"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bound(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:,.4g}"
        return f"<= {self.at_most:,.4g}" if self.at_most is not None else ""

    def reached(self, value: float) -> bool | None:
        """Return True if the value reaches the bound; None without a bound."""
        if self.at_least is not None:
            return value >= self.at_least
        return value <= self.at_most if self.at_most is not None else None


@dataclass(frozen=True, slots=True)
class Finding:
    """A target, and its value in every round that had one."""

    target: Target
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        reached = self.target.reached(self.median)
        return "" if reached is None else "reached" if reached else "short"

    @property
    def text(self) -> str:
        """The text ``1.23 (1.10-1.31)``: the median, the lowest and the highest."""
        numbers = [_short(value) for value in (self.median, min(self.values), max(self.values))]
        return f"{numbers[0]} ({numbers[1]}-{numbers[2]})"


def find(target: Target, samples: Mapping[str, Sequence[Sample]]) -> Finding | None:
    """Compute the target for each round of ``samples`` (by contender); None if no round has both values."""
    own = [getattr(sample, target.metric) for sample in samples.get(target.of, ())]
    if target.against is None:
        values = [value for value in own if value is not None]
    else:
        other = [getattr(sample, target.metric) for sample in samples.get(target.against, ())]
        values = [a / b for a, b in zip(own, other, strict=False) if a is not None and b]
    return Finding(target, tuple(values)) if values else None


def median_sample(samples: Sequence[Sample]) -> Sample:
    """Return each figure's median over the turns."""
    middle = {}
    for name in METRICS:
        values = [value for sample in samples if (value := getattr(sample, name)) is not None]
        middle[name] = statistics.median(values) if values else None
    return Sample(**middle)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
