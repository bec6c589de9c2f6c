"""franz-go's own tests of its client (package kgo), compiled unchanged and pointed to the listener.

Tests that need no broker run as well. These are left out:
- TestTxnEtl: transactions, which the store does not have yet.
- TestShareGroup*: share groups (KIP-932), which the store does not have.
- TestSCRAMAuth*: SASL, which the listener does not have yet.
- Test848RegexBrokerResolves: a subscription by a pattern that the broker resolves matches no internal topic here.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.kafka_clients.store_process import KafkaStoreProcess
from tests.support.server_process import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

MODULE = ROOT / "tests/kafka_clients/franz-go"
LEFT_OUT = "TestTxnEtl|TestShareGroup|TestSCRAMAuth|Test848RegexBrokerResolves"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the compiled tests and the directory that they run in, because some read their own sources."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("Go is missing (sudo apt-get install golang-go)")
    home = ROOT / ".cache/franz-go"
    home.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "GOPATH": str(home / "path"),
        "GOCACHE": str(home / "cache"),
        "GOFLAGS": "-mod=readonly -modcacherw",
        "GOTOOLCHAIN": "local",
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [go, *arguments], cwd=MODULE, env=environment, capture_output=True, text=True, timeout=500, check=False
        )
        if done.returncode and "go.mod requires go" in done.stderr:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    program = tmp_path_factory.mktemp("franz-go") / "kgo.test"
    run("test", "-c", "-o", str(program), "github.com/twmb/franz-go/pkg/kgo")
    return program, Path(run("list", "-f", "{{.Dir}}", "github.com/twmb/franz-go/pkg/kgo").strip())


def test_the_tests_of_kgo(package: tuple[Path, Path], tmp_path: Path):
    program, directory = package
    with KafkaStoreProcess(tmp_path / "data") as store:
        done = subprocess.run(
            [str(program), "-test.v", "-test.skip", LEFT_OUT, "-test.timeout", "500s"],
            cwd=directory,
            env={
                **os.environ,
                "KGO_SEEDS": store.bootstrap,
                "KGO_TEST_RF": "1",
                "KGO_TEST_RECORDS": "20000",
                "KGO_LOG_LEVEL": "none",
            },
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
    failed = [line for line in done.stdout.splitlines() if line.lstrip().startswith("--- FAIL")]
    assert not failed, "\n".join([*failed, done.stdout[-3000:]])
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("TestGroupETL", "TestGroupSimple", "TestConsumeRegex", "TestClient_Produce"):
        assert f"--- PASS: {name} " in done.stdout
