"""``logstore serve`` with a port for Kafka's clients: announcement, busy ports, other protocols and the stop."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from logstore.client.admin import Admin
from logstore.errors import InvalidRequestError
from tests.support.eventually import eventually
from tests.support.server_process import ROOT, ServerProcess

pytestmark = pytest.mark.system

SERVE = (sys.executable, "-m", "logstore.cli", "serve")


def kafka_address(data: Path) -> str:
    return str(json.loads((data / "brokers/0/endpoint.json").read_bytes())["kafka"])


def make_topic(url: str, name: str, partitions: int) -> None:
    cluster = httpx.get(f"{url}/v3/clusters").json()["data"][0]["cluster_id"]
    body = {"topic_name": name, "partitions_count": partitions}
    httpx.post(f"{url}/v3/clusters/{cluster}/topics", json=body).raise_for_status()


def test_records_of_every_codec_come_in_over_kafkas_protocol_and_go_out_over_http(tmp_path: Path):
    with ServerProcess(tmp_path / "data", environment={"LOGSTORE_KAFKA_LISTENERS": "127.0.0.1:0"}) as server:
        assert server.process.stdout is not None
        address = kafka_address(server.data)
        assert server.process.stdout.readline() == f"Kafka's clients connect to {address}\n"
        make_topic(server.url, "t", 1)
        failures: list[object] = []
        expected = []
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = Producer(
                {"bootstrap.servers": address, "enable.idempotence": True, "compression.type": codec, "linger.ms": 20}
            )
            for number in range(500):
                value = f"{codec} {number} {'x' * (number % 50)}"
                producer.produce("t", value, on_delivery=lambda error, _: error and failures.append(error))
                expected.append(value)
            assert producer.flush(30) == 0
        assert failures == []
        found: list[str] = []
        while len(found) < len(expected):
            page = httpx.get(f"{server.url}/topics/t/partitions/0/records", params={"offset": len(found)})
            found += [record["value"] for record in page.raise_for_status().json()]
        assert found == expected
        # A stopping store does not wait for consumers that wait for records.
        consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "g", "client.id": "waiting", "fetch.wait.max.ms": 240_000}
        )
        consumer.assign([TopicPartition("t", 0, len(expected))])
        polling = threading.Thread(target=consumer.poll, args=(5,))
        polling.start()
        eventually(lambda: 'client="waiting"' in httpx.get(f"{server.url}/metrics").text)
        time.sleep(0.5)  # its fetch is counted when it is answered
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(100) == 0
        polling.join()
        consumer.close()


def test_a_port_that_is_taken_ends_the_start(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        for option, environment in (
            (["--kafka-port", str(port)], {}),
            ([], {"LOGSTORE_KAFKA_LISTENERS": f"127.0.0.1:{port}"}),
        ):
            started = subprocess.run(
                [
                    *SERVE,
                    "--data",
                    str(tmp_path / "a"),
                    "--port",
                    "0",
                    *option,
                ],
                env=os.environ | environment,
                capture_output=True,
                text=True,
                timeout=120,
                cwd=ROOT,
                check=False,
            )
            assert (started.returncode, started.stdout) == (1, "")
            (line,) = started.stderr.splitlines()
            assert line.startswith(f"cannot listen on 127.0.0.1:{port} for Kafka's clients: Address already in use; ")
            assert "--kafka-port 9093; 0 takes a free one" in line
            assert not (tmp_path / "a").exists()


def test_each_port_refuses_the_others_protocol(tmp_path: Path):
    with ServerProcess(tmp_path / "data", environment={"LOGSTORE_KAFKA_LISTENERS": "127.0.0.1:0"}) as server:
        kafka = kafka_address(server.data)
        refused = httpx.get(f"http://{kafka}/topics")
        assert refused.status_code == refused.json()["error_code"] == 400
        with Admin(kafka) as admin, pytest.raises(InvalidRequestError, match="This port speaks Kafka's protocol"):
            admin.topics()
        eventually(lambda: "kafka.connection_ended" in server.log)
        lines = [line for line in server.log.splitlines() if "kafka.connection_ended" in line]
        assert all("The first bytes are those of HTTP; this port speaks Kafka's protocol" in line for line in lines)
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
            assert raw.recv(100).startswith(b"HTTP/1.1 400")
