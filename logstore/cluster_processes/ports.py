"""Ports of processes that end and start again, reserved for them.

A reservation is a socket that is bound and does not listen. The kernel gives its port to no other process, and to no
connection that goes out. A process that asks for it with SO_REUSEADDR, as servers do, may listen on it: Linux refuses
that only beside one that listens. While nobody does, connections are refused.
"""

import contextlib
import socket
import time
from typing import Final

#: A process that was just killed still has its port for a moment.
_WAIT_S: Final = 5.0


class ReservedPorts(contextlib.ExitStack):
    """They are free again when the block ends."""

    def reserve(self, host: str, port: int = 0, *, shared: bool = False) -> int:
        """The port; a free one for 0. ``shared``: several processes will listen on it, with SO_REUSEPORT.

        OSError if another process has it, and keeps it for seconds.
        """
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        deadline = time.monotonic() + _WAIT_S
        while True:
            with contextlib.ExitStack() as failing:
                reservation = failing.enter_context(socket.socket(family, kind, protocol))
                reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    # Before SO_REUSEPORT: with it, a port on which others of this user listen would be shared.
                    reservation.bind(address)
                except OSError:
                    if port == 0 or time.monotonic() > deadline:
                        raise
                else:
                    if shared:
                        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    self.enter_context(failing.pop_all())
                    return int(reservation.getsockname()[1])
            time.sleep(0.05)
