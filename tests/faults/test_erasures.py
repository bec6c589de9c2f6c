"""Erasures among the faults of the bench: the checker knows the erased records."""

from pathlib import Path

import pytest

from tests.faults.bench.bench import TOPICS, Bench, Load
from tests.faults.bench.schedule import Fault

pytestmark = pytest.mark.system

LITTLE = Load(TOPICS[:3], producers=2, readers=1, pause_s=0.1, job_pause_s=1.0)


def erase(which: float, **settings: object) -> Fault:
    return Fault("erase", 0.1, 0.1, {"which": which, "partition": 0.5, "restart": None, "point": None, **settings})


@pytest.mark.long
def test_erasures_and_a_kill_under_a_little_load(tmp_path: Path) -> None:
    report = Bench(tmp_path, 7, LITTLE).run([erase(0.0), erase(0.5, point="erase.committed")])
    print(report)
    assert not report.anomalies
    assert report.faults == {"erase": 2}


@pytest.mark.long
def test_erasures_among_other_faults(tmp_path: Path) -> None:
    points = ["erase.rolled", "erase.written", "erase.pending", "erase.journal", "erase.deleted", "erase.swept"]
    others = [Fault("power_cut", 0.1, 0.1, {"seed": n, "strict": bool(n % 2)}) for n in range(len(points))]
    faults = [
        fault
        for n, (point, cut) in enumerate(zip(points, others, strict=True))
        for fault in (erase(n / 6, point=point), cut, Fault("overwrite", 0, 0.1, {"which": n / 6}))
    ]
    report = Bench(tmp_path, 8, LITTLE).run(faults)
    print(report)
    assert not report.anomalies
