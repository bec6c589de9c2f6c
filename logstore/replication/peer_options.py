"""The parts of a broker that both ends of its connections to others need: its identity, and its settings."""

from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from logstore.limits import MIB, RECORD_OVERHEAD_BYTES, REQUEST_RECORDS_MAX
from logstore.listening_sockets import SocketBuffers
from logstore.replication.peer_auth import ClusterSecret
from logstore.replication.peer_network import PeerNetwork
from logstore.settings import Settings

#: Seconds for the connection, both HELLOs and both proofs together.
HANDSHAKE_SECONDS_MAX: Final = 10.0
# A client's request may consist of small records: in a batch each of them has this overhead.
_ROOM_BYTES: Final = REQUEST_RECORDS_MAX * RECORD_OVERHEAD_BYTES + MIB


class LocalBroker(Protocol):
    """The broker of this process as the others know it. Each handshake reads it, because each session has another
    epoch.
    """

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def broker_epoch(self) -> int:
        """The czxid of the registration; -1 while the broker is not registered."""
        ...


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Settings that ``docs/configuration.md`` describes under their names."""

    secret: ClusterSecret = field(default_factory=lambda: ClusterSecret(None))
    #: ``replica.socket.timeout.ms``, in seconds.
    timeout_s: float = 30.0
    #: The longest message after the handshake. A response to FETCH may exceed its bound by one frame, which has at most
    #: the records of one request.
    message_bytes_max: int = 74 * MIB + _ROOM_BYTES
    #: For connections that others open.
    accepted_buffers: SocketBuffers = field(default_factory=SocketBuffers)
    #: For connections that this broker opens.
    made_buffers: SocketBuffers = field(default_factory=SocketBuffers)
    network: PeerNetwork = field(default_factory=PeerNetwork)

    @classmethod
    def of(cls, settings: Settings, network: PeerNetwork | None = None) -> Self:
        secret = settings.cluster_secret
        return cls(
            secret=ClusterSecret(None if secret is None else secret.get_secret_value()),
            timeout_s=settings.replica_socket_timeout_ms / 1000,
            message_bytes_max=settings.replica_fetch_response_max_bytes + settings.max_request_size + _ROOM_BYTES,
            accepted_buffers=SocketBuffers(settings.socket_send_buffer_bytes, settings.socket_receive_buffer_bytes),
            made_buffers=SocketBuffers(settings.socket_send_buffer_bytes, settings.replica_socket_receive_buffer_bytes),
            network=network or PeerNetwork(),
        )

    @property
    def handshake_s(self) -> float:
        return min(HANDSHAKE_SECONDS_MAX, self.timeout_s)
