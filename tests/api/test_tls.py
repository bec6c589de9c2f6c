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

import httpx
import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from cryptography import x509
from kafka import KafkaConsumer, KafkaProducer

from logstore import Admin, Consumer, Producer
from logstore.endpoint_file import read_endpoint
from logstore.errors import NetworkError, SslAuthenticationError
from tests.api.real_server import RealServer
from tests.support.certificates import Certificates, write_secret
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
        "group_initial_rebalance_delay_ms": 0,
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


def test_kafkas_clients_reach_the_store_with_a_certificate(server: RealServer, made: Certificates) -> None:
    client = str(made.keystore("client", "client.example"))
    address, topic = kafka_address(server), "kafka"
    context = ssl.create_default_context(cafile=str(made.ca_file))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
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
    while b"last" not in found:
        found += [message.value() for message in reader.consume(1_000, 1)]
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


def test_the_python_client_reaches_the_store_by_options_and_by_the_environment(
    server: RealServer, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = str(made.keystore("python", "python.example", password="the secret"))
    options = {"ssl_cafile": str(made.ca_file), "ssl_certfile": client, "ssl_password": "the secret"}
    with Producer(server.url, **options) as producer:
        producer.send("python", b"value").result(30)
    with Consumer(server.url, group_id="python", auto_offset_reset="earliest", **options) as consumer:
        consumer.subscribe(["python"])
        assert next(iter(consumer)).value == b"value"
    with pytest.raises(SslAuthenticationError, match=r"certificate is not trusted: .*; give its CA with ssl_cafile"):
        Admin(server.url).status()
    eventually(lambda: "the client does not trust the store's certificate" in server.log_path.read_text())
    monkeypatch.setenv("LOGSTORE_SSL_CAFILE", str(made.ca_file))
    with Admin(server.url) as admin:
        assert admin.status()
    plain = f"http://{server.url.partition('://')[2]}"
    with pytest.raises(NetworkError), Admin(plain, default_api_timeout_ms=0) as admin:
        admin.status()


def test_certificates_are_replaced_under_load_without_an_error(server: RealServer, made: Certificates) -> None:
    """Requests on kept and on new connections go on through a change, a bad pair, and another change."""
    trusted = ssl.create_default_context(cafile=str(made.ca_file))
    stop, failures, answered = threading.Event(), list[object](), [0, 0]

    def ask(number: int, *, keeps: bool) -> None:
        kept: http.client.HTTPSConnection | None = None
        while not stop.is_set():
            try:
                connection = kept or http.client.HTTPSConnection("127.0.0.1", server.port, timeout=30, context=trusted)
                kept = connection if keeps else None
                connection.request("GET", "/health/ready")
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                answered[number] += 1
                if not keeps:
                    connection.close()
            except Exception as error:  # noqa: BLE001 - any failure counts
                failures.append(error)
        if kept is not None:
            kept.close()

    def serial() -> int:
        text = ssl.get_server_certificate(("127.0.0.1", server.port))
        return x509.load_pem_x509_certificate(text.encode()).serial_number

    def expect(line: str) -> None:
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: server.log_path.read_text().count(line) > counts.get(line, 0), line)
        counts[line] = server.log_path.read_text().count(line)

    counts: dict[str, int] = {}
    workers = [threading.Thread(target=ask, args=(number,), kwargs={"keeps": number == 0}) for number in (0, 1)]
    for worker in workers:
        worker.start()
    serials = {serial()}
    for days in (30, 60):
        made.keystore(not_after=datetime.now(UTC) + timedelta(days=days))
        expect("tls.renewed")
        serials.add(serial())
        assert len(serials) == days // 30 + 1
        good = (made.directory / "store.pem").read_bytes()
        other = made.keystore("other").read_bytes()
        key_at = good.index(b"-----BEGIN PRIVATE")
        write_secret(made.directory / "store.pem", good[:key_at] + other[other.index(b"-----BEGIN PRIVATE") :])
        expect("tls.not_renewed")
        assert serial() in serials
    before = list(answered)
    eventually(lambda: all(now > then + 3 for now, then in zip(answered, before, strict=True)))
    stop.set()
    for worker in workers:
        worker.join()
    assert failures == []
    with httpx.Client(verify=trusted) as client:
        metrics = client.get(f"{server.url}/metrics").text
    assert "logstore_tls_certificate_expiry_timestamp_seconds 1" in metrics
