"""The pages with Spark run unchanged, each in one script with its own session and its own store."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import QUICK
from tests.support.pages import PAGES, PLANS, blocks, run_beside_a_store
from tests.support.server_process import ROOT, ServerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name in PLANS and PLANS[page.name].spark], ids=lambda page: page.name
)
def test_the_blocks_of_the_page_run(page: Path, tmp_path: Path):
    settings = tmp_path / "spark"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in QUICK.items()))
    run_beside_a_store(page, tmp_path, SPARK_CONF_DIR=str(settings), LOGSTORE_SPARK_LOG=str(tmp_path / "spark.log"))


def test_ctrl_c_ends_the_consumer_of_the_readme_silently(tmp_path: Path):
    (block,) = (block.code for block in blocks(ROOT / "README.md") if "logstore.Consumer(" in block.code)
    with ServerProcess(tmp_path / "data") as server:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "LOGSTORE_URL": server.url}
        logstore = [sys.executable, "-m", "logstore.cli"]
        subprocess.run([*logstore, "topic", "create", "events"], env=environment, check=True)
        subprocess.run([*logstore, "produce", "events"], input=b"one\n", env=environment, check=True)
        block = re.sub(r"127\.0\.0\.1:8082", server.url, block)
        with subprocess.Popen(
            [sys.executable, "-uc", block], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running:
            assert running.stdout is not None
            assert "one" in running.stdout.readline()
            running.send_signal(signal.SIGINT)
            _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")
