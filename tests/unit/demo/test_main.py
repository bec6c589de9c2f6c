"""The text that the demo prints at its end."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from docs.demo.main import _say_what_next
from logstore.endpoint_file import Endpoint
from tests.support.extras import distributions

URL = "http://127.0.0.1:8082"


def said(data: Path, running: Endpoint | None) -> str:
    console = Console(file=io.StringIO(), width=500)
    _say_what_next(console, data, running)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("address", ["127.0.0.1:19092", None])
def test_beside_a_running_store_kafkas_client_is_sent_where_that_one_listens(tmp_path: Path, address: str | None):
    text = said(tmp_path, Endpoint(URL, 1, address))
    assert "logstore serve" not in text
    assert ("kcat" in text) == (address is not None)
    assert address is None or f"kcat -b {address} " in text


def test_a_store_of_the_demos_own_is_started_again_with_the_default_port(tmp_path: Path):
    text = said(tmp_path, None)
    assert f"logstore serve --data {tmp_path}" in text
    assert "kcat -b 127.0.0.1:9092 " in text


def test_the_printed_next_steps_need_only_the_demos_packages(tmp_path: Path):
    imported = set(re.findall(r"import (\w+)", said(tmp_path, None)))
    assert imported <= distributions("demo")
