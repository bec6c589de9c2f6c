"""TLS on both listeners of a process, with the clients that people use, and strangers that do something else."""

import http.client
import json
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaConsumer, KafkaProducer

from logstore.endpoint_file import read_endpoint
from tests.api.real_server import RealServer
from tests.support.certificates import Certificates
from tests.support.eventually import eventually

pytestmark = pytest.mark.system


@pytest.fixture(name="made", scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory, made: Certificates) -> Iterator[RealServer]:
    settings = {
        "http_tls": True,
        "kafka_listeners": "SSL://127.0.0.1:0",
        "ssl_keystore_location": str(made.keystore()),
        "ssl_truststore_location": str(made.ca_file),
        "ssl_client_auth": "requested",
        "auto_create_topics_enable": True,
    }
    with RealServer(tmp_path_factory.mktemp("data") / "data", **settings) as server:
        assert server.url.startswith("https://")
        yield server


def kafka_address(server: RealServer) -> str:
    endpoint = read_endpoint(server.data / "brokers" / "0")
    assert endpoint is not None
    assert endpoint.kafka is not None
    return endpoint.kafka


def test_curl_reaches_the_store_by_its_ca(server: RealServer, made: Certificates) -> None:
    def curl(*arguments: str) -> bytes:
        command = ["curl", "-sS", "--max-time", "30", "--cacert", str(made.ca_file), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout

    headers = ("-H", "Content-Type: application/json")
    assert json.loads(curl(f"{server.url}/topics/curl", *headers, "-d", '{"records": [{"value": 1}]}'))["offsets"]
    # A body that is large both ways.
    value = "x" * 900_000
    body = made.directory / "body.json"
    body.write_text(json.dumps({"records": [{"value": value}] * 10}))
    curl(f"{server.url}/topics/large", *headers, "-d", f"@{body}")
    read = json.loads(curl(f"{server.url}/topics/large/partitions/0/records?offset=0&max_bytes=20000000"))
    assert [one["value"] for one in read] == [value] * 10


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_kafkas_clients_reach_the_store_with_a_certificate(
    server: RealServer, made: Certificates, version: ssl.TLSVersion
) -> None:
    client = str(made.keystore(f"client-{version.name}", "client.example"))
    address, topic = kafka_address(server), f"kafka-{version.name}"
    context = ssl.create_default_context(cafile=str(made.ca_file))
    context.maximum_version = version
    context.load_cert_chain(client)
    values = [b"%d" % number * 2_000 for number in range(500)]
    producer = KafkaProducer(bootstrap_servers=address, security_protocol="SSL", ssl_context=context)
    for value in values:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address,
        security_protocol="SSL",
        ssl_context=context,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    assert [next(consumer).value for _ in values] == values
    consumer.close()
    librdkafka = {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(made.ca_file),
        "ssl.certificate.location": client,
        "ssl.key.location": client,
    }
    failures: list[object] = []
    confluent = ConfluentProducer(librdkafka)
    confluent.produce(topic, b"last", on_delivery=lambda error, _: error and failures.append(error))
    assert confluent.flush(30) == 0
    assert failures == []
    reader = ConfluentConsumer({**librdkafka, "group.id": topic, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    found: list[bytes] = []
    eventually(lambda: (message := reader.poll(0.1)) is not None and found.append(message.value()) or b"last" in found)
    reader.close()
    assert found == [*values, b"last"]


@pytest.mark.parametrize("listener", ["HTTP", "KAFKA"])
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "the client speaks plain HTTP: its URL must begin with https://"),
        (b"\x00\x00\x00\x1a\x00\x12\x00\x04" + bytes(22), "the client does not speak TLS"),
    ],
)
def test_a_client_without_tls_is_one_line_in_the_log(
    server: RealServer, listener: str, sent: bytes, reason: str
) -> None:
    port = server.port if listener == "HTTP" else int(kafka_address(server).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(sent)
        while raw.recv(1 << 16):
            pass

    def lines() -> list[str]:
        return [
            line
            for line in server.log_path.read_text().splitlines()
            if "tls.handshake_failed" in line and reason in line and listener in line
        ]

    eventually(lambda: len(lines()) == 1)
    assert "127.0.0.1" in lines()[0]
