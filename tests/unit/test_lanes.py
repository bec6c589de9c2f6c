"""Lanes of tests: a test without a mark runs without processes of its own."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run([sys.executable, "-V"], check=True),
        lambda: os.posix_spawn(sys.executable, [sys.executable, "-V"], {}),
        lambda: os.system("true"),
    ],
    ids=["subprocess", "spawn", "shell"],
)
def test_a_quick_test_that_starts_a_process_learns_which_mark_it_lacks(start) -> None:
    with pytest.raises(AssertionError, match=r"mark it: pytest\.mark\.system"):
        start()


@pytest.mark.system
def test_a_marked_test_may_start_a_process() -> None:
    subprocess.run([sys.executable, "-V"], check=True, capture_output=True)
