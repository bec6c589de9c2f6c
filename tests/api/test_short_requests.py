"""A small produce request gets the same answer whether it comes at once or in pieces, by the short way or the long."""

import asyncio
import gc
import gzip
import json
import re

import pytest

from ingest_api.allowed_hosts import AllowedHosts
from ingest_api.identity_headers import IDENTITY_HEADERS
from ingest_api.protocol import HttpProtocol
from logstore.broker.produce.batcher import SMALL_REQUEST_BYTES_MAX
from logstore.errors import StorageError, ThrottledError
from logstore.observability import configure_logging, render_metrics
from logstore.records import native
from tests.api.api_client import JSON_V2, held_appends, running_api
from tests.api.listening import connected, listening
from tests.support.authorizer_views import Nothing
from tests.support.eventually import eventually_async, loop_turns

pytestmark = pytest.mark.anyio

ONE = b'{"records":[{"key":"k","value":{"a":1}}]}'
SEVERAL = json.dumps({"records": [{"key": f"k{n % 5}", "value": n} for n in range(70)]}).encode()


def request(body: bytes = ONE, path: str = "/topics/t", version: str = "1.1", **headers: str | None) -> bytes:
    given = {"Host": "localhost", "Content-Type": JSON_V2, "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"POST {path} HTTP/{version}", *lines, "", ""]).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
    pairs = [tuple(line.split(": ", 1)) for line in lines]
    assert len(dict(pairs)) == len(pairs), pairs
    headers = dict(pairs)
    return status, headers, await reader.readexactly(int(headers["content-length"]))


@pytest.fixture
async def short(api, monkeypatch):
    """Return the answers of ``ShortRequests.begin``, one for each request that it was offered."""
    taken: list[bool] = []
    begin = api.app.short_requests.begin

    def counted(*given):
        taken.append(begin(*given))
        return taken[-1]

    monkeypatch.setattr(api.app.short_requests, "begin", counted)
    await api.create_topic("t", partitions=3, max_message_bytes="2000")
    await api.create_topic("compacted", cleanup_policy="compact")
    await api.create_topic("a.b")
    await api.create_topic("strings", key_format="string")
    return taken


def comparable(answer: tuple[str, dict[str, str], bytes]) -> tuple[str, list[str], dict[str, str], object]:
    """Return the answer without values that differ between requests: times, ids made here, partitions and offsets."""
    status, headers, body = answer
    order = list(headers)
    headers = {name: value for name, value in headers.items() if name != "date"}
    if re.fullmatch("[0-9a-f]{32}", headers["x-request-id"]):
        body = body.replace(headers["x-request-id"].encode(), b"id")
        headers["x-request-id"] = "id"
    content = json.loads(body)
    for place in content.get("offsets", ()):
        place["offset"] = place["partition"] = 0
    headers["content-length"] = str(len(re.sub(rb"\d+", b"0", body)))
    return status, order, headers, content


TAKEN = {
    "one record": request(),
    "several": request(SEVERAL),
    "no key": request(b'{"records":[{"value":1}]}'),
    "nulls": request(b'{"records":[{}, {"key":null,"value":null}]}'),
    "spaces": request(b' { "records" : [ { "value" : "\xc3\xa9" } ] } '),
    "plain JSON": request(Content_Type="application/json; charset=utf-8"),
    "acks of the leader": request(path="/topics/t?acks=1&timeout_ms=5000"),
    "string keys": request(path="/topics/t?key_format=string"),
    "string keys by the topic": request(path="/topics/strings"),
    "another answer": request(Accept="application/json"),
    "any answer": request(Accept="*/*", User_Agent="curl", Accept_Encoding="gzip", Connection="keep-alive"),
    "with an id": request(X_Request_Id="mine", Logstore_Client_Id="me"),
    "with a bad id": request(X_Request_Id="x" * 200, Logstore_Client_Id="\tm\te"),
    "escaped": request(path="/topics/a%2Eb"),
    "absolute": request(path="http://x/topics/t"),
    "one partition": request(path="/topics/t/partitions/1"),
    "several for one partition": request(SEVERAL, path="/topics/t/partitions/2?acks=all"),
}
LEFT = {
    "malformed": request(b'{"records":['),
    "not UTF-8": request(b'{"records":[{"value":"\xff"}]}'),
    "no records": request(b'{"records":[]}'),
    "no body": request(b""),
    "a misspelt field": request(b'{"records":[{"value":1,"vlaue":2}]}'),
    "no such partition": request(b'{"records":[{"value":1,"partition":7}]}'),
    "too large a record": request(b'{"records":[{"value":"%b"}]}' % (b"x" * 2_001)),
    "too large to join": request(b'{"records":[{"value":1}]}'.ljust(SMALL_REQUEST_BYTES_MAX + 1)),
    "no such topic": request(path="/topics/unknown"),
    "no topic's name": request(path="/topics/%2F"),
    "another path": request(path="/topics/t/u/v"),
    "no partition of the topic": request(path="/topics/t/partitions/3"),
    "no partition": request(path="/topics/t/partitions/01"),
    "another partition than the path's": request(
        b'{"records":[{"value":1,"partition":2}]}', path="/topics/t/partitions/1"
    ),
    "of another type": request(Content_Type="text/plain"),
    "of no type": request(Content_Type=None),
    "no answer is good": request(Accept="image/png"),
    "unknown query": request(path="/topics/t?acsk=1"),
    "no key format": request(path="/topics/t?key_format=raw"),
    "no acks": request(path="/topics/t?acks=0"),
    "named": request(Idempotency_Key="a request"),
    "of a producer": request(Logstore_Producer_Id="1"),
    "compressed": request(gzip.compress(ONE, mtime=0), Content_Encoding="gzip"),
    "the last": request(Connection="close"),
    "of old": request(version="1.0"),
    "compacted": request(path="/topics/compacted"),
    "compacted, no key": request(b'{"records":[{"value":1}]}', path="/topics/compacted"),
}


#: The scanner in C takes these; without a library the application does.
WITH_MORE_FIELDS = {
    "a partition": request(b'{"records":[{"value":1,"partition":2}]}'),
    "the partition of the path": request(b'{"records":[{"partition":1}]}', path="/topics/t/partitions/1"),
    "a timestamp": request(b'{"records":[{"value":1,"timestamp":5}]}'),
    "headers": request(b'{"records":[{"headers":[{"key":"h","value":"QUI="},{"key":""}]},{"headers":[]}]}'),
}
if native.NATIVE is not None:
    TAKEN |= WITH_MORE_FIELDS
else:
    LEFT |= WITH_MORE_FIELDS


async def exchange(port: int, *pieces: bytes) -> tuple[str, list[str], dict[str, str], object]:
    async with connected(port) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await loop_turns()
        return comparable(await asyncio.wait_for(read_answer(reader), 30))


@pytest.mark.parametrize("requests", [TAKEN, LEFT], ids=["taken", "left"])
async def test_a_short_request_is_answered_the_same_at_once_and_in_pieces(api, short, requests):
    async with listening(api.app) as (port, _):
        for name, whole in requests.items():
            short.clear()
            head_end = whole.index(b"\r\n\r\n") + 4
            at_once = await exchange(port, whole)
            assert any(short) == (requests is TAKEN), name
            in_pieces = await exchange(port, whole[:head_end].replace(b"a request", b"another"), whole[head_end:])
            assert at_once == in_pieces, name


@pytest.fixture
def known(api, monkeypatch) -> list[bool]:
    """Return whether each request that was received while none was under way had a head that is known."""
    found: list[bool] = []
    find = api.app.short_requests.known

    def counted(data):
        found.append(find(data) is not None)
        return find(data)

    monkeypatch.setattr(api.app.short_requests, "known", counted)
    return found


async def test_a_request_that_comes_again_is_answered_the_same_and_its_head_is_not_parsed_again(api, short, known):
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):

        async def answered(whole: bytes):
            writer.write(whole)
            return comparable(await asyncio.wait_for(read_answer(reader), 30))

        for name, whole in TAKEN.items():
            known.clear()
            first, *others = [await answered(whole) for _ in range(3)]
            assert others == [first, first], name
            assert known[1:] == [b"X-Request-Id" not in whole] * 2, name
        # The parser continues where it was.
        for name in ("malformed", "a misspelt field", "named", "compacted"):
            assert await answered(LEFT[name]) == await exchange(port, LEFT[name].replace(b"a request", b"another")), (
                name
            )
            await answered(request())
            assert known[-1]
    assert sum(short) == 3 * len(TAKEN) + 4


