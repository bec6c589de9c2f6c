"""A run that has tried nothing says so, and has not passed."""

import subprocess
import sys

import pytest

from tests.faults.bench.bench import Report
from tests.faults.bench.torture import is_passed
from tests.faults.fail_points.zygote import ROOT


def test_a_round_in_which_no_fault_struck_has_not_passed(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(1)
    assert not is_passed(report)
    assert capsys.readouterr().out == "NOT RUN: no fault struck in this round\n"
    report.faults["kill"] += 1
    assert is_passed(report)
    report.anomalies.append("A1 acknowledged record is lost")
    assert not is_passed(report)
    assert not capsys.readouterr().out


@pytest.mark.system
@pytest.mark.parametrize(
    ("duration", "code"),
    [pytest.param("0.001", 0, id="one", marks=pytest.mark.long), pytest.param("-1", 1, id="none")],
)
def test_fail_points_say_how_many_faults_struck_and_fail_without_one(duration: str, code: int) -> None:
    command = [sys.executable, "-m", "tests.faults.fail_points", "--seed", "1", "--duration", duration]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = ran.stdout.splitlines()
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert any(line.startswith("no time for ") for line in said)
    if code:
        assert "0 faults struck, 0 failures" in said
        assert said[-1] == "NOT RUN: no fault struck within -1 s; give it more time"
    else:
        assert not any("NOT RUN" in line or line.startswith("0 faults") for line in said)
