"""The context of a request, as a listener passes it to the broker: its principal, and the way it came. No HTTP here."""

import base64
import binascii
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec


class Principal(msgspec.Struct, frozen=True, cache_hash=True):
    """The principal of a request, like Kafka's KafkaPrincipal: ``type`` and ``name`` together are the identity.

    ``mechanism`` names the authentication (a SASL mechanism, "SSL"), "" without one. ``expires_at_ms`` is its end (ms
    since 1970); with None it ends with the connection.
    """

    type: str
    name: str
    groups: frozenset[str] = frozenset()
    mechanism: str = ""
    expires_at_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """The result of a connection's TLS handshake. ``subject`` is of the client's certificate, None without one."""

    version: str
    cipher: str
    subject: str | None


class ConnectionIdentity(NamedTuple):
    """What the handshake of a connection has shown of its client."""

    tls: TlsFacts | None
    principal: Principal


class Forwarding(StrEnum):
    """The permission to forward a request, or a part of it, to the broker that has to answer it."""

    ALLOWED = "allowed"
    #: The client does not want it.
    REFUSED = "refused"
    #: It came from another broker, and must not be forwarded again (C18).
    DONE = "done"
    #: It came from another broker, and is answered by this broker's own requests, which are forwarded once to leaders.
    ANSWERED_HERE = "answered here"


class RequestContext(msgspec.Struct, frozen=True):
    """One request. ``peer`` is the address that it came from, without a port; "" where a listener has none.

    ``client_id`` is the name that the client gives itself for logs, "" for none; it is not an identity. A forwarded
    request has the context that it had at the client's broker, except for ``forwarding``.
    """

    request_id: str
    client_id: str
    listener: str
    peer: str
    tls: TlsFacts | None
    principal: Principal
    forwarding: Forwarding = Forwarding.ALLOWED

    @property
    def is_forwarded(self) -> bool:
        """True if another broker has let the request in; that one charges quotas."""
        return self.forwarding in (Forwarding.DONE, Forwarding.ANSWERED_HERE)

    def answered_here(self) -> "RequestContext":
        """Return the context for this broker's requests to leaders when it answers the request itself.

        A group's coordinator does that for consumer instances, whichever broker their clients have asked.
        """
        forwarding = Forwarding.ANSWERED_HERE if self.is_forwarded else Forwarding.ALLOWED
        return msgspec.structs.replace(self, forwarding=forwarding)

    def encode(self) -> bytes:
        """Encode it for another broker, as base64 of JSON."""
        return base64.b64encode(msgspec.json.encode(self))

    @classmethod
    def decode(cls, encoded: bytes) -> "RequestContext":
        """Decode the context of a request that another broker has forwarded. Raises ValueError for anything else."""
        try:
            context = msgspec.json.decode(base64.b64decode(encoded, validate=True), type=cls)
        except (binascii.Error, msgspec.DecodeError) as error:
            raise ValueError(f"not a request's context: {error}") from error
        return msgspec.structs.replace(context, forwarding=Forwarding.DONE)


#: Kafka's principal for a client that did not authenticate.
ANONYMOUS: Final = Principal("User", "ANONYMOUS")
#: A connection without TLS.
PLAINTEXT: Final = ConnectionIdentity(None, ANONYMOUS)
#: The store's own work: rolls, the topic of committed offsets, recovery.
INTERNAL: Final = RequestContext("", "", "INTERNAL", "", None, Principal("Internal", "logstore"))
