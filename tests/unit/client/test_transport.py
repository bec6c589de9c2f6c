import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from logstore import errors
from logstore.client import transport as transport_module
from logstore.client.admin import Admin
from logstore.client.connections import Connections
from logstore.client.transport import Transport

OK = (200, {}, b"{}")
THROTTLED = (429, {"Retry-After": "0"}, json.dumps({"error_code": 42901, "message": "full"}).encode())


@contextmanager
def answering(answers: list[tuple[int, dict[str, str], bytes] | None]) -> Iterator[tuple[str, list[str]]]:
    """Run a real HTTP server that gives ``answers`` in turn (None cuts the connection); yield its URL and requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(f"{self.command} {self.path}")
            answer = answers[min(len(asked), len(answers)) - 1]
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def closed_port() -> Iterator[str]:
    # The socket is bound and does not listen: connections are refused, and no other process gets the port.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_goes_to_the_next_address_when_one_refuses_and_stays_there(closed_port):
    with answering([OK]) as (url, asked), Transport(f"{closed_port},{url}", retry_timeout_s=0) as transport:
        transport.request("POST", "/a")
        transport.request("POST", "/b")
        assert asked == ["POST /a", "POST /b"]


@pytest.mark.parametrize(
    "lost",
    [None, (503, {}, json.dumps({"error_code": 50301, "message": "stopping"}).encode())],
    ids=["cut", "stopping"],
)
def test_a_cluster_is_described_by_the_first_address_that_answers(lost, closed_port):
    counts = dict.fromkeys(("partitions", "under_replicated_partitions", "unavailable_partitions"), 0)
    described = {"cluster_id": "c", "controller_id": 1, "brokers": [], **counts, "under_min_isr_partitions": 0}
    with (
        answering([lost]) as (first, _),
        answering([(200, {}, json.dumps(described).encode())]) as (second, _),
        Admin(f"{closed_port},{first},{second}", default_api_timeout_ms=0) as admin,
    ):
        assert admin.describe_cluster().cluster_id == "c"


def test_names_all_addresses_when_none_answers(closed_port):
    with (
        Transport(f"{closed_port}, http://{closed_port}/b", retry_timeout_s=0) as transport,
        pytest.raises(errors.StoreUnreachableError, match=re.escape(f"http://{closed_port}, http://{closed_port}/b")),
    ):
        transport.request("GET", "/")


def test_one_warning_says_that_no_store_can_be_reached(closed_port, monkeypatch, caplog):
    monkeypatch.setattr(transport_module, "_WARN_S", 0.0)
    with (
        Transport(f"http://{closed_port}", retry_timeout_s=0.5) as transport,
        pytest.raises(errors.StoreUnreachableError),
    ):
        transport.request("GET", "/topics")
    (warning,) = caplog.messages
    assert f"No store answers at http://{closed_port}" in warning
    assert "trying for another" in warning


def test_sends_again_after_a_throttled_answer_whatever_the_method():
    with answering([THROTTLED, THROTTLED, OK]) as (url, asked), Transport(url) as transport:
        transport.request("POST", "/topics/t", content=b"x")
        assert len(asked) == 3


def test_sends_again_while_the_groups_are_being_read():
    loading = (503, {}, json.dumps({"error_code": 50305, "message": "being read"}).encode())
    with answering([loading, OK]) as (url, asked), Transport(url) as transport:
        transport.request("POST", "/groups/g/offsets")
        assert len(asked) == 2


def test_gives_up_when_the_server_says_to_wait_longer_than_allowed():
    throttled = (429, {"Retry-After": "30"}, THROTTLED[2])
    with answering([throttled]) as (url, asked), Transport(url, retry_timeout_s=1) as transport:
        with pytest.raises(errors.ThrottledError) as raised:
            transport.request("POST", "/")
        assert raised.value.retry_after_s == 30
        assert len(asked) == 1


def test_never_sends_a_post_again_after_a_lost_answer():
    with answering([None, OK]) as (url, asked), Transport(url) as transport:
        with pytest.raises(errors.NetworkError, match="whether it took effect is unknown"):
            transport.request("POST", "/topics/t")
        assert asked == ["POST /topics/t"]


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "No store answers at http://.*: the answer to GET /topics is not HTTP"),
        (b"", "broke during GET /topics .*: no store answers there, or it is being stopped$"),
    ],
)
def test_a_read_from_a_port_of_something_else_says_so(greeting: bytes, message: str):
    """Check that the outcome is not called unknown, because a read has no effect."""

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Transport(url, retry_timeout_s=0) as transport, pytest.raises(errors.NetworkError, match=message):
            transport.request("GET", "/topics")


@pytest.mark.parametrize("call", [lambda t: t.request("GET", "/"), lambda t: t.request("POST", "/", idempotent=True)])
def test_sends_an_idempotent_request_again_after_a_lost_answer(call: Callable[[Transport], object]):
    with answering([None, OK]) as (url, asked), Transport(url) as transport:
        call(transport)
        assert len(asked) == 2


def test_an_answer_that_never_comes_is_unknown():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            Transport(url, request_timeout_s=0.1) as transport,
            pytest.raises(errors.RequestTimedOutError, match="unknown"),
        ):
            transport.request("POST", "/")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, 40401, errors.UnknownTopicError),
        (404, 40402, errors.UnknownPartitionError),
        (413, 41302, errors.RecordTooLargeError),
        (413, 41301, errors.RequestTooLargeError),
        (422, 42206, errors.InvalidRecordError),
        (422, 422, errors.InvalidRequestError),
        (400, 40002, errors.InvalidRequestError),
        (406, 406, errors.InvalidRequestError),
        (504, 50401, errors.RequestTimedOutError),
        (500, 50002, errors.LogStoreError),
    ],
)
def test_an_error_code_is_its_exception(status, code, kind):
    body = json.dumps({"error_code": code, "message": "what to do"}).encode()
    with answering([(status, {}, body)]) as (url, _), Transport(url, retry_timeout_s=0) as transport:
        with pytest.raises(errors.LogStoreError, match=r"^what to do$") as raised:
            transport.request("POST", "/")
        assert type(raised.value) is kind


def test_an_offset_out_of_range_gets_the_range():
    headers = {"Logstore-Log-Start-Offset": "3", "Logstore-High-Watermark": "9"}
    body = b'{"error_code": 41601, "message": "outside"}'
    with answering([(416, headers, body)]) as (url, _), Transport(url) as transport:
        with pytest.raises(errors.OffsetOutOfRangeError) as raised:
            transport.request("GET", "/")
        assert (raised.value.log_start_offset, raised.value.high_watermark) == (3, 9)


def test_somebody_elses_error_page_is_shown_as_it_is():
    with (
        answering([(502, {}, b"<h1>Bad Gateway</h1>")]) as (url, _),
        Transport(url, retry_timeout_s=0) as transport,
        pytest.raises(errors.NetworkError, match="502 <h1>Bad Gateway"),
    ):
        transport.request("GET", "/")


def test_close_ends_a_wait():
    throttled = (429, {"Retry-After": "50"}, THROTTLED[2])
    with answering([throttled]) as (url, asked), Transport(url, retry_timeout_s=60) as transport:
        failures: list[errors.LogStoreError] = []

        def ask() -> None:
            try:
                transport.request("POST", "/")
            except errors.ThrottledError as error:
                failures.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        waits = threading.Event()
        while not asked:
            waits.wait(0.01)
        while any(connections._busy for connections in transport._connections.values()):
            waits.wait(0.01)
        transport.close()
        asking.join(30)
        assert not asking.is_alive()
        assert len(failures) == 1
        assert len(asked) == 1


def test_no_connection_is_kept_after_close_whatever_was_on_its_way():
    with answering([OK]) as (url, _):
        connections = Connections(url)
        used = []

        def read(response: http.client.HTTPResponse) -> bytes:
            (connection,) = connections._busy
            used.append(connection)
            body = response.read()
            connections.close()
            return body

        connections.exchange("GET", "/", None, {}, 5, read=read)
        assert used[0].sock is None


def test_a_connection_that_is_interrupted_as_its_answer_comes_is_not_kept():
    """Interrupt the read: the socket is shut down, so the next request would fail on it."""
    with answering([OK, OK]) as (url, asked):
        connections = Connections(url)

        def read(response: http.client.HTTPResponse) -> bytes:
            body = response.read()
            connections.interrupt()
            return body

        assert connections.exchange("GET", "/", None, {}, 5, read=read).status_code == 200
        assert connections.exchange("GET", "/", None, {}, 5).status_code == 200
        assert len(asked) == 2
        assert not connections._busy
        connections.close()
