"""A run that has tried nothing reports that, and has not passed."""

import subprocess
import sys

import pytest

from tests.faults.bench.bench import Report
from tests.faults.bench.torture import is_passed
from tests.faults.fail_points import __main__ as fail_points
from tests.faults.fail_points.script import ACTS
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


@pytest.mark.long
def test_fail_points_say_how_many_faults_struck() -> None:
    command = [sys.executable, "-m", "tests.faults.fail_points", "--seed", "1", "--duration", "5"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert any(line.startswith("no time for ") for line in said)
    assert not any("NOT RUN" in line or line.startswith("0 faults") for line in said)


@pytest.mark.system
def test_fail_points_of_which_none_struck_have_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run with one act only, because each act is played before the first fault."""
    monkeypatch.setattr(fail_points, "ACTS", {"groups": ACTS["groups"]})
    monkeypatch.setattr(sys, "argv", ["fail_points", "--seed", "1", "--duration", "-1"])
    assert fail_points.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("no time for ") for line in said)
    assert "0 faults struck, 0 failures" in said
    assert said[-1] == "NOT RUN: no fault struck within -1 s; give it more time"
