"""The address sanitizer and the one for undefined behaviour run the codecs in C on damaged batches and pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conf.build_hook import compile_codec, compiler
from logstore.kafka_batches import native, plain_pages
from tests.support.server_process import ROOT

pytestmark = pytest.mark.long

# This is not -O1, at which GCC 12 leaves out a check if both sanitizers are on.
_OPTIONS = ("-g", "-O0", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the directory of the libraries, and the sanitizer's library, which is loaded before Python."""
    command = compiler()
    if command is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("sanitized")
    try:
        for module in (native, plain_pages):
            compile_codec(module.SOURCE, directory / module.LIBRARY.name, _OPTIONS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the C compiler has no sanitizers: {error.stderr[-200:]!r}")
    name = "libclang_rt.asan-x86_64.so" if "clang" in command[0] else "libasan.so"
    runtime = subprocess.check_output([*command, f"-print-file-name={name}"], text=True, timeout=60).strip()
    return directory, runtime


def run(sanitized: tuple[Path, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    directory, runtime = sanitized
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        # CPython and Arrow never free some of their memory.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.support.sanitized_codec", str(directory), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.parametrize("what", ["fuzz", "pages"])
def test_no_byte_outside_of_the_buffers_is_touched(sanitized: tuple[Path, str], what: str):
    ran = run(sanitized, what)
    assert ran.returncode == 0, ran.stderr[-3_000:]
    taken, refused = map(int, ran.stdout.split())
    assert min(taken, refused) > 1_000


@pytest.mark.parametrize("what", ["read", "write", "read a page", "write a page"])
def test_the_sanitizer_would_see_it(sanitized: tuple[Path, str], what: str):
    ran = run(sanitized, what)
    assert ran.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in ran.stderr
    assert what.split(maxsplit=1)[0].upper() in ran.stderr
