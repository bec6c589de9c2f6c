"""Kept HTTP/1.1 connections that do as little as they can: they parse only status and length of a response."""

import socket
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any


class Target:
    """A server with ``paths`` that are posted to in turn. ``spec`` has host, port, paths."""

    def __init__(self, spec: dict[str, Any], content_type: str) -> None:
        self.host, self.port = spec["host"], spec["port"]
        self.share = len(spec["paths"])
        self._paths = cycle(spec["paths"])
        self._rest = f" HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: {content_type}\r\nContent-Length: "

    def head(self, body: bytes) -> bytes:
        """Return the head of the next request."""
        return f"POST {next(self._paths)}{self._rest}{len(body)}\r\n\r\n".encode()


def connections_to(targets: list[Target], count: int) -> "Iterator[tuple[Target, Connection]]":
    """Yield about ``count`` connections, for each target in proportion to its paths, and at least one."""
    paths = sum(target.share for target in targets)
    for target in targets:
        for _ in range(max(1, round(count * target.share / paths))):
            yield target, Connection(target.host, target.port)


class Connection:
    """A connection with one request at a time. ``began`` is when its first byte was sent."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.began = 0.0
        self._unsent = memoryview(b"")
        self._head = b""
        self._missing = -1
        self.status = 0
        self.retry_after_s = 0.0

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, head: bytes, body: bytes) -> bool:
        """Begin a request; return True if all of it is sent."""
        self.began = time.monotonic()
        self._head, self._missing = b"", -1
        sent = self.socket.sendmsg([head, body])
        if sent < len(head):
            raise ConnectionError("a connection does not even take the head of a request")
        self._unsent = memoryview(body)[sent - len(head) :]
        return self.send_more()

    def send_more(self) -> bool:
        while len(self._unsent):
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def receive(self, buffer: bytearray) -> bool:
        """Take the received bytes; return True if the response is complete."""
        try:
            size = self.socket.recv_into(buffer)
        except BlockingIOError:
            return False
        if not size:
            raise ConnectionError("the server closed a connection before its answer")
        if self._missing < 0:
            self._head += bytes(memoryview(buffer)[:size])
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return False
            size = self._parse_head(end)
        self._missing -= size
        return self._missing == 0

    def _parse_head(self, end: int) -> int:
        """Parse the head; return how many bytes of the response's body came with it."""
        lines = self._head[:end].lower().split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines[1:])
        self.status = int(lines[0][9:12])
        self._missing = int(fields[b"content-length"])
        self.retry_after_s = float(fields.get(b"retry-after", b"1"))
        body = len(self._head) - end - 4
        if self.status not in (200, 429):
            raise ConnectionError(f"the server answered {self._head[:600].decode(errors='replace')}")
        return body
