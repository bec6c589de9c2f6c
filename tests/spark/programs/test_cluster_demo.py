"""Every chapter of the demo of a cluster on the first flights, with real brokers and the shared Spark session."""

import io
import os

import pytest
from rich.console import Console

from docs.demo import cluster_story
from docs.demo.cluster_processes import cluster_on
from docs.demo.flights import read_flights
from docs.demo.progress import Steps
from tests.support.cluster_processes import descendants, is_alive
from tests.support.eventually import eventually

pytestmark = pytest.mark.long

FLIGHTS_COUNT = 8_000


def test_every_chapter_agrees_on_some_of_the_flights(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_story, "read_flights", lambda: read_flights().slice(0, FLIGHTS_COUNT))
    monkeypatch.setattr(cluster_story, "FLIGHTS_COUNT", FLIGHTS_COUNT)
    monkeypatch.setattr(cluster_story, "BATCH_RECORDS", 100)
    before = descendants(os.getpid())
    with cluster_on(tmp_path / "data", tmp_path / "cluster.log") as cluster:
        demo = cluster_story.ClusterDemo(Steps(Console(file=io.StringIO())), cluster)
        sent = cluster_story.send_flights(demo)
        assert sent.killed not in cluster.brokers
        cluster_story.read_back(demo, sent)
        cluster_story.read_table_with_spark(demo, sent, spark)
        cluster_story.come_back(demo, sent)
        assert len(cluster.brokers) == 3
        pids = descendants(os.getpid()) - before
    assert demo.checks.agree, demo.checks.rows
    eventually(lambda: not any(is_alive(pid) for pid in pids), "processes are left behind")
