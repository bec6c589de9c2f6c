"""Ports for servers that come back at the same address, in benchmarks and in tests."""

import contextlib
import random
import socket
from pathlib import Path

_PORTS_BEGIN = 10_000
#: It must not use the seed of a test: two runs of it may work side by side.
_CHANCE = random.SystemRandom()


def free_port() -> int:
    """Return a free port on loopback, outside the range from which the kernel takes ports."""
    kernels_begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _CHANCE.randrange(_PORTS_BEGIN, kernels_begin)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
