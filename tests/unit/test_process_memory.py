"""The tests run in other processes, because the settings count only before pyarrow is imported."""

import os
import subprocess
import sys

import pyarrow as pa
import pytest

pytestmark = pytest.mark.system

_PROCESS = """
from logstore.process_memory import tune_allocators
tune_allocators()
import pyarrow as pa
print(pa.default_memory_pool().backend_name)
"""

_WITHOUT_PANDAS = """
import importlib.util
from logstore.process_memory import hide_pandas
hide_pandas()
import pyarrow as pa
assert pa.chunked_array([pa.array([1, None])]).fill_null(0).to_numpy().tolist() == [1, 0]
assert importlib.util.find_spec("pandas") is None
try:
    import pandas
except ModuleNotFoundError:
    print("hidden")
"""


def _allocator(environment: dict[str, str]) -> str:
    inherited = {name: text for name, text in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS], env={**inherited, **environment}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="this pyarrow has no jemalloc")
def test_arrow_takes_its_memory_from_jemalloc():
    assert _allocator({}) == "jemalloc"


def test_an_allocator_that_was_asked_for_stays():
    assert _allocator({"ARROW_DEFAULT_MEMORY_POOL": "system"}) == "system"


def test_a_process_that_hides_pandas_runs_as_where_it_is_not_installed():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_PANDAS], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("hidden\n", "")
