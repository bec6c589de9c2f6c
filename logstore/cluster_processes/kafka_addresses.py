"""Addresses for Kafka's clients of the brokers of one machine: each has a port of its own."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from logstore.settings import Settings, address_of, host_and_port

_LISTENERS: Final = "LOGSTORE_KAFKA_LISTENERS"
_ADVERTISED: Final = "LOGSTORE_KAFKA_ADVERTISED_LISTENERS"


def kafka_environments(settings: Settings, broker_ids: Sequence[int]) -> dict[int, Mapping[str, str]]:
    """By broker, the variables of ``kafka.listeners``: ports one after the other, from that of ``settings`` on.

    If nobody has set the port, a broker whose port is taken gets a free one: clients learn it from the others.
    """
    if settings.kafka_address is None:
        return {broker_id: {_LISTENERS: ""} for broker_id in broker_ids}
    host, port = settings.kafka_address
    found: dict[int, Mapping[str, str]] = {}
    for at, broker_id in enumerate(broker_ids):
        wanted = port + at if port else 0
        if not settings.is_kafka_wanted and not _is_free(host, wanted):
            wanted = 0
        found[broker_id] = {_LISTENERS: address_of(host, wanted)}
        if settings.kafka_advertised_listeners is not None:
            advertised_host, advertised_port = host_and_port(settings.kafka_advertised_listeners)
            found[broker_id] = {**found[broker_id], _ADVERTISED: address_of(advertised_host, advertised_port + at)}
    return found


def kafka_addresses(data: Path, broker_ids: Sequence[int]) -> list[str]:
    """Where Kafka's clients find the brokers that run on ``data``, as they announce it."""
    found = []
    for broker_id in broker_ids:
        try:
            told = msgspec.json.decode((data / "brokers" / str(broker_id) / "endpoint.json").read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        if isinstance(told, dict) and isinstance(told.get("kafka"), str):
            found.append(told["kafka"])
    return found


def _is_free(host: str, port: int) -> bool:
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
