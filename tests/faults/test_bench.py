"""The fault bench in short: every kind of fault once, in an order of the seed's, on a store under load."""

import random
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.bench.bench import Bench, Load
from tests.faults.bench.schedule import KINDS, faults

pytestmark = pytest.mark.system


def test_every_kind_of_fault_under_load(tmp_path: Path) -> None:
    seed = random.randrange(2**31)
    print(f"python -m tests.faults.bench.torture --seed {seed}")
    schedule = list(islice(faults(seed, pace=0.3), len(KINDS)))
    report = Bench(tmp_path, seed, Load()).run(schedule)
    print(report)
    assert not report.anomalies
    assert {fault.kind for fault in schedule} == set(KINDS)
    assert set(KINDS) <= report.faults.keys()
    assert report.acknowledged > 100
    assert report.calls["delta ok"] > 10
    assert report.job_commits["retention", "bounded"] > 0


def test_a_seed_is_a_schedule() -> None:
    assert list(islice(faults(7), 100)) == list(islice(faults(7), 100))
    assert list(islice(faults(7), 100)) != list(islice(faults(8), 100))
