"""The parts of a broker that both ends of its connections to other brokers need: who it is, and its settings."""

from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from logstore.limits import MIB, RECORD_OVERHEAD_BYTES, REQUEST_RECORDS_MAX
from logstore.listening_sockets import SocketBuffers
from logstore.replication.peer_auth import ClusterSecret
from logstore.replication.peer_network import PeerNetwork
from logstore.settings import Settings

#: Both HELLOs and both proofs, together with the connection itself, take no longer.
HANDSHAKE_SECONDS_MAX: Final = 10.0
# A client's request may be small records without end: as a batch each of them has this overhead.
_ROOM_BYTES: Final = REQUEST_RECORDS_MAX * RECORD_OVERHEAD_BYTES + MIB


class LocalBroker(Protocol):
    """The broker of this process as the others know it. Asked at each handshake: each session has another epoch."""

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
    """``docs/configuration.md`` has the settings of these names."""

    secret: ClusterSecret = field(default_factory=lambda: ClusterSecret(None))
    #: ``replica.socket.timeout.ms``
    timeout_s: float = 30.0
    #: The longest message after the handshake. An answer to FETCH may go over its bound by one frame, which has the
    #: records of one request at most.
    message_bytes_max: int = 74 * MIB + _ROOM_BYTES
    #: Of connections that others make.
    accepted_buffers: SocketBuffers = field(default_factory=SocketBuffers)
    #: Of connections that this broker makes.
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
