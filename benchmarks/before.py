"""The store beside an earlier commit of itself: stores and clients of two checkouts, in turns."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Sample, Target
from benchmarks.run import Case, Contender, Stage
from benchmarks.server import ROOT, BenchmarkError, Turn

#: Limits for the cost of a change: of the rate, CPU per record, memory and the time of a start.
_LOSS = 0.1
_LOSS_OF_SINGLE_RECORDS = 0.15


@dataclass(frozen=True, slots=True)
class Before:
    """A ``contender`` with the store and client of ``checkout``. ``counted``: its store counts calls, and nothing else
    of it is measured.
    """

    contender: Contender
    checkout: Path
    counted: bool = False

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def needs(self) -> tuple[str, ...]:
        return self.contender.needs

    def start(self, stage: Stage) -> Turn:
        turn = self.contender.start(replace(stage, checkout=self.checkout, counted=self.counted))
        return _calls_of(turn) if self.counted else turn


def _calls_of(turn: Turn) -> Turn:
    return lambda seconds: Sample(calls=turn(seconds).calls)


def beside(case: Case, checkout: Path) -> Case:
    """Return ``case`` without other programs, and with an earlier store beside each of ours.

    Raises BenchmarkError if ``checkout`` has no environment.
    """
    if not (checkout / ".venv/bin/python").exists():
        raise BenchmarkError(f"{checkout} has no .venv: run conf/bootstrap.sh there")
    ours = [contender for contender in case.contenders if set(contender.needs) <= {"wrk"}]
    loss = _LOSS_OF_SINGLE_RECORDS if case.name in {"single-json", "latency-1000"} else _LOSS
    contenders = [Before(_named(contender, _before(contender.name)), checkout) for contender in ours]
    # A store that counts is slow, so each has one of its own.
    counted = [
        Before(_named(contender, f"{name}, counted"), of, counted=True)
        for contender in ours
        for name, of in ((contender.name, ROOT), (_before(contender.name), checkout))
    ]
    targets = [target for contender in ours for target in _targets(contender.name, loss)]
    return replace(case, contenders=(*ours, *contenders, *counted), targets=tuple(targets))


def _before(name: str) -> str:
    return f"{name} before"


def _named(contender: Any, name: str) -> Contender:
    named: Contender = replace(contender, name=name)
    return named


def _targets(name: str, loss: float) -> Iterator[Target]:
    yield Target("records_s", _before(name), name, at_least=1 - loss)
    for metric in ("p99_ms", "ready_s", "server_cpu_us", "client_cpu_us", "peak_mb"):
        yield Target(metric, _before(name), name, at_most=None if metric == "p99_ms" else 1 + loss)
    yield Target("calls", f"{_before(name)}, counted", f"{name}, counted")
