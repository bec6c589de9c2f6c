"""Addresses for Kafka's clients: each broker of this machine has its own port."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logstore.endpoint_file import read_endpoint
from logstore.settings import Settings, address_of

_LISTENERS: Final = "LOGSTORE_KAFKA_LISTENERS"
_ADVERTISED: Final = "LOGSTORE_KAFKA_ADVERTISED_LISTENERS"


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where a broker listens for Kafka's clients (over TLS if ``is_tls``), and the address that it advertises.

    With port 0 a free port is chosen and kept. If another process takes that port while the broker does not run, a free
    one is chosen again; clients learn it from the other brokers.
    """

    host: str
    port: int
    advertised: str | None = None
    is_tls: bool = False

    def environment(self, port: int) -> dict[str, str]:
        told = {} if self.advertised is None else {_ADVERTISED: self.advertised}
        return {_LISTENERS: f"{'SSL://' if self.is_tls else ''}{address_of(self.host, port)}", **told}


#: The settings of a broker without a listener for Kafka's clients.
NO_KAFKA: Final = {_LISTENERS: ""}


def wanted_kafka_addresses(settings: Settings, broker_ids: Sequence[int]) -> dict[int, KafkaAddress]:
    """Return the brokers' addresses: consecutive ports from that of ``settings`` on; empty without a Kafka listener."""
    if settings.kafka_address is None:
        return {}
    host, port = settings.kafka_address
    found = {}
    for at, broker_id in enumerate(broker_ids):
        advertised = None
        if settings.kafka_advertised_listeners is not None:
            advertised_host, advertised_port = settings.kafka_advertised(port)
            advertised = address_of(advertised_host, advertised_port + at)
        found[broker_id] = KafkaAddress(host, port + at if port else 0, advertised, settings.kafka_is_tls)
    return found


def kafka_addresses(data: Path, broker_ids: Sequence[int]) -> list[str]:
    """Return the addresses for Kafka's clients that the brokers on ``data`` announce."""
    endpoints = (read_endpoint(data / "brokers" / str(broker_id)) for broker_id in broker_ids)
    return [one.kafka for one in endpoints if one is not None and one.kafka is not None]


def is_free(host: str, port: int) -> bool:
    """Return True if no process listens on the port; ``ReservedPorts`` do not count."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen()
    except OSError:
        return False
    return True
