"""Every chapter of the demo on the first flights, with a real store and the shared Spark session."""

import io

import pytest
from rich.console import Console

from docs.demo import posting, story
from docs.demo.flights import last_flights, read_flights
from docs.demo.progress import Steps
from docs.demo.reading import read_delta
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

FLIGHTS_COUNT = 8_000


def test_every_chapter_agrees_on_some_of_the_flights(spark, tmp_path, monkeypatch):
    some = read_flights().slice(0, FLIGHTS_COUNT)
    planes = len(last_flights(some))
    monkeypatch.setattr(story, "read_flights", lambda: some)
    monkeypatch.setattr(story, "FLIGHTS_COUNT", FLIGHTS_COUNT)
    monkeypatch.setattr(story, "PLANES_COUNT", planes)
    monkeypatch.setattr(story, "BATCH_RECORDS", 100)
    monkeypatch.setattr(story, "GROUP_BATCH_RECORDS", FLIGHTS_COUNT // 2 + 10)
    monkeypatch.setattr(posting, "CONFIGS", posting.CONFIGS | {"segment.bytes": "65536"})
    output = io.StringIO()
    with ServerProcess(tmp_path / "data") as server:
        demo = story.Demo(Steps(Console(file=output)), server.url, server.data, tmp_path)
        flights, acknowledged = story.load_flights(demo)
        assert len(story.read_back(demo, spark, flights, acknowledged)) > 10
        story.read_as_group(demo, spark, acknowledged)
        story.keep_last_flights(demo, flights)
        story.cut_in_half(demo, acknowledged)
    assert demo.checks.agree, demo.checks.rows
    assert any("in 2 batches" in what for what, _, _ in demo.checks.rows)
    assert "last-flight: compacting" in (tmp_path / "jobs.log").read_text()
    # Compacted history has gaps, and the check reports them.
    left, in_order = read_delta(str(tmp_path / "data/topics/last-flight"))
    assert (left.total, left.dense, in_order) == (planes, False, True)
