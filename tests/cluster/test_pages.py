"""Code blocks of the pages about clusters, run on a cluster started by ``logstore cluster start``."""

import re
from pathlib import Path

import pytest

from tests.support.cluster_processes import SESSION_MS, ClusterProcess
from tests.support.pages import PLANS, Plan, run
from tests.support.server_process import ROOT

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(1200)]


def test_the_cluster_of_the_readme(tmp_path: Path):
    """Start the cluster with the chapter's first line, and kill a broker by its pid as the chapter does."""
    chapter = (ROOT / "README.md").read_text().partition("## A cluster")[2].partition("\n## ")[0]
    start, lines = re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)
    page = tmp_path / "chapter.md"
    page.write_text(f"```sh\n{lines}```\n")
    program, *arguments = start.partition("#")[0].split()
    assert program == "logstore"
    with ClusterProcess(tmp_path, *arguments, "--json") as cluster:
        brokers = cluster.entry["brokers"]
        plan = Plan(printed=("Created topic shipments with 4 partitions", "replicas"))
        run(page, plan, tmp_path, {"4711": str(brokers[-1]["pid"])}, **_environment(brokers))
        assert cluster.stop() == 0


def test_operating_a_cluster(tmp_path: Path):
    with ClusterProcess(tmp_path, "cluster", "start", "--brokers", 4, "--data", "data", "--json") as cluster:
        page = ROOT / "docs/operating-a-cluster.md"
        run(page, PLANS[page.name], tmp_path, {}, **_environment(cluster.entry["brokers"]))
        assert cluster.stop() == 0


def _environment(brokers: list[dict[str, str]]) -> dict[str, str]:
    return {"LOGSTORE_URL": brokers[0]["url"], "LOGSTORE_ZOOKEEPER_SESSION_TIMEOUT_MS": str(SESSION_MS)}
