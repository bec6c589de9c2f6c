"""A run compares us with an earlier commit of ours: whose store each contender starts, and what the two are asked."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.before import beside
from benchmarks.measure import Sample
from benchmarks.run import Case, Peers, Stage
from benchmarks.server import ROOT, BenchmarkError


@dataclass(frozen=True, slots=True)
class Started:
    """A contender that records whose store it would start."""

    name: str
    checkouts: dict[str, Path] = field(compare=False)
    needs: tuple[str, ...] = ()
    sample: Sample = field(default_factory=Sample)

    def start(self, stage: Stage):
        self.checkouts[self.name] = stage.checkout
        return lambda _: self.sample


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    return tmp_path


def test_each_of_ours_has_its_earlier_self_and_nobody_else_is_there(checkout: Path):
    started: dict[str, Path] = {}
    case = Case(
        "c", "", (Started("ours", started), Started("wrk", started, ("wrk",)), Started("x", started, ("kafka",)))
    )
    with ExitStack() as stack:
        for contender in beside(case, checkout).contenders:
            contender.start(Stage(checkout, Peers(), stack))
    assert started == {
        "ours": ROOT,
        "wrk": ROOT,
        "ours before": checkout,
        "wrk before": checkout,
        "ours, counted": ROOT,
        "wrk, counted": ROOT,
        "ours before, counted": checkout,
        "wrk before, counted": checkout,
    }


def test_of_a_store_that_counts_only_its_calls_are_measured(checkout: Path):
    case = beside(Case("c", "", (Started("ours", {}, sample=Sample(records_s=5.0, calls=7.0)),)), checkout)
    with ExitStack() as stack:
        stage = Stage(checkout, Peers(), stack)
        samples = {contender.name: contender.start(stage)(1.0) for contender in case.contenders}
    assert samples["ours"].records_s == samples["ours before"].records_s == 5.0
    assert samples["ours, counted"] == samples["ours before, counted"] == Sample(calls=7.0)


@pytest.mark.parametrize(("name", "bound"), [("produce-json-100", 0.9), ("single-json", 0.85)])
def test_a_tenth_may_be_lost_and_more_of_single_records(checkout: Path, name: str, bound: float):
    targets = beside(Case(name, "", (Started("ours", {}),)), checkout).targets
    (rate,) = [target for target in targets if target.metric == "records_s"]
    assert (rate.of, rate.against, rate.at_least) == ("ours", "ours before", bound)
    for target in targets:
        if target.metric in {"server_cpu_us", "peak_mb"}:
            assert target.at_most == pytest.approx(2 - bound)


def test_a_checkout_without_an_environment_is_refused_with_what_to_do(tmp_path: Path):
    with pytest.raises(BenchmarkError, match=r"has no \.venv: run conf/bootstrap\.sh there"):
        beside(Case("c", "", (Started("ours", {}),)), tmp_path)
