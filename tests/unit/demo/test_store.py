"""The demo must find the server that runs, and ignore the files of a killed one. The servers are real."""

import json
from pathlib import Path

import pytest

from docs.demo.flights import DemoError
from docs.demo.posting import PARTITIONS, make_topic
from docs.demo.store import store_of
from logstore.client.admin import Admin
from logstore.endpoint_file import read_endpoint
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

TOPIC = "flights"


def test_a_store_of_its_own_ends_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    data = tmp_path / "data"
    with store_of(data, tmp_path / "server.log") as (url, running):
        assert running is None
        with store_of(data, tmp_path / "second.log") as (found, endpoint):
            assert endpoint is not None
            assert endpoint == read_endpoint(data / "brokers" / "0")
            assert found == endpoint.url == url
        make_topic(url, TOPIC, {})
        make_topic(url, TOPIC, {})  # an earlier demo left it, so it is made again
        with Admin(url) as admin:
            assert len(admin.describe_topic(TOPIC).partitions) == PARTITIONS
    assert not list(data.glob("brokers/*/endpoint.json"))
    with ServerProcess(data) as server, Admin(server.url) as admin:
        assert [topic.topic_name for topic in admin.topics()] == [TOPIC]


def test_the_file_of_a_killed_store_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    data = tmp_path / "data"
    other = ServerProcess(tmp_path / "other")
    killed = ServerProcess(data)
    killed.kill()
    endpoint = data / "brokers/0/endpoint.json"
    assert json.loads(endpoint.read_text())["url"] == killed.url
    # Another store may listen on that port by now.
    endpoint.write_text(json.dumps({"url": other.url, "pid": 1}))
    with other, store_of(data, tmp_path / "server.log") as (url, running):
        assert running is None
        assert url != other.url


def test_a_topic_of_somebody_else_is_left_alone(tmp_path: Path):
    with ServerProcess(tmp_path / "data") as server, Admin(server.url) as admin:
        admin.create_topic(TOPIC, partitions=1)
        produce(server.url, b'{"records":[{"value":{"my":"data"}}]}')
        with pytest.raises(DemoError, match="not from this demo"):
            make_topic(server.url, TOPIC, {})
        assert admin.offsets(TOPIC, 0).end_offset == 1


def test_a_store_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    (tmp_path / "data").write_text("a file")
    with (
        pytest.raises(DemoError, match=r"did not start: .*data.*its log is"),
        store_of(tmp_path / "data", tmp_path / "log"),
    ):
        pass


def produce(url: str, body: bytes) -> None:
    from logstore.client.transport import Transport, topic_path

    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    with Transport(url) as transport:
        transport.request("POST", topic_path(TOPIC), content=body, headers=headers)
