#!/usr/bin/env bash
# asyncio leaves Nagle's algorithm on for a TCP socket that the program made itself, on both ends.
#
# Guessed: "TCP_NODELAY is set by default for all TCP connections" (asyncio's documentation, since Python 3.6). So a small message right
#          after another one is sent at once, whether the program or asyncio made the socket.
# Happens: asyncio sets it only if `sock.proto == socket.IPPROTO_TCP`. `socket.socket(AF_INET, SOCK_STREAM)` has proto 0, and so has each
#          connection that such a listening socket accepts. With `sock=` given to open_connection or start_server the option stays off. The same call with
#          `host=` and `port=` sets it, because getaddrinfo returns the proto.
# Beside:  uvloop sets the option in all cases.
#
# A second small write then waits for the acknowledgement of the first one, which the peer delays by up to 40 ms on Linux. This affects protocols
# that write a header and then a body, and TLS. Make such a socket with `proto=socket.IPPROTO_TCP`, or set TCP_NODELAY.
#
#   findings/nagle_of_asyncio_sockets.sh
#
# Exit: 0 as stated, 1 the behaviour changed, 2 not tried (Python is missing, or the installation failed).
# Needs bash, coreutils, Python >= 3.10 with venv. Installs into a temporary directory that it removes.
set -euo pipefail

readonly UVLOOP=0.22.1

not_tried() {
    echo "not tried: $*" >&2
    exit 2
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 2' INT TERM HUP

command -v python3 >/dev/null || not_tried "python3 is missing"
command -v timeout >/dev/null || not_tried "timeout is missing"
unset PYTHONPATH

cat >"$work/nagle.py" <<'PYTHON'
"""Prints TCP_NODELAY of both ends of connections on loopback. Exit: 0 as stated, 1 the behaviour changed."""

import asyncio
import platform
import socket
import sys

import uvloop


def tcp_socket(proto):
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, proto)


def nodelay(writer):
    return bool(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


async def both_ends(proto):
    """Return both options for sockets that the program made; with None asyncio makes them from host and port."""
    accepted = asyncio.get_running_loop().create_future()

    async def serve(_, writer):
        accepted.set_result(nodelay(writer))
        writer.close()

    if proto is None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
    else:
        listening = tcp_socket(proto)
        listening.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(serve, sock=listening)
    where = server.sockets[0].getsockname()[:2]
    if proto is None:
        _, writer = await asyncio.open_connection(*where)
    else:
        connecting = tcp_socket(proto)
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, where)
        _, writer = await asyncio.open_connection(sock=connecting)
    found = nodelay(writer), await accepted
    writer.close()
    server.close()
    return found


CASES = {"host and port": None, "socket.socket()": 0, "socket.socket(proto=IPPROTO_TCP)": socket.IPPROTO_TCP}
changed = []
print(f"Python {platform.python_version()} on {platform.system()}, uvloop {uvloop.__version__}")
for loop, new_loop in (("asyncio", asyncio.SelectorEventLoop), ("uvloop", uvloop.new_event_loop)):
    for name, proto in CASES.items():
        running = new_loop()
        seen = running.run_until_complete(both_ends(proto))
        running.close()
        expected = (False, False) if loop == "asyncio" and proto == 0 else (True, True)
        print(f"  {loop:8} {name:34} TCP_NODELAY of the client {seen[0]}, of the server {seen[1]}")
        if seen != expected:
            print(f"    CHANGED: expected {expected}")
            changed.append(f"{loop}, {name}")
print("CHANGED: " + "; ".join(changed) if changed else "as stated: asyncio sets TCP_NODELAY by the proto of the socket")
sys.exit(1 if changed else 0)
PYTHON

timeout 60 python3 -m venv "$work/venv" >&2 || not_tried "no virtual environment"
timeout 120 "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "uvloop==$UVLOOP" >&2 ||
    not_tried "the installation failed"
code=0
timeout 30 "$work/venv/bin/python" "$work/nagle.py" || code=$?
[ "$code" -le 1 ] || not_tried "the cases failed with $code"
exit "$code"
