"""A cluster whose listeners all use TLS: the command line through each broker, relayed requests and replicas."""

import ssl
from pathlib import Path

import httpx
import pytest

from logstore import Admin, Consumer, Producer
from tests.support.certificates import Certificates
from tests.support.cluster_processes import ClusterProcess
from tests.support.eventually import eventually

pytestmark = [pytest.mark.system, pytest.mark.long]


def test_brokers_replicate_and_relay_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Certificates(tmp_path / "tls")
    keystore = str(made.keystore())
    for name, value in {
        "HTTP_TLS": "true",
        "KAFKA_LISTENERS": "SSL://127.0.0.1:0",
        "SECURITY_INTER_BROKER_PROTOCOL": "SSL",
        "SSL_KEYSTORE_LOCATION": keystore,
        "SSL_TRUSTSTORE_LOCATION": str(made.ca_file),
        "SSL_CLIENT_AUTH": "required",
        "SSL_CAFILE": str(made.ca_file),
        "SSL_CERTFILE": keystore,
    }.items():
        monkeypatch.setenv(f"LOGSTORE_{name}", value)
    start = ("cluster", "start", "--brokers", 2, "--data", tmp_path / "data", "--json")
    with ClusterProcess(tmp_path, *start) as cluster:
        urls = [broker["url"] for broker in cluster.entry["brokers"]]
        assert all(url.startswith("https://") for url in urls)
        with Admin(urls[0]) as admin:
            admin.create_topic("t", partitions=4, replication_factor=2)
        for url in urls:
            with Producer(url) as producer:
                for partition in range(4):
                    producer.send("t", b"x" * 100_000, partition=partition)
        # One broker leads only some of the partitions, and relays the other requests.
        context = ssl.create_default_context(cafile=str(made.ca_file))
        context.load_cert_chain(keystore)
        with httpx.Client(verify=context, timeout=30) as client:
            for partition in range(4):
                sent = client.post(f"{urls[0]}/topics/t/partitions/{partition}", json={"records": [{"value": "y"}]})
                assert sent.status_code == 200, sent.text
        with Consumer(urls[1], auto_offset_reset="earliest", consumer_timeout_ms=30_000) as consumer:
            consumer.subscribe(["t"])
            records = iter(consumer)
            assert sorted(next(records).value for _ in range(12)) == [b'"y"'] * 4 + [b"x" * 100_000] * 8
        with Admin(urls[0]) as admin:
            eventually(lambda: not admin.partition_replicas(state="under-replicated"), "replicas do not follow")