async def test_the_guard_is_given_a_known_head_each_time(api, short, known, monkeypatch):
    given = []
    guard = api.app.short_requests._guard
    admit = guard.admit
    whole = request(Authorization="Bearer one")
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):

        async def status() -> str:
            writer.write(whole)
            return (await asyncio.wait_for(read_answer(reader), 30))[0]

        monkeypatch.setattr(guard, "admit", lambda arrival, found: given.append(arrival) or admit(arrival, found))
        assert [await status() for _ in range(3)] == ["HTTP/1.1 200 OK"] * 3
        assert known == [False, True, True]
        assert [dict(arrival.headers)[b"authorization"] for arrival in given] == [b"Bearer one"] * 3
        assert len({arrival.request_id for arrival in given}) == 3
        monkeypatch.setattr(guard, "_hosts", AllowedHosts(["elsewhere"]))
        whole = request(Host="elsewhere")
        assert await status() == "HTTP/1.1 200 OK"
        monkeypatch.setattr(guard, "_hosts", AllowedHosts())
        assert (await status(), known[-1]) == ("HTTP/1.1 421 Misdirected Request", True)
        whole = request(Authorization="Bearer one")
        api.broker.authorizer.replace(Nothing(1))
        assert (await status(), known[-1]) == ("HTTP/1.1 403 Forbidden", True)


