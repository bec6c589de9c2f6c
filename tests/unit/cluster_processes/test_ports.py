"""Ports are kept for processes that come and go."""

import socket

import pytest

from logstore.cluster_processes import ports
from logstore.cluster_processes.ports import ReservedPorts
from logstore.listening_sockets import SocketBuffers, listening_socket, shared_socket

HOST = "127.0.0.1"


def connects(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_server_comes_and_goes_at_a_reserved_port() -> None:
    with ReservedPorts() as reserved:
        port = reserved.reserve(HOST)
        assert not connects(port)
        for _ in range(2):
            with listening_socket(HOST, port, {}):
                assert connects(port)
        assert not connects(port), "nobody listens, and connections do not hang"
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))
    with socket.socket() as other:
        other.bind((HOST, port))


def test_a_port_of_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_WAIT_S", 0.1)
    with listening_socket(HOST, 0, {}) as taken, ReservedPorts() as reserved:
        with pytest.raises(OSError, match="in use"):
            reserved.reserve(HOST, taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            reserved.reserve(HOST, taken.getsockname()[1], shared=True)


def test_a_port_that_others_share_is_refused_to_a_second_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_WAIT_S", 0.1)
    with ReservedPorts() as first, ReservedPorts() as second:
        port = first.reserve(HOST, shared=True)
        with shared_socket(HOST, port, SocketBuffers()), pytest.raises(OSError, match="in use"):
            second.reserve(HOST, port, shared=True)


def test_several_listen_on_a_shared_port_and_each_gets_connections() -> None:
    with ReservedPorts() as reserved:
        port = reserved.reserve(HOST, shared=True)
        with shared_socket(HOST, port, SocketBuffers()) as one, shared_socket(HOST, port, SocketBuffers()) as other:
            for _ in range(100):
                assert connects(port)
            counts = []
            for listener in (one, other):
                count = 0
                while True:
                    try:
                        listener.accept()[0].close()
                    except BlockingIOError:
                        break
                    count += 1
                counts.append(count)
            assert sum(counts) == 100
            assert min(counts) > 10, counts
