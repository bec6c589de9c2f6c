"""Requests over a real socket, well framed or not, get a right answer or a closed connection; the server survives."""

import contextlib
import gzip
import json
import threading
import time

import httpx
import pytest

from ingest_api.protocol import HEAD_BYTES_MAX
from tests.support.eventually import eventually

pytestmark = pytest.mark.system

GOOD = b'{"records":[{"value":1}]}'
JSON_TYPE = b"Content-Type: application/json\r\n"


def post(body: bytes, *headers: bytes, path: bytes = b"/topics/t", length: int | None = None) -> bytes:
    size = b"Content-Length: %d\r\n" % (len(body) if length is None else length)
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % path + JSON_TYPE + size + b"".join(headers) + b"\r\n" + body


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\n" + JSON_TYPE + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


@pytest.fixture(autouse=True)
def goes_on(server):
    """Check that the next good request works, whatever a test did."""
    yield
    answer = httpx.post(f"{server.url}/topics/t", content=GOOD, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert "Traceback" not in server.log_path.read_text()


def test_a_body_in_chunks_is_read(server):
    with server.connection() as connection:
        connection.send(chunked(GOOD[:5], GOOD[5:6], GOOD[6:]))
        assert connection.answer().status == 200


def test_a_body_byte_by_byte_is_read(server):
    with server.connection() as connection:
        for byte in post(GOOD):
            connection.send(bytes([byte]))
        assert connection.answer().status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"get /topics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"FROBNICATE /topics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /topics HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /topics HTTP/1.1\r\nHost: localhost\r\nBad Header: y\r\n\r\n",
        b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
        b"GET /topics HTTP/1.1\r\nHost: localhost\r\n: y\r\n\r\n",
        b"GET /t\xc3\xa4 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        post(GOOD, b"Transfer-Encoding: chunked\r\n"),
        post(GOOD, b"Content-Length: 3\r\n"),
        post(GOOD).replace(b"Content-Length: 25", b"Content-Length: -1"),
        post(GOOD).replace(b"Content-Length: 25", b"Content-Length: 2 5"),
        post(GOOD).replace(b"Content-Length: 25", b"Content-Length: x"),
        post(GOOD).replace(b"Content-Length: 25", b"Content-Length: " + b"9" * 30),
        chunked(end=b"zz\r\n" + GOOD + b"\r\n0\r\n\r\n"),
        chunked(end=b"-1\r\n" + GOOD + b"\r\n0\r\n\r\n"),
        chunked(end=b"ffffffffffffffffff\r\n" + GOOD),
        chunked(GOOD, end=b"5\r\nab\r\n0\r\n\r\n"),
        chunked(GOOD, end=b"nonsense"),
    ],
    ids=lambda data: repr(data[:40]) + str(len(data)),
)
def test_malformed_requests_are_400_json_and_store_nothing(server, request_bytes):
    before = server.end_offset()
    with server.connection() as connection:
        connection.send(request_bytes)
        answer = connection.answer()
        assert answer.status == 400
        assert answer.error["error_code"] == 400
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-request-id"]
        assert connection.answer() is None
    assert server.end_offset() == before


def test_http_1_0_is_answered_and_closed(server):
    with server.connection() as connection:
        connection.send(b"GET /topics HTTP/1.0\r\n\r\n")
        assert connection.answer().status == 200
        assert connection.answer() is None


