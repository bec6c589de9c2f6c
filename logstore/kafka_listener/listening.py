"""The listener as its connections know it, and their limits."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, Self

from logstore.broker.tls_identity import Identify
from logstore.kafka_listener.store import KafkaStore
from logstore.observability import FewLines
from logstore.settings import Settings


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """``docs/configuration.md`` has the settings. Times are in seconds."""

    request_bytes_max: int
    idle_seconds: float
    request_seconds: float
    answer_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            settings.max_request_size,
            settings.kafka_idle_ms / 1000,
            settings.request_body_timeout_ms / 1000,
            settings.response_timeout_ms / 1000,
        )


class Listener(Protocol):
    """``KafkaListener`` for its connections."""

    store: KafkaStore
    limits: ConnectionLimits
    #: Returns the identity of a connection from its transport.
    identify: Identify
    #: One line for each connection that was ended, except idle ones.
    ended: FewLines

    def new_name(self) -> str:
        """Return a name for a connection that no other one has."""
        ...

    def arrived(self, connection: Any) -> bool:
        """Return whether there is room for the connection; ``gone`` is called in any case."""
        ...

    def gone(self, connection: Any) -> None: ...

    def run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Return a task that is held until it is done."""
        ...