@pytest.mark.usefixtures("transport")
async def test_however_a_request_is_cut_it_is_one(api, short, known):
    whole = request()
    head = whole[: -len(ONE)]
    async with listening(api.app) as (port, _):
        expected = await exchange(port, whole)
        async with connected(port) as (reader, writer):
            for pieces in (
                (whole + whole[:20], whole[20:]),
                (whole[:-1], whole[-1:]),
                (head, ONE),
                (b"\r\n" + whole,),
                (whole * 3,),
                (whole,),
            ):
                known.clear()
                for piece in pieces:
                    writer.write(piece)
                    await loop_turns()
                for _ in range(sum(map(len, pieces)) // len(whole)):
                    assert comparable(await asyncio.wait_for(read_answer(reader), 30)) == expected
                assert known[0] == (pieces == (whole,)), pieces
        offsets = await asyncio.gather(*(api.get(f"/topics/t/partitions/{p}/offsets") for p in range(3)))
        assert sum(found.json()["end_offset"] for found in offsets) == 1 + 2 + 1 + 1 + 1 + 3 + 1


async def test_the_end_of_a_head_is_no_head(api, short):
    whole = request()
    for cut in (1, 20, whole.index(b"Content-Length")):
        async with listening(api.app) as (port, _):
            await exchange(port, whole[:cut], whole[cut:])
            async with connected(port) as (reader, writer):
                writer.write(whole[cut:])
                status, *_ = await asyncio.wait_for(read_answer(reader), 30)
                assert status.startswith("HTTP/1.1 400"), cut


async def test_bytes_like_a_request_in_a_body_are_part_of_that_body(api, short):
    whole = request()
    body = b'{"records":[{"value":"%b"}]}' % whole
    before, _, after = request(body).rpartition(whole)
    async with listening(api.app) as (port, _):
        await exchange(port, whole)
        status, *_ = await exchange(port, before, whole, after)
        assert status.startswith("HTTP/1.1 422"), "a value with line breaks is no JSON; nothing of it is a request"
        async with connected(port) as (reader, writer):
            for piece in (b"\r\n\r\n" + whole, b"\r\n\r\n" + ONE):
                writer.write(piece)
                status, *_ = await asyncio.wait_for(read_answer(reader), 30)
            assert status.startswith("HTTP/1.1 400")
    assert sum(api.end_offsets("t")) == 2


async def test_a_request_behind_one_that_is_not_answered_yet_waits_for_its_turn(api, short, monkeypatch):
    durable = held_appends(api, monkeypatch)
    other = request(b'{"records":[{"key":"k","value":{"a":2}}]}', path="/topics/t/partitions/2")
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        durable.set()
        await exchange(port, request())
        durable.clear()
        for piece in (other, request()):
            writer.write(piece)
            await loop_turns()
        durable.set()
        places = [json.loads((await asyncio.wait_for(read_answer(reader), 30))[2])["offsets"][0] for _ in range(2)]
    values = {partition: await api.values("t", partition) for partition in range(3)}
    assert [values[place["partition"]][place["offset"]]["a"] for place in places] == [2, 1]


@pytest.mark.usefixtures("transport")
async def test_nothing_of_a_request_is_kept_when_it_is_answered(api, short):
    large = request(json.dumps({"records": [{"value": "x" * 1_000}] * 20}).encode())
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        for whole in (request(), large, LEFT["no such topic"]):
            writer.write(whole)
            await asyncio.wait_for(read_answer(reader), 30)
            connections = [found for found in gc.get_objects() if isinstance(found, HttpProtocol)]
            assert {(found._short_body, found._received_at_rest) for found in connections} == {(b"", b"")}


async def test_few_heads_are_remembered(api, short):
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        for n in range(300):
            accept = ", ".join([f"a/b{n}"] * (200 if n % 3 == 0 else 1) + ["*/*"])
            writer.write(request(Accept=accept))
            assert (await asyncio.wait_for(read_answer(reader), 30))[0] == "HTTP/1.1 200 OK"
    assert sum(short) == 200
    assert 0 < api.app.short_requests._read_again.cache_info().currsize <= 256
    heads = api.app.short_requests._known
    assert len(heads) == 200
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        for n in range(100):
            writer.write(request(X_N=str(n), X_Large="x" * (1_000 if n % 3 == 0 else 0)))
            await asyncio.wait_for(read_answer(reader), 30)
    assert len(heads) == 256
    assert max(map(len, heads)) <= 1024


@pytest.mark.parametrize("name", sorted(IDENTITY_HEADERS))
async def test_a_request_with_a_sender_is_not_short(api, short, name):
    """Check that it does not share a frame, as short requests do."""
    plain = [(b"content-length", b"10"), (b"content-type", JSON_V2.encode())]
    assert api.app.short_requests.head(b"/topics/t", plain) is not None
    assert api.app.short_requests.head(b"/topics/t", [*plain, (name, b"1")]) is None
    assert short == []


async def test_every_record_is_where_the_answer_says(api, short):
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        told = {}
        for n in range(20):
            value = f"v{n}"
            writer.write(request(json.dumps({"records": [{"key": f"k{n}", "value": value}] * 2}).encode()))
            _, _, body = await read_answer(reader)
            told |= {(place["partition"], place["offset"]): value for place in json.loads(body)["offsets"]}
    assert short == [True] * 20
    stored = {(p, offset): value for p in range(3) for offset, value in enumerate(await api.values("t", p))}
    assert told == stored


@pytest.mark.usefixtures("transport")
async def test_pipelined_requests_are_answered_in_their_order(api, short):
    requests = [request(X_Request_Id=str(n)) for n in range(5)]
    requests.insert(2, b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: list\r\n\r\n")
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        writer.write(b"".join(requests))
        ids = [(await asyncio.wait_for(read_answer(reader), 30))[1]["x-request-id"] for _ in requests]
    assert ids == ["0", "1", "list", "2", "3", "4"]
    assert sum(api.end_offsets("t")) == 5


@pytest.mark.usefixtures("transport")
async def test_a_broken_request_behind_a_short_one_is_refused_after_its_answer(api, short, monkeypatch):
    durable = held_appends(api, monkeypatch)
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        writer.write(request() + b"NONSENSE\r\n\r\n")
        await loop_turns()
        durable.set()
        assert (await asyncio.wait_for(read_answer(reader), 30))[0] == "HTTP/1.1 200 OK"
        assert (await asyncio.wait_for(read_answer(reader), 30))[0].startswith("HTTP/1.1 400")
    assert short == [True]


@pytest.mark.parametrize(
    ("error", "status"),
    [(StorageError("broken"), 500), (ThrottledError("full"), 429), (RuntimeError("a bug"), 500)],
    ids=lambda given: type(given).__name__,
)
async def test_an_error_is_returned_counted_and_logged_the_same(api, short, monkeypatch, error, status, capsys):
    async def fail(*_, **__):
        raise error

    monkeypatch.setattr(api.broker.produce.batcher, "_produce", fail)
    configure_logging("info", "json")
    whole = request(X_Request_Id="mine", Logstore_Client_Id="me")
    split = len(whole) - len(ONE)
    answers, logged, counted = [], [], []
    async with listening(api.app) as (port, _):
        for pieces in ((whole,), (whole[:split], whole[split:])):
            async with connected(port) as (reader, writer):
                for piece in pieces:
                    writer.write(piece)
                    await loop_turns()
                answers.append(comparable(await asyncio.wait_for(read_answer(reader), 30)))
            lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
            logged.append([{k: line.get(k) for k in ("event", "request_id", "client_id", "status")} for line in lines])
            counted.append(answered(status))
    assert short == [True]
    assert answers[0] == answers[1]
    assert answers[0][0].startswith(f"HTTP/1.1 {status}")
    assert logged[0] == logged[1]
    assert {"event": "http.answered", "request_id": "mine", "client_id": "me", "status": status} in logged[0]
    assert counted[1] - counted[0] == 1


def answered(status: int) -> float:
    """Return the count over all client labels: earlier tests in a long run may have used up the labels."""
    ours = ('method="POST"', 'route="/topics/{topic}"', f'status="{status}"')
    return sum(
        float(line.rpartition(" ")[2])
        for line in render_metrics().decode().splitlines()
        if line.startswith("logstore_http_requests_total{") and all(label in line for label in ours)
    )


async def test_a_request_in_doubt_gets_an_error_and_another_is_not_disturbed(api, short, monkeypatch):
    durable = held_appends(api, monkeypatch)
    async with (
        listening(api.app) as (port, _),
        connected(port) as (reader, writer),
        connected(port) as (_, gone_writer),
        connected(port) as (other_reader, other_writer),
    ):
        writer.write(request(path="/topics/t?timeout_ms=20"))
        gone_writer.write(request())
        other_writer.write(request())
        assert (await asyncio.wait_for(read_answer(reader), 30))[0].startswith("HTTP/1.1 504")
        gone_writer.transport.abort()
        await loop_turns()
        durable.set()
        assert (await asyncio.wait_for(read_answer(other_reader), 30))[0] == "HTTP/1.1 200 OK"
        writer.write(request(X_Request_Id="next"))
        assert (await asyncio.wait_for(read_answer(reader), 30))[1]["x-request-id"] == "next", "answered twice"
    assert short == [True] * 4
    assert api.app.state.api.requests.reserved == 0


async def test_at_the_bound_of_bytes_in_flight_the_long_way_refuses_it(tmp_path):
    async with running_api(tmp_path / "data", queued_max_request_bytes=4096, max_request_size=4096) as api:
        await api.create_topic("t")
        held = api.app.state.api.requests.reserve(4090)
        async with listening(api.app) as (port, _), connected(port) as (reader, writer):
            writer.write(request())
            status, headers, _ = await asyncio.wait_for(read_answer(reader), 30)
            assert status.startswith("HTTP/1.1 429")
            assert headers["retry-after"]
            held.release()
            writer.write(request())
            assert (await asyncio.wait_for(read_answer(reader), 30))[0] == "HTTP/1.1 200 OK"


@pytest.mark.parametrize("at_once", [True, False], ids=["short way", "long way"])
async def test_records_that_wait_count_with_what_they_hold_and_not_with_their_bodies_alone(
    tmp_path, monkeypatch, at_once
):
    """Send a thousand empty records, which are 3 KB of JSON, and without the scanner a thousand objects until they are
    columns.
    """
    monkeypatch.setattr(native, "NATIVE", None)
    tiny = json.dumps({"records": [{}] * 1000}, separators=(",", ":")).encode()
    limit = 300_000
    async with running_api(tmp_path / "data", queued_max_request_bytes=limit, max_request_size=limit) as api:
        await api.create_topic("t")
        durable = held_appends(api, monkeypatch)

        async def post(port: int) -> str:
            async with connected(port) as (reader, writer):
                sent = request(tiny)
                writer.write(sent if at_once else sent[:-1])
                if not at_once:
                    await loop_turns()
                    writer.write(sent[-1:])
                return (await asyncio.wait_for(read_answer(reader), 30))[0]

        async with listening(api.app) as (port, _):
            first = asyncio.create_task(post(port))
            await eventually_async(lambda: api.app.state.api.requests.reserved > 100 * 1000)
            assert await post(port) == "HTTP/1.1 429 Too Many Requests"
            durable.set()
            assert await first == "HTTP/1.1 200 OK"
            assert await post(port) == "HTTP/1.1 200 OK"
        assert api.app.state.api.requests.reserved == 0


@pytest.mark.usefixtures("transport")
async def test_a_server_that_stops_answers_what_it_has_and_closes(api, short, monkeypatch):
    durable = held_appends(api, monkeypatch)
    async with listening(api.app) as (port, state), connected(port) as (reader, writer):
        writer.write(request())
        await loop_turns()
        for connection in list(state.connections):
            connection.shutdown()
        durable.set()
        status, headers, _ = await asyncio.wait_for(read_answer(reader), 30)
        assert status == "HTTP/1.1 200 OK"
        assert headers["connection"] == "close"
        assert await asyncio.wait_for(reader.read(), 30) == b""
