"""Topics read from other machines: through a Spark Connect server that does not have this package, and on a cluster."""

import json
import shutil
from pathlib import Path

import pytest

from tests.spark.store import Store
from tests.support.server_process import ROOT
from tests.support.spark_cluster import standalone_cluster
from tests.support.spark_connect import connect_server
from tests.support.spark_programs import output_of

pytestmark = pytest.mark.long


def seen_by_client(master: str, store: Store, directory: Path, python_path: Path) -> dict:
    """Return what ``remote_client`` reads of a topic with 20 sealed records and 10 in the tail."""
    topic = store.create(f"seen-{directory.name}")
    store.produce(topic, 0, 0, 20)
    store.roll(topic)
    store.produce(topic, 0, 20, 30)
    script = ROOT / "tests/spark/remote_client.py"
    printed = output_of(script, master, store.url, topic, directory=directory, timeout_s=300, python_path=python_path)
    seen = json.loads(printed)
    (path,) = seen["workers"]
    assert ".zip/logstore/" in path, "the package was sent, and is what workers import"
    assert seen["batch"] == [*range(10, 30)]
    assert seen["headers"] == 6
    assert seen["function"] == [*range(25, 30)]
    assert seen["stream"] == [*range(30)]
    assert json.loads(seen["end_offset"])[topic] == {"0": 30}
    assert seen["json"] == [None]
    assert "bootstrap.servers" in seen["error"]
    assert "Traceback" not in seen["error"]
    return seen


def test_a_session_of_spark_connect_reads_topics(store, tmp_path):
    with connect_server(tmp_path) as remote:
        seen_by_client(remote, store, tmp_path, ROOT)


def test_executors_elsewhere_read_topics_with_the_drivers_package(store, tmp_path):
    """Read on executors with a copy of the driver's package that no other process finds by itself."""
    (tmp_path / "work").mkdir()
    for package in ("logstore", "compaction_jobs", "consumer_offsets"):
        shutil.copytree(ROOT / package, tmp_path / "copy" / package, ignore=shutil.ignore_patterns("__pycache__"))
    with standalone_cluster(tmp_path) as cluster:
        seen = seen_by_client(cluster.master, store, tmp_path / "work", tmp_path / "copy")
    assert seen["driver"].startswith(str(tmp_path / "copy"))
