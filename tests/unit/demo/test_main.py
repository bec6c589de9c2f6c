"""What the demo says at its end."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from docs.demo.main import _say_what_next

URL = "http://127.0.0.1:8082"


def said(data: Path, running_url: str | None) -> str:
    console = Console(file=io.StringIO(), width=500)
    _say_what_next(console, data, running_url)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(("told", "address"), [({"kafka": "127.0.0.1:19092"}, "127.0.0.1:19092"), ({}, None)])
def test_beside_a_running_store_kafkas_client_is_sent_where_that_one_listens(
    tmp_path: Path, told: dict[str, str], address: str | None
):
    for broker, endpoint in ((0, {"url": "http://127.0.0.1:1", "kafka": "127.0.0.1:2"}), (1, {"url": URL} | told)):
        home = tmp_path / "brokers" / str(broker)
        home.mkdir(parents=True)
        (home / "endpoint.json").write_text(json.dumps(endpoint))
    text = said(tmp_path, URL)
    assert "logstore serve" not in text
    assert ("KafkaConsumer" in text) == (address is not None)
    assert address is None or f'bootstrap_servers="{address}"' in text


def test_a_store_of_the_demos_own_is_started_again_with_the_default_port(tmp_path: Path):
    text = said(tmp_path, None)
    assert f"logstore serve --data {tmp_path}" in text
    assert 'bootstrap_servers="127.0.0.1:9092"' in text
