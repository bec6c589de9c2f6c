"""A test that hangs fails with its stacks, and the tests after it run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SECONDS = 15

HANGING = """
import asyncio, time
import pytest, uvloop

def test_in_python():
    time.sleep(120)

def test_in_a_loop_that_handles_no_signals():
    uvloop.run(asyncio.sleep(120))

@pytest.fixture
def hangs_at_its_end():
    yield
    time.sleep(120)

def test_that_fails_and_hangs_at_its_end(hangs_at_its_end):
    raise ValueError

@pytest.mark.timeout(60)
def test_that_may_take_longer():
    time.sleep(20)
"""
LAST_TEARDOWN = """
import asyncio
import pytest, uvloop

@pytest.fixture
def hangs_at_its_end():
    yield
    uvloop.run(asyncio.sleep(120))

def test_that_passes(hangs_at_its_end):
    pass
"""


def run(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--numprocesses", "1", "--timeout", str(SECONDS)]
    command = [sys.executable, "-m", "pytest", *options, str(path)]
    # In continuous integration, pytest repeats each failure in its summary.
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)


def test_tests_that_hang_fail_once_with_their_stacks_and_the_next_ones_run(tmp_path) -> None:
    ended = run(tmp_path / "test_hanging.py", HANGING)
    out, stacks = ended.stdout, ended.stderr
    assert f"Failed: Timeout (>{SECONDS}.0s) from pytest-timeout." in out, out
    assert out.count("test_hanging.py::test_in_a_loop_that_handles_no_signals'\n") == 1, out
    assert out.count("test_hanging.py::test_that_fails_and_hangs_at_its_end'\n") == 1, out
    assert "in test_in_a_loop_that_handles_no_signals" in stacks
    assert "in hangs_at_its_end" in stacks
    assert "4 failed, 1 passed" in out, out


def test_the_teardown_of_the_last_test_is_also_watched(tmp_path) -> None:
    ended = run(tmp_path / "test_last.py", LAST_TEARDOWN)
    assert "in hangs_at_its_end" in ended.stderr
    assert "test_last.py::test_that_passes'\n" in ended.stdout, ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
