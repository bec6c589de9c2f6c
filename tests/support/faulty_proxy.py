"""A proxy that loses responses: HTTP/1.1 between a client and a real server, with orders from the test.

Each order is for the next POST to a topic: forward it and cut the connection instead of responding, respond without
forwarding, or forward it and hold the response back. Without an order, everything passes.
"""

import json
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

import pyarrow as pa

Order = Callable[["_Handler"], None]


@dataclass(frozen=True, slots=True)
class Seen:
    """A POST to a topic, as it was received."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class FaultyProxy:
    """Use it as ``with FaultyProxy(server.url) as proxy: Producer(proxy.url)``."""

    target: str
    seen: list[Seen] = field(default_factory=list)
    _orders: deque[Order] = field(default_factory=deque)
    _released: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def cut(self, times: int = 1) -> Self:
        """Let the store carry out the request, and lose its response."""
        return self._order(_Handler.pass_and_cut, times)

    def refuse(self, status: int, error_code: int, *, retry_after: int | None = None, times: int = 1) -> Self:
        """Refuse the request; the store does not see it."""
        return self._order(lambda handler: handler.refuse(status, error_code, retry_after), times)

    def refuse_partition(self, partition: int, error_code: int, times: int = 1) -> Self:
        """Let the store carry out the request without one partition, for which the response has an error."""
        return self._order(lambda handler: handler.refuse_partition(partition, error_code), times)

    def pass_on(self, times: int = 1) -> Self:
        return self._order(_Handler.pass_on, times)

    def hold(self, times: int = 1) -> Self:
        """Let the store carry out the request, and send the response after ``release``."""
        return self._order(_Handler.pass_and_hold, times)

    def forget_orders(self) -> None:
        self._orders.clear()

    def release(self) -> None:
        self._released.set()

    def order_of(self, seen: Seen) -> Order:
        with self._lock:
            self.seen.append(seen)
            return self._orders.popleft() if self._orders else _Handler.pass_on

    def wait_until_released(self) -> None:
        self._released.wait(30)

    def _order(self, order: Order, times: int) -> Self:
        self._orders.extend([order] * times)
        return self

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self.release()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultyProxy
    body: bytes

    def _any(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.command == "POST" and self.path.startswith("/topics/"):
            self.proxy.order_of(Seen(self.path, dict(self.headers), self.body))(self)
        else:
            self.pass_on()

    do_GET = do_POST = do_DELETE = _any  # noqa: N815

    def pass_on(self) -> None:
        self.answer(*self.ask())

    def pass_and_cut(self) -> None:
        self.ask()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def pass_and_hold(self) -> None:
        answer = self.ask()
        self.proxy.wait_until_released()
        self.answer(*answer)

    def refuse(self, status: int, error_code: int, retry_after: int | None) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self.answer(status, headers, json.dumps({"error_code": error_code, "message": "as ordered"}).encode())

    def refuse_partition(self, partition: int, error_code: int) -> None:
        sent = list(pa.ipc.open_stream(self.body).iter_batches_with_custom_metadata())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, sent[0].batch.schema) as writer:
            for found in sent:
                if int(found.custom_metadata[b"partition"]) != partition:
                    writer.write_batch(found.batch, custom_metadata=found.custom_metadata)
        self.body = sink.getvalue().to_pybytes()
        del self.headers["Content-Length"]
        sequences = (self.headers["Logstore-Base-Sequences"] or "").split(",")
        self.headers.replace_header(
            "Logstore-Base-Sequences", ",".join(one for one in sequences if not one.startswith(f"{partition}="))
        )
        status, headers, body = self.ask()
        assert status == 200, body
        stored = iter(json.loads(body)["ranges"])
        refused = {"partition": partition, "base_offset": None, "error_code": error_code, "error": "as ordered"}
        ranges = [
            {**refused, "count": found.batch.num_rows}
            if int(found.custom_metadata[b"partition"]) == partition
            else {**next(stored), "error_code": None, "error": None}
            for found in sent
        ]
        self.answer(status, headers, json.dumps({"ranges": ranges}).encode())

    def ask(self) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(urlsplit(self.proxy.target).netloc, timeout=60)
        connection.request(self.command, self.path, self.body, dict(self.headers))
        response = connection.getresponse()
        try:
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        try:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            # The client has given up.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None: ...
