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
