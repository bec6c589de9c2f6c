"""The fault bench on a cluster: a minute of faults, and nothing acknowledged is lost or doubled."""

from pathlib import Path

import pytest

from tests.faults.cluster.bench import run

pytestmark = [pytest.mark.system, pytest.mark.long]

SEED = 18


def test_a_minute_of_faults_on_a_cluster(tmp_path: Path) -> None:
    report = run(tmp_path, SEED, 60)
    assert not report.anomalies, report
    assert report.faults.total() >= 3, report
    assert report.acknowledged > 100, report
