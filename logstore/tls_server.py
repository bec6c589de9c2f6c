"""A TLS server on a listening socket: it accepts connections, and hands those over whose handshake succeeds.

Each handshake takes the newest context, so new certificates need no new socket, and connections under way keep theirs.
The server of asyncio would do without this module, but it keeps the first context, drops failed handshakes without a
word, and lets strangers hold any number of them. Invariants: a handshake has ``HANDSHAKE_SECONDS_MAX``; with more than
``HANDSHAKES_MAX`` under way the oldest one ends; a failed one is a line in the log that says what to change.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from logstore.listening_sockets import BACKLOG
from logstore.observability import TLS_HANDSHAKES_FAILED, FewLines

if TYPE_CHECKING:  # Without TLS the parser of certificates is not imported.
    from logstore.tls.contexts import Tls

log = structlog.stdlib.get_logger(__name__)

MakeProtocol = Callable[[], asyncio.BaseProtocol]

HANDSHAKE_SECONDS_MAX: Final = 10.0
HANDSHAKES_MAX: Final = 1_000
# Without free file descriptors the server waits this long, as asyncio's does.
_NO_FILES_SECONDS: Final = 1.0

#: What went wrong with a handshake, by OpenSSL's name of the reason.
_REASONS: Final = {
    "HTTP_REQUEST": "the client speaks plain HTTP: its URL must begin with https://",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the client has none of the versions in ssl.enabled.protocols",
    "VERSION_TOO_LOW": "the client has none of the versions in ssl.enabled.protocols",
    "NO_SHARED_CIPHER": "the client has no cipher in common with the store",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate, and ssl.client.auth is required",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the store's certificate: give it the CA's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the store's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the store's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client finds the store's certificate expired",
}


async def serve(
    name: str, listening: socket.socket, make_protocol: MakeProtocol, tls: "Tls | None"
) -> "asyncio.Server | TlsServer":
    """Serve a socket from now on, over TLS unless ``tls`` is None. ``name`` is the listener's in the log."""
    if tls is not None:
        return TlsServer(name, listening, make_protocol, tls)
    return await asyncio.get_running_loop().create_server(make_protocol, sock=listening, backlog=BACKLOG)


class TlsServer:
    """Has the methods of ``asyncio.Server`` that listeners use."""

    def __init__(self, name: str, listening: socket.socket, make_protocol: MakeProtocol, tls: "Tls") -> None:
        self._make_protocol = make_protocol
        self._name = name
        self._tls = tls
        # The caller may close its socket at any moment, but not under a call that waits on it.
        self._given, self._listening = listening, listening.dup()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._failed = FewLines(log.warning, "tls.handshake_failed")
        self._accepting = asyncio.create_task(self._accept())

    def is_serving(self) -> bool:
        return not self._accepting.done()

    def close(self) -> None:
        """Accept no more connections; those whose handshake is done go on."""
        self._given.close()
        self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        with self._listening:
            while True:
                try:
                    connection, address = await loop.sock_accept(self._listening)
                except OSError as error:
                    if error.errno != errno.ECONNABORTED:
                        log.error("tls.cannot_accept", listener=self._name, reason=error.strerror or str(error))
                        await asyncio.sleep(_NO_FILES_SECONDS)
                    continue
                if len(self._handshakes) >= HANDSHAKES_MAX:
                    next(iter(self._handshakes)).cancel()
                handshake = asyncio.create_task(self._shake(connection, address[0]))
                self._handshakes[handshake] = None
                handshake.add_done_callback(self._handshakes.pop)

    async def _shake(self, connection: socket.socket, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol, connection, ssl=self._tls.server, ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX
            )
        except ConnectionResetError:
            pass  # It left before the handshake was done, as checks of a port do.
        except OSError as error:
            TLS_HANDSHAKES_FAILED.labels(self._name).inc()
            self._failed.add(listener=self._name, peer=peer, reason=reason_of(error))


def reason_of(error: OSError) -> str:
    """Return why a handshake failed, and what to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not valid by ssl.truststore.location: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "") or str(error)
    if isinstance(error, ConnectionAbortedError):
        return f"the client's side of it did not come within {HANDSHAKE_SECONDS_MAX:g} s"
    return error.strerror or str(error)
