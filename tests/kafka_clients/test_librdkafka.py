"""librdkafka's own test suite, compiled from the source in the crate rdkafka-sys, against the listener.

Tests that need no broker are left to librdkafka. ``LEFT_OUT`` has the reason for each other test that does not run.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.kafka_clients.store_process import KafkaStoreProcess
from tests.support.server_process import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(4800)]

CRATE = ROOT / "tests/kafka_clients/librdkafka"
HOME = ROOT / ".cache/librdkafka"

#: Errors of sockets that concurrent tests have closed for each other, and a flush limited to 15 seconds whatever
#: ``test.timeout.multiplier`` says. A test with one of these errors has to pass when it is run alone.
MIXED_UP: Final = re.compile(
    "Socket operation on non-socket|Invalid response size 0 |Broker transport failure|Failed to flush.*Timed out"
)
LEFT_OUT: Final[Mapping[str, Sequence[str]]] = {
    "transactions, which the store has not yet": ("0055", "0061", "0098", "0103", "0129"),
    "SASL and TLS, which the listener has not yet": ("0097", "0126", "0135", "0142"),
    "ACLs, which the store has not yet": ("0081", "0115", "0119"),
    "Kafka's scripts, which the suite calls": ("0052", "0077", "0092", "0109"),
    "three brokers in racks": ("0101",),
    "topics that are not made by themselves, on a broker of its own": ("0107", "0111"),
    "a lot of time: it measures the performance": ("0038",),
    "times that a busy machine does not keep; both pass alone": ("0084", "0088"),
}
#: More tests than this start; a smaller number means that the suite's own list has shrunk.
RUN_MIN: Final = 70
#: Seconds for the whole suite beside other tests on two cores; alone it takes a third of that.
SUITE_S: Final = 1200


@pytest.fixture(scope="module")
def suite() -> Path:
    """Return the directory of the compiled tests."""
    missing = [tool for tool in ("cargo", "make", "g++") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} is missing (sudo apt-get install cargo make g++)")
    vendor = HOME / "vendor"
    if not (found := list(vendor.glob("rdkafka-sys-*/librdkafka/tests"))):
        _run(["cargo", "vendor", "--quiet", "--locked", "--versioned-dirs", str(vendor)], CRATE)
        found = list(vendor.glob("rdkafka-sys-*/librdkafka/tests"))
    (tests,) = found
    if not (tests / "test-runner").exists():
        jobs = f"-j{os.cpu_count()}"
        without = ["--disable-ssl", "--disable-gssapi", "--disable-curl", "--disable-lz4-ext", "--disable-zstd"]
        _run(["./configure", *without, "--disable-debug-symbols"], tests.parent)
        _run(["make", jobs, "libs"], tests.parent)
        _run(["make", jobs, "test-runner"], tests)
    return tests


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def _run_tests(suite: Path, config: Path, output: Path, parallel: str, only: str = "") -> tuple[str, int | None]:
    """Run the tests and return the runner's output and exit code; None if it does not end in time."""
    returncode = None
    with output.open("wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
        returncode = subprocess.run(
            ["./test-runner", "-L", "-Q", parallel],
            cwd=suite,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": "../src:../src-cpp",
                "RDKAFKA_TEST_CONF": str(config),
                "TEST_KAFKA_VERSION": "4.1.1",
                "TESTS_SKIP": ",".join(number for numbers in LEFT_OUT.values() for number in numbers),
                **({"TESTS": only} if only else {}),
            },
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=SUITE_S,
            check=False,
        ).returncode
    return re.sub(r"\x1b\[[0-9;]*m", "", output.read_text(errors="replace")), returncode


def test_the_suite_passes(suite: Path, tmp_path: Path):
    settings = {"LOGSTORE_AUTO_CREATE_TOPICS_ENABLE": "true", "LOGSTORE_NUM_PARTITIONS": "4"}
    with KafkaStoreProcess(tmp_path / "data", environment=settings) as store:
        config = tmp_path / "test.conf"
        config.write_text(f"bootstrap.servers={store.bootstrap}\nbroker.address.family=v4\ntest.timeout.multiplier=3\n")
        told, returncode = _run_tests(suite, config, tmp_path / "output", "-p4")
        failures = re.findall(r'^### Test "\d{4}[^\n]*\n[^\n]*', told, re.MULTILINE)
        assert all(MIXED_UP.search(text) for text in failures), "\n".join(failures)
        numbers = {text.removeprefix('### Test "')[:4] for text in failures}
        again = {number: _run_tests(suite, config, tmp_path / f"output-{number}", "-p1", number) for number in numbers}
    for text, code in again.values():
        assert code == 0, text[-3000:]
    if again:
        told, returncode = told + "".join(text for text, _ in again.values()), 0
    started = set(re.findall(r"=+ Running test (\w+) =+", told))
    passed = set(re.findall(r"=+ Test (\w+) PASSED =+", told))
    # A test may find out that something is missing that it needs.
    left_out = set(re.findall(r"=+ Test (\w+) SKIPPED =+", told))
    assert started == passed | left_out, f"not ended: {sorted(started - passed - left_out)}"
    assert returncode == 0, told[-2000:]
    assert len(passed) > RUN_MIN
