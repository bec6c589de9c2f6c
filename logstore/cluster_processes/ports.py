"""Reserved ports of processes that end and start again.

A reservation is a socket that is bound and does not listen. The kernel gives its port neither to another process nor to
an outgoing connection. A process that asks for the port with SO_REUSEADDR, as servers do, may listen on it: Linux
refuses that only beside a listening socket. While no process listens, connections are refused.
"""

import contextlib
import socket
import time
from typing import Final

#: A process that was just killed still has its port for a moment.
_WAIT_S: Final = 5.0


class ReservedPorts(contextlib.ExitStack):
    """Holds ports until the block ends."""

    def reserve(self, host: str, port: int = 0, *, shared: bool = False) -> int:
        """Reserve a port and return it; 0 chooses a free one. With ``shared`` several processes will listen on it, with
        SO_REUSEPORT. Raises OSError if another process has it and keeps it for seconds.
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
                    # SO_REUSEPORT comes later: with it, bind would share a port on which other processes of this user
                    # listen.
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
