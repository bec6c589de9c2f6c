"""Kafka's listener and the routes with numpy, Arrow and msgspec alone: their tests run in a process without libraries.

Other tests compare the forms with each other; here everything around them uses the form in Python.
"""

import subprocess
import sys

import pytest

from tests.support.server_process import ROOT

LISTENER = (
    "tests/unit/kafka_listener/test_produce.py",
    "tests/unit/kafka_listener/test_consumers.py",
    "tests/unit/broker/test_fetch_batches.py::test_append_times_are_told_as_such_in_history",
)
ROUTES = (
    *(f"tests/api/test_{name}.py" for name in ("produce", "short_requests", "small_requests", "key_format", "errors")),
    *(f"tests/api/test_{name}.py" for name in ("bad_input", "bad_http_inputs", "idempotence", "rest_proxy", "guard")),
    *(
        f"tests/api/test_{name}.py"
        for name in ("record_responses", "golden_answers", "produce_anywhere", "backpressure")
    ),
)


pytestmark = pytest.mark.long


@pytest.mark.parametrize("tests", [LISTENER, ROUTES], ids=["Kafka's listener", "routes"])
def test_records_are_produced_and_read(tests):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.no_native_library", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
