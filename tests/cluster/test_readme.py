"""The README's chapter of the cluster: its lines, on the cluster that its first line starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster_processes import ClusterProcess, environment
from tests.support.server_process import ROOT

pytestmark = [pytest.mark.system, pytest.mark.long]


def test_the_lines_of_the_readme(tmp_path: Path):
    chapter = (ROOT / "README.md").read_text().partition("## A cluster")[2].partition("\n## ")[0]
    start, lines = re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)
    arguments = start.partition("#")[0].split()
    assert arguments.pop(0) == "logstore"
    with ClusterProcess(tmp_path, *arguments, "--json") as cluster:
        brokers = cluster.entry["brokers"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ran = subprocess.run(
            ["bash", "-euc", lines.replace("4711", str(brokers[-1]["pid"]))],
            cwd=tmp_path,
            env=environment(LOGSTORE_URL=brokers[0]["url"], PATH=path),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "Created topic orders with 4 partitions" in ran.stdout
        assert "replicas" in ran.stdout, ran.stdout
        assert cluster.stop() == 0
