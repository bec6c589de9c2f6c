#!/usr/bin/env bash
# A TLS server of asyncio (CPython) or uvloop 0.23.0 tells nobody that a handshake has failed: neither the program, nor its log, nor the client.
#
# Guessed: when a client's handshake fails, the server's protocol or the loop's exception handler gets the error, or there is a line in the log,
#          and the client gets a TLS alert, such as "certificate required".
# Happens: with `create_server(..., ssl=context)` and CERT_REQUIRED, a client without a certificate ends its own handshake (TLS 1.3), reads the
#          end of the stream without an alert, and the server has no trace of it: `connection_made` is not called, the exception handler is not
#          called, nothing is logged. The same for plain HTTP on the TLS port. asyncio logs it at DEBUG in the loop's debug mode only. A blocking
#          `ssl.SSLSocket` with the same context raises on the server, and its client gets the alert.
#
# So accept connections with `sock_accept`, and begin TLS with `connect_accepted_socket`, whose exception has the reason.
#
#   findings/asyncio_tls_servers_hide_failed_handshakes.sh
#
# Exit: 0 as stated, 1 the behaviour changed, 2 not tried (Python is missing, or the installation failed).
# Needs bash, coreutils, Python >= 3.11 with venv. Installs into a temporary directory that it removes.
set -euo pipefail

readonly TRUSTME=1.2.1 UVLOOP=0.23.0

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

cat >"$work/handshakes.py" <<'PYTHON'
"""Prints what each side sees of a failed handshake. Exit: 0 as stated, 1 the behaviour changed."""

import asyncio
import logging
import platform
import socket
import ssl
import sys
import threading

import trustme
import uvloop

authority = trustme.CA()
of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
authority.issue_cert("localhost").configure_cert(of_server)
authority.configure_trust(of_server)
of_server.verify_mode = ssl.CERT_REQUIRED
of_client = ssl.create_default_context()
authority.configure_trust(of_client)
logged = []
changed = []


class Lines(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())


logging.basicConfig(level=logging.INFO, handlers=[Lines()])


def without_certificate(port):
    """Return what a client without a certificate reads."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
            with of_client.wrap_socket(plain, server_hostname="localhost") as client:
                return repr(client.recv(100))
    except ssl.SSLError as error:
        return error.reason
    except OSError as error:
        return type(error).__name__


def plain_http(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return repr(client.recv(100))


def case(name, found, expected):
    print(f"  {name}: {found}")
    if found != expected:
        print(f"    CHANGED: expected {expected}")
        changed.append(name)


async def serve(name):
    noticed = []

    class Served(asyncio.Protocol):
        def connection_made(self, transport):
            noticed.append("connection_made")

        def connection_lost(self, error):
            noticed.append("connection_lost")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: noticed.append(context["message"]))
    server = await loop.create_server(Served, "127.0.0.1", 0, ssl=of_server)
    port = server.sockets[0].getsockname()[1]
    case(f"{name}, a client without a certificate reads", await asyncio.to_thread(without_certificate, port), "b''")
    case(f"{name}, a client of plain HTTP reads", await asyncio.to_thread(plain_http, port), "b''")
    for _ in range(10):
        await asyncio.sleep(0.05)
    server.close()
    case(f"{name}, what its server and its log know", noticed + logged, [])


def blocking():
    """Return what a client reads, and what the server's own call raises, with blocking sockets."""
    raised = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept():
            connection, _ = listening.accept()
            try:
                with connection, of_server.wrap_socket(connection, server_side=True):
                    pass
            except ssl.SSLError as error:
                raised.append(error.reason)

        accepting = threading.Thread(target=accept)
        accepting.start()
        read = without_certificate(listening.getsockname()[1])
        accepting.join(20)
    return [read, *raised]


print(f"CPython {platform.python_version()}, uvloop {uvloop.__version__}, {ssl.OPENSSL_VERSION}")
asyncio.run(serve("asyncio"))
asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve("uvloop"))
case("ssl.SSLSocket, client and server", blocking(), ["TLSV13_ALERT_CERTIFICATE_REQUIRED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"])
print("CHANGED: " + "; ".join(changed) if changed else "as stated: nobody learns of a failed handshake")
sys.exit(1 if changed else 0)
PYTHON

timeout 60 python3 -m venv "$work/venv" >&2 || not_tried "no virtual environment"
timeout 180 "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "trustme==$TRUSTME" "uvloop==$UVLOOP" >&2 ||
    not_tried "the installation failed"
code=0
timeout 120 "$work/venv/bin/python" "$work/handshakes.py" || code=$?
[ "$code" -le 1 ] || not_tried "the cases failed with $code"
exit "$code"
