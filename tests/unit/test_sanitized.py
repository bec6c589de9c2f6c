"""The sanitizers of addresses and undefined behaviour run what is compiled from C on the corpora of the fuzz tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conf.build_hook import compile_library, compiler
from logstore.kafka_batches import native as kafka_native
from logstore.kafka_batches import plain_pages
from logstore.records import native as json_native
from tests.support.server_process import ROOT

pytestmark = pytest.mark.long

# This is not -O1, at which GCC 12 leaves out a check if both sanitizers are on.
_OPTIONS = ("-g", "-O0", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
#: The sources, by the program that runs their library.
_SOURCES = {
    "sanitized_codec": kafka_native.SOURCE,
    "sanitized_json": json_native.SOURCE,
    "sanitized_pages": plain_pages.SOURCE,
}


@pytest.fixture(scope="module", params=_SOURCES)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    """Return the program, its library, and the sanitizer's library, which is loaded before Python."""
    command = compiler()
    if command is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("sanitized") / "library.so"
    try:
        compile_library(_SOURCES[request.param], library, _OPTIONS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the C compiler has no sanitizers: {error.stderr[-200:]!r}")
    name = "libclang_rt.asan-x86_64.so" if "clang" in command[0] else "libasan.so"
    runtime = subprocess.check_output([*command, f"-print-file-name={name}"], text=True, timeout=60).strip()
    return request.param, library, runtime


def run(sanitized: tuple[str, Path, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program, library, runtime = sanitized
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        # CPython and Arrow never free some of their memory.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", f"tests.support.{program}", str(library), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)


def test_no_byte_outside_of_the_buffers_is_touched(sanitized: tuple[str, Path, str]):
    ran = run(sanitized, "fuzz")
    assert ran.returncode == 0, ran.stderr[-3_000:]
    taken, refused = map(int, ran.stdout.split())
    assert min(taken, refused) > 1_000


@pytest.mark.parametrize("kind", ["read", "write"])
def test_the_sanitizer_would_see_it(sanitized: tuple[str, Path, str], kind: str):
    ran = run(sanitized, kind)
    assert ran.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in ran.stderr
    assert kind.upper() in ran.stderr
