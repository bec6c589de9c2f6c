"""The listener with the numpy codec alone: the same tests run in a process that does not have the library.

``tests/unit/kafka_batches`` compares the codecs with each other; here everything around them uses numpy.
"""

import subprocess
import sys

import pytest

from tests.support.server_process import ROOT

TESTS = (
    "tests/unit/kafka_listener/test_produce.py",
    "tests/unit/kafka_listener/test_consumers.py",
    "tests/unit/broker/test_fetch_batches.py::test_append_times_are_marked_in_history",
)


pytestmark = pytest.mark.long


def test_records_are_produced_and_read():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.no_record_library", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *TESTS], cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
