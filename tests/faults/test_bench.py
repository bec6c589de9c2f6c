"""The fault bench in short: every kind of fault once, in an order chosen by the seed, on a store under load."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.bench.bench import TOPICS, Bench, Load, Report
from tests.faults.bench.kafka_producer import IDEMPOTENT, LEADER_ALONE, PLAIN
from tests.faults.bench.schedule import ABRUPT, KINDS, LASTING, Fault, faults

pytestmark = pytest.mark.system


#: The load is small enough for a run with each kind of fault in half a minute.
LITTLE = Load(TOPICS, producers=2, readers=1, pause_s=0.1, job_pause_s=1.0, observed=False)
#: Clients of each kind with Kafka's protocol, and few others.
KAFKAS = replace(LITTLE, producers=1, kafka_producers=(IDEMPOTENT, PLAIN, LEADER_ALONE), kafka_readers=1)


@pytest.mark.long
def test_half_of_the_kinds_of_faults_under_a_little_load(tmp_path: Path) -> None:
    """Strike a random half of the kinds; ``make test-all`` strikes all of them.

    Faults of a meddling writer are left out, because the store takes seconds to notice each.
    """
    kinds = [*random.sample(ABRUPT, len(ABRUPT) // 2), *random.sample(LASTING, len(LASTING) // 2)]
    report = run(tmp_path, kinds, LITTLE, pace=0.1)
    assert set(kinds) <= report.faults.keys()
    assert report.acknowledged >= len(kinds), "one before each fault, at least"


@pytest.mark.long
def test_kafkas_clients_under_a_few_faults(tmp_path: Path) -> None:
    kinds = ("kill", "pause", "disk_full", "fsync_error", "call_error")
    report = run(tmp_path, kinds, KAFKAS, pace=0.1)
    assert set(kinds) <= report.faults.keys()
    assert report.of_kafkas >= len(kinds)


@pytest.mark.long
def test_journals_that_are_lost_in_every_way(tmp_path: Path) -> None:
    """Lose journals under Kafka's clients and a reader of the table; ``test_lost_journals.py`` tests each step."""
    journals = [
        Fault("journal", 0.2, 0.5, {"how": how, "end": end, "then": then})
        for how, end, then in [
            *((how, "kill", "put back") for how in ("lost", "unmounted", "older", "replaced", "cut", "removed")),
            *((how, "terminate", "put back") for how in ("lost", "cut", "removed")),
            ("removed", "terminate", "new journal"),
        ]
    ]
    report = Bench(tmp_path, 7, replace(KAFKAS, observed=True)).run(journals)
    print(report)
    assert not report.anomalies
    assert report.faults == {"journal": len(journals)}


@pytest.mark.long
def test_kafkas_clients_under_every_kind_of_fault(tmp_path: Path) -> None:
    load = Load(producers=2, kafka_producers=(IDEMPOTENT, PLAIN, IDEMPOTENT, LEADER_ALONE), kafka_readers=2)
    report = run(tmp_path, KINDS, load, pace=0.3)
    assert set(KINDS) <= report.faults.keys()
    assert report.of_kafkas >= len(KINDS)


@pytest.mark.long
def test_every_kind_of_fault_under_load(tmp_path: Path) -> None:
    report = run(tmp_path, KINDS, Load(), pace=0.3)
    assert set(KINDS) <= report.faults.keys()
    assert report.acknowledged >= len(KINDS)
    assert report.calls["delta ok"] > 10
    assert report.job_commits["retention", "bounded"] > 0


def run(directory: Path, kinds: Sequence[str], load: Load, *, pace: float) -> Report:
    """Strike each kind once; nothing may be wrong."""
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    schedule = list(islice(faults(seed, kinds, pace=pace), len(kinds)))
    assert {fault.kind for fault in schedule} == set(kinds)
    report = Bench(directory, seed, load).run(schedule)
    print(report)
    assert not report.anomalies
    return report


def test_a_seed_is_a_schedule() -> None:
    assert list(islice(faults(7), 100)) == list(islice(faults(7), 100))
    assert list(islice(faults(7), 100)) != list(islice(faults(8), 100))
