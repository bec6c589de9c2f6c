"""A guard refuses everything: no route, method or way gets past it, and nothing is done."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ingest_api.routers import ROUTERS
from logstore.broker.context import INTERNAL
from logstore.errors import AuthorizationError
from tests.api.api_client import JSON_V2, ApiClient
from tests.api.listening import connected, listening
from tests.support.eventually import loop_turns

pytestmark = pytest.mark.anyio

ONE = {"records": [{"key": "k", "value": 1}]}
_INSTANCE = "/consumers/{group}/instances/{instance}"
#: Bodies that would take effect if they got through. The test fails if a route takes a body and is missing here.
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/topics/{topic}"): ONE,
    ("POST", "/topics/{topic}/partitions/{partition}"): ONE,
    ("POST", "/topics/{topic}/offsets-for-times"): {"partitions": [{"partition": 0, "timestamp": 0}]},
    ("POST", "/topics/{topic}/partitions/{partition}/delete-records"): {"before_offset": 1},
    ("POST", "/fetch"): {"partitions": [{"topic": "t", "partition": 0, "offset": 0}], "max_wait_ms": 0},
    ("POST", "/producers"): None,
    ("POST", "/groups/{group}/offsets"): {"offsets": [{"topic": "t", "partition": 0, "offset": 1}]},
    ("POST", "/groups/{group}/join"): {
        "member_id": "m",
        "protocols": [{"name": "range", "metadata": ""}],
        "session_timeout_ms": 6000,
    },
    ("POST", "/groups/{group}/sync"): {"member_id": "m", "generation": 1},
    ("POST", "/groups/{group}/heartbeat"): {"member_id": "m", "generation": 1},
    ("POST", "/groups/{group}/leave"): {"members": [{"member_id": "of-nobody"}]},
    ("POST", "/groups/{group}/consumer-heartbeat"): {
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1,
        "subscribed_topics": ["t"],
        "owned": [],
    },
    ("POST", "/groups/{group}/reset-offsets"): {"to": "latest"},
    ("POST", "/delete-groups"): {"groups": ["g"]},
    ("POST", "/consumers/{group}"): {"name": "c"},
    ("POST", _INSTANCE + "/subscription"): {"topics": ["t"]},
    ("POST", _INSTANCE + "/assignments"): {"partitions": [{"topic": "t", "partition": 0}]},
    ("POST", _INSTANCE + "/positions"): {"offsets": [{"topic": "t", "partition": 0, "offset": 1}]},
    ("POST", _INSTANCE + "/positions/beginning"): {"partitions": [{"topic": "t", "partition": 0}]},
    ("POST", _INSTANCE + "/positions/end"): {"partitions": [{"topic": "t", "partition": 0}]},
    ("POST", _INSTANCE + "/offsets"): {"offsets": [{"topic": "t", "partition": 0, "offset": 1}]},
    ("GET", _INSTANCE + "/offsets"): {"partitions": [{"topic": "t", "partition": 0}]},
    ("POST", "/topics/{topic}/roll"): None,
    ("POST", "/topics/{topic}/refresh"): None,
    ("POST", "/topics/{topic}/drop-foreign-files"): None,
    ("POST", "/topics/{topic}/columns"): {"columns": "n BIGINT"},
    ("PUT", "/topics/{topic}/columns"): {"columns": "n BIGINT"},
    ("POST", "/topics/{topic}/columns/retire"): {"columns": ["n"]},
    ("POST", "/topics/{topic}/erasures"): {"keys": ["k"]},
    ("POST", "/erasures"): None,
    ("POST", "/erasures/{erasure}/journal"): None,
    ("POST", "/v3/clusters/{cluster_id}/topics"): {"topic_name": "made", "partitions_count": 1},
    ("PATCH", "/v3/clusters/{cluster_id}/topics/{topic}"): {"partitions_count": 5},
    ("POST", "/v3/clusters/{cluster_id}/topics/{topic}/records"): {"value": {"type": "JSON", "data": 1}},
    ("POST", "/v3/clusters/{cluster_id}/topics/{topic}/records:batch"): {"entries": [{"id": "1"}]},
    ("POST", "/v3/clusters/{cluster_id}/topics/{topic}/configs:alter"): {
        "data": [{"name": "segment.ms", "value": "1"}]
    },
    ("PUT", "/v3/clusters/{cluster_id}/topics/{topic}/configs/{name}"): {"value": "1"},
    ("PUT", "/v3/clusters/{cluster_id}/topics/{topic}/partitions/{partition}/reassignment"): {"replicas": [0]},
    ("POST", "/cluster/elect-leaders"): {"election_type": "preferred"},
}
#: The order matters: an instance is created, is subscribed, and is assigned partitions instead.
FIRST = [
    ("POST", "/topics/{topic}/columns"),
    ("POST", "/consumers/{group}"),
    ("POST", _INSTANCE + "/subscription"),
    ("DELETE", _INSTANCE + "/subscription"),
    ("POST", _INSTANCE + "/assignments"),
]
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
#: The group has a member of the consumer protocol, so it refuses requests of classic groups and of groups without
#: members.
REFUSED_BY_THE_GROUP = {
    *(
        ("POST", f"/groups/{{group}}/{request}")
        for request in ("join", "sync", "heartbeat", "offsets", "reset-offsets")
    ),
    ("DELETE", "/groups/{group}"),
}
#: No partition is being reassigned, and no erasure has this id.
NEVER_FOUND = (
    "/v3/clusters/{cluster_id}/topics/{topic}/partitions/{partition}/reassignment",
    "/topics/{topic}/erasures/{erasure}",
    "/erasures/{erasure}/journal",
)
NOT_THERE = ("/", "/nothing", "/topics/", "/topics/t/u/v", "/v3", "//topics/t")


class Sent(NamedTuple):
    method: str
    path: str
    body: bytes

    def head(self, *lines: str) -> bytes:
        given = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost", *lines]
        if self.body:
            given.append(f"Content-Type: {JSON_V2 if self.path.startswith('/topics') else 'application/json'}")
        return "\r\n".join([*given, "", ""]).encode()

    def whole(self, *lines: str) -> bytes:
        return self.head(*lines, f"Content-Length: {len(self.body)}") + self.body


def in_pieces(sent: Sent) -> list[bytes]:
    whole = sent.whole()
    end = whole.index(b"\r\n\r\n") + 4
    return [whole[:7], whole[7:end], whole[end:]]


def in_chunks(sent: Sent) -> list[bytes]:
    chunks = [b"%x\r\n%b\r\n" % (len(sent.body), sent.body)] if sent.body else []
    return [sent.head("Transfer-Encoding: chunked") + b"".join(chunks) + b"0\r\n\r\n"]


#: The ways to send a request: the bytes to write, and the number of requests in them.
WAYS: dict[str, Callable[[Sent], tuple[list[bytes], int]]] = {
    "whole": lambda sent: ([sent.whole()], 1),
    "in pieces": lambda sent: (in_pieces(sent), 1),
    "in chunks": lambda sent: (in_chunks(sent), 1),
    "pipelined": lambda sent: ([sent.whole() * 3], 3),
    "again and again": lambda sent: ([sent.whole()] * 3, 3),
    "named": lambda sent: ([sent.whole("X-Request-Id: 1", "Logstore-Client-Id: me", "Idempotency-Key: x")], 1),
    "with an offer to upgrade": lambda sent: ([sent.whole("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")], 1),
    "before its body is asked for": lambda sent: ([sent.whole("Expect: 100-continue")], 1),
    "the last": lambda sent: ([sent.whole("Connection: close")], 1),
}


def routes(cluster_id: str) -> list[tuple[str, str]]:
    # This group has instances only.
    values = {"/consumers/{group}": "/consumers/rest"}
    values |= {"{topic}": "t", "{partition}": "0", "{group}": "g", "{instance}": "c", "{cluster_id}": cluster_id}
    # Routes of topics and routes of brokers have a {name}, with different values.
    values |= {"brokers/{broker_id}/configs/{name}": "brokers/0/configs/port", "{broker_id}": "0"}
    values |= {"{name}": "retention.ms", "{consumer_id}": "m"}
    found = []
    for template in dict.fromkeys(route.path for router in ROUTERS for route in router.routes):
        path = template
        for parameter, value in values.items():
            path = path.replace(parameter, value)
        found.append((template, path))
    return found


def requests(api: ApiClient) -> list[Sent]:
    """Return requests for every path with every method, and for each way to write a path."""
    existing = {(method, route.path) for router in ROUTERS for route in router.routes for method in route.methods}
    found = []
    for (template, path), method in itertools.product(routes(api.broker.cluster_id), METHODS):
        body = None
        if method in ("POST", "PUT", "PATCH") and (method, template) in existing:
            body = BODIES[method, template]
        found.append(Sent(method, path, b"" if body is None else json.dumps(body).encode()))
    found += [Sent(method, path, b"") for path in NOT_THERE for method in METHODS]
    body = json.dumps(ONE).encode()
    return found + [
        Sent("POST", path, body) for path in ("/topics/%74", "http://localhost/topics/t", "/topics/t?acks=1")
    ]


async def exchange(port: int, pieces: list[bytes], count: int, *, heads_only: bool) -> list[tuple[int, bytes]]:
    """Send the pieces and return the status and body of each answer."""
    async with connected(port) as (reader, writer):
        answers: list[tuple[int, bytes]] = []
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if len(pieces) == count:  # one after another
                answers.append(await read_answer(reader, heads_only))
            else:
                await loop_turns(10)
        while len(answers) < count:
            answers.append(await read_answer(reader, heads_only))
        return answers


async def read_answer(reader: asyncio.StreamReader, heads_only: bool) -> tuple[int, bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode()
    fields = dict(line.lower().split(": ", 1) for line in head.rstrip().split("\r\n")[1:])
    size = 0 if heads_only else int(fields.get("content-length", 0))
    return int(head.split(" ")[1]), await reader.readexactly(size)


def all_that_could_change(api: ApiClient) -> Any:
    topics = [
        (
            topic.name,
            # The store rolls its internal topic by itself after some seconds.
            None if topic.is_internal else topic.version,
            topic.config_overrides,
            [(p.log_start_offset, p.next_offset) for p in topic.partitions],
        )
        for topic in api.broker.topics.served.all(INTERNAL, include_internal=True)
    ]
    groups = api.app.state.api.groups
    return topics, [(group, groups.committed(INTERNAL, group)) for group in groups.groups(INTERNAL)]


@pytest.fixture
async def store(api: ApiClient) -> ApiClient:
    await api.create_topic("t", partitions=2, segment_ms="86400000")
    await api.produce("t", [1, 2])
    offsets = [{"topic": "t", "partition": 0, "offset": 0}]
    assert (await api.post("/groups/g/offsets", json={"offsets": offsets})).status_code == 200
    return api


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_gets_past_a_guard_that_refuses(store, monkeypatch, way):
    asked = []

    def refuse(*given):
        asked.append(given)
        raise AuthorizationError("not by this door")

    monkeypatch.setattr(store.app.guard, "admit", refuse)
    before = all_that_could_change(store)
    async with listening(store.app) as (port, _):
        for sent in requests(store):
            asked.clear()
            pieces, count = WAYS[way](sent)
            answers = await exchange(port, pieces, count, heads_only=sent.method == "HEAD")
            for status, body in answers:
                assert status == 403, (sent, status, body)
                if sent.method != "HEAD":
                    assert json.loads(body) == {"error_code": 40301, "message": "not by this door"}, sent
            assert len(asked) == count, (sent, "is asked for once")
    assert all_that_could_change(store) == before
    assert store.app.state.api.requests.reserved == 0


async def test_the_same_requests_do_their_work_when_the_guard_lets_them(store):
    """Send the same requests with permission; otherwise the refusals above would prove nothing."""
    before = all_that_could_change(store)
    existing = {(method, route.path) for router in ROUTERS for route in router.routes for method in route.methods}
    paths = dict(routes(store.broker.cluster_id))
    others = sorted(
        existing - set(FIRST), key=lambda found: (found[0] == "DELETE", found[1][:3] == "/v3", -len(found[1]))
    )
    for method, template in [*FIRST, *others]:
        if template.endswith("/events"):
            # A stream does not end, so its head is the answer.
            async with listening(store.app) as (port, _):
                [(status, text)] = await exchange(
                    port, [Sent(method, paths[template], b"").whole()], 1, heads_only=True
                )
        else:
            answer = await store.request(method, paths[template], json=BODIES.get((method, template)))
            status, text = answer.status_code, answer.content
        refused_by_group = status == 409 and (method, template) in REFUSED_BY_THE_GROUP
        is_not_there = status == 404 and template in NEVER_FOUND
        assert status < 300 or refused_by_group or is_not_there, (method, template, text)
    assert all_that_could_change(store) != before


async def test_the_short_way_asks_itself(store, monkeypatch):
    """Check that short requests ask the guard themselves; the application behind them does not."""
    taken = []
    begin = store.app.short_requests.begin
    monkeypatch.setattr(store.app.short_requests, "begin", lambda *given: taken.append(begin(*given)) or taken[-1])

    def refuse(*_):
        raise AuthorizationError("not by this door")

    monkeypatch.setattr(store.app.guard, "admit", refuse)
    sent = Sent("POST", "/topics/t", json.dumps(ONE).encode())
    async with listening(store.app) as (port, _):
        assert [status for status, _ in await exchange(port, [sent.whole()] * 3, 3, heads_only=False)] == [403] * 3
    assert taken == [True] * 3


async def test_the_guard_sees_who_asks(store, monkeypatch):
    seen = []
    admit = store.app.guard.admit

    def see(*given):
        seen.append(admit(*given))
        return seen[-1]

    monkeypatch.setattr(store.app.guard, "admit", see)
    sent = Sent("POST", "/topics/t", json.dumps(ONE).encode())
    whole = sent.whole("X-Request-Id: mine", "Logstore-Client-Id: me")
    async with listening(store.app) as (port, _):
        for pieces in ([whole], [whole[:-9], whole[-9:]]):
            ((status, _),) = await exchange(port, pieces, 1, heads_only=False)
            assert status == 200
    short, long = seen
    assert short == long
    assert (short.request_id, short.client_id, short.listener, short.peer) == ("mine", "me", "HTTP", "127.0.0.1")
    assert (str(short.principal), short.tls) == ("User:ANONYMOUS", None)


async def test_over_a_quota_of_requests_the_answer_is_429_with_the_time(store, monkeypatch):
    charged = []

    def charge(context, kind, amount):
        charged.append((kind, amount))
        return 2.5 if len(charged) > 2 else 0.0

    monkeypatch.setattr(store.app.guard.quotas, "charge", charge)
    sent = Sent("POST", "/topics/t", json.dumps(ONE).encode())
    async with listening(store.app) as (port, _):
        answers = await exchange(port, [sent.whole()] * 2, 2, heads_only=False)
    assert [status for status, _ in answers] == [200, 429]
    assert [kind for kind, _ in charged] == ["REQUESTS", "PRODUCED_BYTES", "REQUESTS"]
    answer = await store.get("/topics")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "3")