def test_without_a_body_the_message_says_so(server):
    with server.connection() as connection:
        connection.send(b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\n" + JSON_TYPE + b"\r\n")
        assert connection.answer().error["error_code"] == 42206


@pytest.mark.parametrize("end", ["half-closed", "closed"])
@pytest.mark.parametrize("sent", [post(GOOD, length=1000), chunked(GOOD, end=b""), chunked(GOOD, end=b"400\r\nabc")])
def test_a_body_that_breaks_off_stores_nothing(server, end, sent):
    before = server.end_offset()
    with server.connection() as connection:
        connection.send(sent)
        if end == "half-closed":
            connection.end()
            assert connection.answer() is None
    assert server.end_offset() == before
    assert in_flight_bytes(server) == 0


GET_LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def poll(offset: int, **more: int) -> bytes:
    query = "&".join(f"{name}={value}" for name, value in {"offset": offset, "max_wait_ms": 60_000, **more}.items())
    return b"GET /topics/t/partitions/0/records?%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % query.encode()


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (GET_LIVE, [200]),
        (post(GOOD), [200]),
        (chunked(GOOD[:5], GOOD[5:]), [200]),
        (post(GOOD, b"Idempotency-Key: k\r\n"), [200]),
        (post(b'{"records":[{"value":"%b"}]}' % (b"x" * 300_000)), [200]),
        (post(b"{}"), [422]),
        (post(GOOD) * 3 + GET_LIVE, [200] * 4),
        (post(GOOD) + post(GOOD, length=26), [200]),
        (GET_LIVE + b"GET /top", [200]),
        (post(GOOD) + b"nonsense\r\n\r\n", [200, 400]),
    ],
    ids=lambda value: repr(value[:60]),
)
def test_a_whole_request_is_answered_though_nothing_more_will_come(server, sent, statuses):
    """End the sending side after the request, as ``nc -N`` and scripts do; the last answer closes the connection."""
    before = server.end_offset()
    with server.connection() as connection:
        connection.send(sent)
        connection.end()
        answers = [connection.answer() for _ in statuses]
        assert [answer and answer.status for answer in answers] == statuses
        assert connection.answer() is None
    stored = sum(b"offsets" in answer.body for answer in answers)
    assert server.end_offset() == before + stored


def test_a_long_poll_whose_client_sends_nothing_more_is_answered_with_what_there_is(server):
    end = server.end_offset()
    fetch = json.dumps({"partitions": [{"topic": "t", "partition": 0, "offset": end}], "max_wait_ms": 60_000}).encode()
    for sent, waiting in (
        (poll(end), True),
        (poll(end), False),
        (poll(0, min_bytes=10**7, max_bytes=10**7), True),
        (GET_LIVE + poll(end), False),
        (post(fetch, path=b"/fetch"), True),
        (post(fetch, path=b"/fetch"), False),
    ):
        with server.connection() as connection:
            connection.send(sent)
            if waiting:
                # The server answers this after it has read everything sent before.
                assert httpx.get(f"{server.url}/health/live").status_code == 200
            connection.end()
            began = time.monotonic()
            answer = connection.answer()
            if sent.startswith(GET_LIVE):
                answer = connection.answer()
            assert answer.status == 200
            assert (len(answer.body) > 1000) == (b"offset=0&" in sent)
            assert connection.answer() is None
            assert time.monotonic() - began < 40


def in_flight_bytes(server) -> int:
    def now() -> int:
        text = httpx.get(f"{server.url}/metrics").text
        return int(
            float(next(line for line in text.splitlines() if line.startswith("logstore_in_flight_bytes ")).split()[1])
        )

    eventually(lambda: now() == 0, "bytes are counted that nobody holds", seconds=20)
    return 0


def test_a_body_longer_than_declared_does_not_hide_that_its_beginning_is_stored(server):
    """Check that the answer to the first request comes first and says that it is stored; the rest is not a request."""
    before = server.end_offset()
    with server.connection() as connection:
        connection.send(post(GOOD + b"garbage after the body", length=len(GOOD)))
        first, second = connection.answer(), connection.answer()
    assert first.status == 200
    assert json.loads(first.body)["offsets"][0]["offset"] == before
    assert second.status == 400
    assert server.end_offset() == before + 1


def test_pipelined_requests_are_answered_in_order(server):
    with server.connection() as connection:
        connection.send(post(GOOD) + b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n" + post(b"{}") + post(GOOD))
        answers = [connection.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 422, 200]
    assert json.loads(answers[1].body) == ["t"]


def test_a_malformed_request_in_a_pipeline_is_answered_after_those_before_it(server):
    before = server.end_offset()
    with server.connection() as connection:
        connection.send(post(GOOD) + post(GOOD) + chunked(GOOD, end=b"nonsense") + post(GOOD))
        answers = [connection.answer() for _ in range(3)]
        assert connection.answer() is None
    assert [answer.status for answer in answers] == [200, 200, 400]
    assert server.end_offset() == before + 2


def test_100_continue_is_sent_for_a_body_that_is_wanted(server):
    with server.connection() as connection:
        connection.send(post(b"", b"Expect: 100-continue\r\n", length=len(GOOD)))
        assert connection.answer().status == 100
        connection.send(GOOD)
        assert connection.answer().status == 200


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [
        (b"/topics/none", 25, 404),
        (b"/topics/t?acks=7", 25, 422),
        (b"/topics/t", 10**9, 413),
        (b"/topics/t/x", 25, 404),
        (b"/topics/t/partitions/1", 25, 404),
    ],
)
def test_instead_of_100_continue_comes_the_refusal(server, path, length, status):
    with server.connection() as connection:
        connection.send(post(b"", b"Expect: 100-continue\r\n", path=path, length=length))
        answer = connection.answer()
        assert answer.status == status
        assert answer.error["error_code"] // 100 in (status, status // 100)
        assert answer.headers["connection"] == "close"
        assert connection.answer() is None


