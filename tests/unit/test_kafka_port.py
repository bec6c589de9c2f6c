"""The port for Kafka's clients and its announcement: a start fails if the port is in use, also the default one."""

import socket
import types
from pathlib import Path

import pytest

from logstore import node
from logstore.settings import Settings


def test_the_default_port_is_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Leave ``kafka.listeners`` unset, and let the default port be one that is in use."""
    monkeypatch.delenv("LOGSTORE_KAFKA_LISTENERS")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        settings = Settings(data=tmp_path / "data", port=0)
        assert settings.kafka_address == ("127.0.0.1", 9092)
        settings.__dict__["kafka_listeners"] = f"127.0.0.1:{port}"
        assert "kafka_listeners" not in settings.model_fields_set
        assert node.serve(settings) == 1
    assert f"cannot listen on 127.0.0.1:{port} for Kafka's clients" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("settings", "advertised", "remark"),
    [
        ({}, "127.0.0.1:4711", ""),
        ({"kafka_listeners": "[::1]:0"}, "[::1]:4711", ""),
        (
            {"host": "0.0.0.0"},
            "127.0.0.1:4711",
            ", from this machine only: --kafka-port 4711 opens it on 0.0.0.0, kafka.listeners on any address",
        ),
        ({"host": "0.0.0.0", "kafka_listeners": "10.0.0.1:0"}, "10.0.0.1:4711", ""),
        (
            {"host": "0.0.0.0", "kafka_listeners": "0.0.0.0:9092"},
            "localhost:9092",
            "; the store listens for them on 0.0.0.0:4711",
        ),
    ],
)
def test_the_address_for_clients_is_announced(monkeypatch, settings, advertised: str, remark: str):
    monkeypatch.delenv("LOGSTORE_KAFKA_LISTENERS")
    listening = types.SimpleNamespace(getsockname=lambda: ("", 4711))
    assert node._kafka_remark(Settings(**settings), advertised, listening) == remark
