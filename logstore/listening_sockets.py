"""The sockets on which a node listens: made here, or taken over from the service manager that holds them.

A socket that a service manager holds (systemd's socket activation, sd_listen_fds(3)) outlives the process: connections
wait in its queue while one store stops and the next one starts on it, and none is refused.
"""

import fcntl
import os
import socket
import struct
import termios
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from logstore.errors import InvalidConfigError

#: The number of connections that wait to be accepted.
BACKLOG: Final = 2048
# The first inherited file descriptor, by sd_listen_fds(3).
_FIRST_INHERITED: Final = 3


@dataclass(frozen=True, slots=True)
class SocketBuffers:
    """Sizes in bytes; -1 is the system's choice, which adapts to each connection."""

    send: int = -1
    receive: int = -1

    def apply(self, to: socket.socket) -> None:
        """Set the sizes on a socket before it connects or listens; accepted connections have the buffers of the
        listening socket.
        """
        for option, size in ((socket.SO_SNDBUF, self.send), (socket.SO_RCVBUF, self.receive)):
            if size != -1:
                to.setsockopt(socket.SOL_SOCKET, option, size)


def listening_socket(
    host: str,
    port: int,
    environment: MutableMapping[str, str] | None = None,
    *,
    buffers: SocketBuffers = SocketBuffers(),
) -> socket.socket:
    """Return the inherited socket if the service manager gave one, else a new one on ``host`` and ``port`` (0: a free
    one).

    It is listening and non-blocking. Raises OSError if the port is taken, and InvalidConfigError for more than one
    inherited socket or one that listens to no TCP port.
    """
    inherited = _inherited(os.environ if environment is None else environment)
    if inherited is None:
        return bound_socket(host, port, buffers)
    buffers.apply(inherited)
    return inherited


def shared_socket(host: str, port: int, buffers: SocketBuffers = SocketBuffers()) -> socket.socket:
    """Return a socket on a port on which other processes of this user also listen: the kernel gives each a part of the
    connections (SO_REUSEPORT). It is listening and non-blocking. Raises OSError if another process has the port for
    itself.
    """
    return bound_socket(host, port, buffers, is_shared=True)


def url_of(listener: socket.socket, host: str, *, is_tls: bool = False) -> str:
    """Return the URL of the server on a socket. ``host`` is as it was configured."""
    return url_on(host, listener.getsockname()[1], is_tls=is_tls)


def url_on(host: str, port: int, *, is_tls: bool = False) -> str:
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def bound_socket(host: str, port: int, buffers: SocketBuffers, *, is_shared: bool = False) -> socket.socket:
    """Return a new socket, listening and non-blocking. Raises OSError if the port is taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        buffers.apply(listener)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        # It listens now, not when the server starts: otherwise a second server could also bind the port and fail only
        # later.
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def bytes_in_kernel(connection: Any) -> int:
    """Return the bytes written to ``connection`` and not acknowledged; 0 if the kernel does not report it."""
    try:
        (size,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    except (OSError, TypeError, ValueError):
        return 0
    return int(size)


def _inherited(environment: MutableMapping[str, str]) -> socket.socket | None:
    """Return the inherited socket, and remove its variables: processes that this one starts inherit no sockets."""
    count, pid = environment.pop("LISTEN_FDS", ""), environment.pop("LISTEN_PID", "")
    environment.pop("LISTEN_FDNAMES", None)
    if not count or pid != str(os.getpid()):
        return None
    if count != "1":
        raise InvalidConfigError(f"the service manager handed over {count} sockets: give one ListenStream.")
    try:
        os.set_inheritable(_FIRST_INHERITED, False)
        listener = socket.socket(fileno=_FIRST_INHERITED)
    except OSError as error:
        raise InvalidConfigError(f"file descriptor {_FIRST_INHERITED} is no socket: {error.strerror}.") from error
    is_tcp = listener.family in {socket.AF_INET, socket.AF_INET6} and listener.type == socket.SOCK_STREAM
    if not is_tcp or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.detach()
        raise InvalidConfigError("the service manager's socket listens to no TCP port: give it a ListenStream=port.")
    listener.setblocking(False)
    return listener
