"""The address sanitizer and the one for undefined behaviour run the kernel on damaged values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conf.build_hook import compile_library, compiler
from logstore.records.columns.native import SOURCE
from tests.support.server_process import ROOT

pytestmark = pytest.mark.long

_OPTIONS = ("-g", "-O0", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the library, and the sanitizer's library, which is loaded before Python."""
    command = compiler()
    if command is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("sanitized") / "columns.so"
    try:
        compile_library(SOURCE, library, _OPTIONS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the C compiler has no sanitizers: {error.stderr[-200:]!r}")
    name = "libclang_rt.asan-x86_64.so" if "clang" in command[0] else "libasan.so"
    runtime = subprocess.check_output([*command, f"-print-file-name={name}"], text=True, timeout=60).strip()
    return library, runtime


def run(sanitized: tuple[Path, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    library, runtime = sanitized
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        # CPython and Arrow never free some of their memory.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.support.sanitized_columns", str(library), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1700, check=False)


@pytest.mark.timeout(1800)
def test_no_byte_outside_of_the_buffers_is_touched(sanitized: tuple[Path, str]):
    ran = run(sanitized, "fuzz", "1000000")
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert min(map(int, ran.stdout.split())) > 10_000


@pytest.mark.parametrize("kind", ["read", "write"])
def test_the_sanitizer_would_see_it(sanitized: tuple[Path, str], kind: str):
    ran = run(sanitized, kind)
    assert ran.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in ran.stderr
    assert kind.upper() in ran.stderr
