"""Who asks, and by which way: what a listener says of each request to the rooms of the broker. No HTTP in here."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, as Kafka's KafkaPrincipal: ``type`` and ``name`` together are the identity.

    ``mechanism`` is how that was shown (a SASL mechanism's name, "SSL"), "" for not at all. ``expires_at_ms``: the end
    of that (ms since 1970); None: the end of the connection.
    """

    type: str
    name: str
    groups: frozenset[str] = frozenset()
    mechanism: str = ""
    expires_at_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    def __hash__(self) -> int:
        # Enough to tell most of them apart, in a third of the time of all fields.
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What the handshake of a connection agreed on; ``subject`` of the client's certificate, None without one."""

    version: str
    cipher: str
    subject: str | None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request. ``peer`` is the address that it came from, without a port; "" where a listener has none.

    ``client_id`` is what the client calls itself, "" for nothing: a name for logs, no identity.
    """

    request_id: str
    client_id: str
    listener: str
    peer: str
    tls: TlsFacts | None
    principal: Principal


#: Kafka's name for whoever did not say who it is.
ANONYMOUS: Final = Principal("User", "ANONYMOUS")
#: The store's own work: rolls, the topic of committed offsets, recovery.
INTERNAL: Final = RequestContext("", "", "INTERNAL", "", None, Principal("Internal", "logstore"))
