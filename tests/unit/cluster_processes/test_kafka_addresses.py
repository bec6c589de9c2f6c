import json
import socket
from pathlib import Path

from logstore.cluster_processes.kafka_addresses import kafka_addresses, kafka_environments
from logstore.settings import Settings

LISTENERS, ADVERTISED = "LOGSTORE_KAFKA_LISTENERS", "LOGSTORE_KAFKA_ADVERTISED_LISTENERS"


def test_brokers_have_ports_one_after_the_other():
    settings = Settings(kafka_listeners="127.0.0.1:19092", kafka_advertised_listeners="out.example:29092")
    assert kafka_environments(settings, [4, 7]) == {
        4: {LISTENERS: "127.0.0.1:19092", ADVERTISED: "out.example:29092"},
        7: {LISTENERS: "127.0.0.1:19093", ADVERTISED: "out.example:29093"},
    }
    assert kafka_environments(Settings(kafka_listeners="[::1]:0"), [1, 2]) == {
        one: {LISTENERS: "[::1]:0"} for one in (1, 2)
    }
    assert kafka_environments(Settings(kafka_listeners=""), [1]) == {1: {LISTENERS: ""}}


def test_a_port_that_nobody_asked_for_and_that_is_taken_is_a_free_one():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = f"127.0.0.1:{busy.getsockname()[1]}"
        wanted = Settings(kafka_listeners=taken)
        assert kafka_environments(wanted, [1]) == {1: {LISTENERS: taken}}
        wanted.model_fields_set.discard("kafka_listeners")  # as if it were the default
        assert kafka_environments(wanted, [1]) == {1: {LISTENERS: "127.0.0.1:0"}}


def test_addresses_are_those_that_brokers_announce(tmp_path: Path):
    for broker, told in ((1, {"url": "u", "kafka": "h:1"}), (2, {"url": "u"}), (3, None)):
        home = tmp_path / "brokers" / str(broker)
        home.mkdir(parents=True)
        if told is not None:
            (home / "endpoint.json").write_text(json.dumps(told))
    assert kafka_addresses(tmp_path, [1, 2, 3, 4]) == ["h:1"]
