import json
import socket
from pathlib import Path

from logstore.cluster_processes.kafka_addresses import (
    KafkaAddress,
    is_free,
    kafka_addresses,
    wanted_kafka_addresses,
)
from logstore.cluster_processes.ports import ReservedPorts
from logstore.settings import Settings

LISTENERS, ADVERTISED = "LOGSTORE_KAFKA_LISTENERS", "LOGSTORE_KAFKA_ADVERTISED_LISTENERS"


def test_brokers_have_ports_one_after_the_other():
    settings = Settings(kafka_listeners="127.0.0.1:19092", kafka_advertised_listeners="out.example:29092")
    assert wanted_kafka_addresses(settings, [4, 7]) == {
        4: KafkaAddress("127.0.0.1", 19092, "out.example:29092"),
        7: KafkaAddress("127.0.0.1", 19093, "out.example:29093"),
    }
    chosen = KafkaAddress("::1", 0)
    assert wanted_kafka_addresses(Settings(kafka_listeners="[::1]:0"), [1, 2]) == {1: chosen, 2: chosen}
    assert wanted_kafka_addresses(Settings(kafka_listeners=""), [1]) == {}


def test_a_broker_learns_its_address():
    assert KafkaAddress("::1", 0).environment(7) == {LISTENERS: "[::1]:7"}
    assert KafkaAddress("h", 7, "out.example:29092").environment(7) == {
        LISTENERS: "h:7",
        ADVERTISED: "out.example:29092",
    }


def test_a_port_is_free_unless_somebody_listens():
    with socket.create_server(("127.0.0.1", 0)) as busy, ReservedPorts() as reserved:
        assert not is_free("127.0.0.1", busy.getsockname()[1])
        assert is_free("127.0.0.1", reserved.reserve("127.0.0.1"))


def test_addresses_are_those_that_brokers_announce(tmp_path: Path):
    for broker, told in ((1, {"url": "u", "pid": 1, "kafka": "h:1"}), (2, {"url": "u", "pid": 1}), (3, None)):
        home = tmp_path / "brokers" / str(broker)
        home.mkdir(parents=True)
        if told is not None:
            (home / "endpoint.json").write_text(json.dumps(told))
    assert kafka_addresses(tmp_path, [1, 2, 3, 4]) == ["h:1"]