def test_a_body_over_the_limit_is_413_declared_or_not(server):
    before = server.end_offset()
    large = b" " * 1_500_000  # max_request_size is 1,000,000
    with server.connection() as connection:
        connection.send(post(large))
        assert connection.answer().error["error_code"] == 41301
        connection.send(post(GOOD))
        assert connection.answer().status == 200, "the rest of the body is read and dropped, the connection goes on"
    with server.connection() as connection:
        connection.send(chunked(*[large[:100_000]] * 15))
        assert connection.answer().error["error_code"] == 41301
    assert server.end_offset() == before + 1


def test_a_gzip_bomb_is_413(server):
    bomb = gzip.compress(b" " * 20_000_000, 1)
    with server.connection() as connection:
        connection.send(post(bomb, b"Content-Encoding: gzip\r\n"))
        assert connection.answer().error["error_code"] == 41301


@pytest.mark.parametrize(
    "head",
    [
        b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20),
        b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (HEAD_BYTES_MAX + 1) + b"\r\n\r\n",
        b"GET /topics HTTP/1.1\r\nHost: localhost\r\n"
        + b"".join(b"X-%d: %b\r\n" % (n, b"y" * 100) for n in range(1000))
        + b"\r\n",
        b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["endless header", "long header", "many headers", "long path"],
)
def test_a_head_that_is_too_large_is_431(server, head):
    with server.connection() as connection:
        connection.send(head)
        assert connection.answer().error["error_code"] == 431


def test_a_thousand_headers_are_fine_if_they_are_small(server):
    with server.connection() as connection:
        connection.send(
            b"GET /topics HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n"
        )
        assert connection.answer().status == 200


@pytest.mark.parametrize("method", [b"OPTIONS *", b"CONNECT x:1", b"GET http://x/topics", b"GET *"])
def test_other_forms_of_request_targets_are_answered(server, method):
    with server.connection() as connection:
        connection.send(method + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = connection.answer()
        assert answer is not None
        assert answer.status < 500
        if answer.status >= 400:
            assert answer.error


def test_an_upgrade_is_declined_and_the_request_answered(server):
    """Ask for h2c, as Java's HttpClient does with every first request."""
    upgrade = (b"Connection: Upgrade, HTTP2-Settings\r\n", b"Upgrade: h2c\r\n", b"HTTP2-Settings: AAEAAEAA\r\n")
    with server.connection() as connection:
        connection.send(b"GET /topics HTTP/1.1\r\nHost: localhost\r\n" + b"".join(upgrade) + b"\r\n")
        assert connection.answer().status == 200
    with server.connection() as connection:
        connection.send(post(GOOD, *upgrade))
        assert connection.answer().status == 200


def test_head_has_no_body_on_the_wire(server):
    with server.connection() as connection:
        connection.send(
            b"HEAD /topics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert connection._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert json.loads(connection.answer().body) == {"status": "live"}


def test_a_client_that_leaves_before_its_answer_is_no_trouble(server):
    before = server.end_offset()
    for _ in range(20):
        with server.connection() as connection:
            connection.send(post(GOOD))
    with server.connection() as connection:
        connection.send(
            b"GET /topics/t/partitions/0/records?offset=%d&max_wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            % before
        )
    with contextlib.suppress(AssertionError):  # a request may be lost with its client
        eventually(lambda: server.end_offset() == before + 20, seconds=20)
    assert before <= server.end_offset() <= before + 20
    assert in_flight_bytes(server) == 0


def test_many_idle_connections_do_not_hinder_others(server):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(server.connection())
        assert httpx.get(f"{server.url}/topics").json() == ["t"]


def test_connections_are_kept_for_the_next_request(server):
    with server.connection() as connection:
        for _ in range(50):
            connection.send(post(GOOD))
            assert connection.answer().status == 200


def test_parallel_requests_over_many_connections(server):
    before = server.end_offset()
    statuses = []

    def load() -> None:
        with server.connection() as connection:
            for _ in range(10):
                connection.send(post(GOOD))
                statuses.append(connection.answer().status)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 80
    assert server.end_offset() == before + 80
