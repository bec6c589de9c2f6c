"""Bad HTTP inputs at a real store get a 4xx with a JSON error: no trace in the log, no 5xx, no traceback, no memory
lost.

Each table has the requests of one section by their names. ``ELSEWHERE`` names the tests of inputs that need more than a
request and its answer. ``test_bad_input.py`` has more values of some inputs, over HTTP in process.
"""

import asyncio
import copy
import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.api.test_bad_input import (
    BAD_ARROW,
    COMMITS,
    CREATIONS,
    DOCUMENTS,
    FIELDS,
    HEADERS,
    NUMBERS,
    PARTITIONS,
    commit_body,
)
from tests.support.bad_requests import ARROW, BODY_BYTES_MAX, GOOD, JSON, REFUSED, post
from tests.support.eventually import eventually
from tests.support.raw_client import Answer
from tests.support.watched_server import WatchedServer

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
KAFKA_JSON = b"application/vnd.kafka.json.v2+json"
KAFKA_BINARY = b"application/vnd.kafka.binary.v2+json"
CLUSTER = b"{cluster}"
V3 = b"/v3/clusters/" + CLUSTER
RECORDS = b"/topics/t/partitions/0/records"
EVENTS = b"/topics/t/events"
MEMBERS_MAX = 3
#: The allocator keeps this much for the next requests.
GROWTH_BYTES_MAX = 8 * 2**20

# ---- Framing --------------------------------------------------------------------------------------------------------

_SOCKETS = "tests/faults/test_sockets.py"
_SLOW = "tests/faults/test_slow_clients.py"
_FRAMING = "tests/api/test_framing.py"
_INPUT = "tests/api/test_bad_input.py"
_BROKEN = f"{_SOCKETS}::test_broken_framing_is_400_and_the_end_of_the_connection"
_WRONG = f"{_SOCKETS}::test_well_framed_but_wrong_is_4xx_and_the_connection_continues"
_RECORDS = "tests/api/test_records.py"
_SHORT = f"{_FRAMING}::test_a_body_longer_than_declared_does_not_hide_that_its_beginning_is_stored"
ELSEWHERE = {
    "no Content-Length": f"{_FRAMING}::test_without_a_body_the_message_says_so",
    "Content-Length too short": _SHORT,
    "Content-Length too long": f"{_FRAMING}::test_a_body_that_breaks_off_stores_nothing",
    "chunked with bad sizes, trailing garbage": _BROKEN,
    "chunked, cut in the middle": f"{_SOCKETS}::test_a_request_cut_at_each_byte_is_not_stored",
    "both Content-Length and Transfer-Encoding": _BROKEN,
    "gzip body without the header": f"{_INPUT}::test_a_compressed_body_without_the_header_is_not_guessed",
    "gzip bomb": _WRONG,
    "unknown Content-Encoding": f"{_INPUT}::test_content_codings",
    "Expect: 100-continue": f"{_FRAMING}::test_instead_of_100_continue_comes_the_refusal",
    "1 MiB header": f"{_FRAMING}::test_a_head_that_is_too_large_is_431",
    "1000 headers": f"{_FRAMING}::test_a_thousand_headers_are_fine_if_they_are_small",
    "NUL, CR, LF in a header": _BROKEN,
    "HTTP/1.0": f"{_FRAMING}::test_http_1_0_is_answered_and_closed",
    "lower-case and unknown methods": _BROKEN,
    "HEAD": f"{_FRAMING}::test_head_has_no_body_on_the_wire",
    "OPTIONS": f"{_FRAMING}::test_other_forms_of_request_targets_are_answered",
    "pipelining": f"{_FRAMING}::test_pipelined_requests_are_answered_in_order",
    "slow loris": f"{_SLOW}::test_clients_that_send_slowly_are_answered_408_or_closed",
    "body over the limit, declared and not": f"{_FRAMING}::test_a_body_over_the_limit_is_413_declared_or_not",
    "10 000 idle connections": f"{_SOCKETS}::test_idle_connections_do_not_hinder_producers",
    "TLS bytes on the plain port": _BROKEN,
    # Sequences of requests. Transactions do not exist yet; tests/api has the sequences of consumer instances of REST
    # v2.
    "DELETE during a long poll": f"{_RECORDS}::test_a_poll_of_a_topic_that_is_deleted_ends_with_404",
    "DELETE during a stream": "tests/api/test_events.py::test_the_deletion_of_the_topic_is_the_last_event",
    "commit of an unknown or future offset": f"{_INPUT}::test_commits_of_what_is_not_there",
    "seek past the end, below the start": f"{_RECORDS}::test_an_offset_out_of_range_is_416_with_the_range",
}


@pytest.mark.parametrize("sentence", ELSEWHERE)
def test_the_tests_of_other_files_are_there(sentence):
    path, _, name = ELSEWHERE[sentence].partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


# ---- requests -------------------------------------------------------------------------------------------------------


def get(path: bytes, *headers: bytes, method: bytes = b"GET") -> bytes:
    return b"\r\n".join((b"%b %b HTTP/1.1\r\nHost: localhost" % (method, path), *headers, b"", b""))


def text(name: object) -> str:
    return str(name)[:60]


_ODD_TOPICS = [
    b"%2F",
    b"t%2Fpartitions",
    b"..",
    b"%2e%2e",
    b"%00",
    b"t%00",
    b"%zz",
    b"%",
    b"%ff",
    b"%C3%28",
    b"\xc3\xa4",
]
# Cyrillic and fullwidth letters that look like t, a zero-width space, a combining mark.
_ODD_TOPICS += [b"%D1%82", b"%EF%BD%94", b"t%E2%80%8B", b"t%CC%81", b"T", b"t%20", b"t.", b"_delta_log", b"x" * 10_000]
_NAMES = [".", "..", "", "x" * 250, "a b", "a/b", "\u0442", "t\u0000", "t\n", "_delta_log", "\ud83d\ude00", "a\\b", "*"]
PATH = {
    **{f"topic {name[:20]!r}": post(GOOD, path=b"/topics/" + name) for name in _ODD_TOPICS},
    **{f"read of topic {name[:20]!r}": get(b"/topics/" + name + b"/partitions") for name in _ODD_TOPICS},
    **{f"stream of topic {name[:20]!r}": get(b"/topics/" + name + b"/events") for name in _ODD_TOPICS},
    **{f"group {name[:20]!r}": get(b"/groups/" + name + b"/lag") for name in _ODD_TOPICS},
    **{
        f"path {path[:30]!r}": post(GOOD, path=path)
        for path in (
            b"//topics/t",
            b"/topics//t",
            b"/topics/t//",
            b"/topics//",
            b"/",
            b"/topics/t//partitions/0",
            b"/../t",
        )
    },
    **{f"partition {text(p)}": post(GOOD, path=b"/topics/t/partitions/" + p.encode()) for p in PARTITIONS},
    **{f"read of partition {text(p)}": get(b"/topics/t/partitions/%b/records" % p.encode()) for p in PARTITIONS},
    **{f"stream of partition {text(p)}": get(EVENTS + b"?partition=" + p.encode()) for p in PARTITIONS if p != "2"},
    **{
        f"create topic {text(name)!r}": post(json.dumps({"topic_name": name}).encode(), path=V3 + b"/topics")
        for name in [*_NAMES, "__consumer_offsets", "t"]
    },
    "produce to __consumer_offsets": post(GOOD, path=b"/topics/__consumer_offsets"),
    "delete __consumer_offsets": get(V3 + b"/topics/__consumer_offsets", method=b"DELETE"),
}
QUERY = {
    **{
        f"{name}={text(number)}": get(RECORDS + b"?%b=%b" % (name.encode(), number.encode()))
        for name in ("offset", "max_bytes", "max_wait_ms")
        for number in NUMBERS
    },
    **{f"timeout_ms={text(n)}": post(GOOD, path=b"/topics/t?timeout_ms=" + n.encode()) for n in [*NUMBERS, "0"]},
    "timeout_ms without a value": post(GOOD, path=b"/topics/t?timeout_ms"),
    "timeout_ms twice": post(GOOD, path=b"/topics/t?timeout_ms=1000&timeout_ms=1000"),
    "max_bytes twice": get(RECORDS + b"?max_bytes=1&max_bytes=1"),
    "max_bytes without a value": get(RECORDS + b"?max_bytes"),
    "unknown": get(RECORDS + b"?timeout=1"),
    "of a route without any": get(b"/topics?x=1"),
    "no UTF-8": get(b"/groups/g/offsets?topic=%ff"),
}
_TYPES = [b"", b"*/*", b"application/*", b"text/plain", b"application/json, text/plain", b"json"]
_TYPES += [
    b"application/vnd.kafka.json.v3+json",
    b"application/vnd.kafka.avro.v2+json",
    b"application/json; charset=utf-16",
]
_ACCEPTS = [b"text/html", b"application/json;q=0", b"*/*;q=0", b"application/json;q=2", b"nonsense", b";", b","]
_ACCEPTS += [b", ".join(b"application/x%d" % n for n in range(200))]
TYPES = {
    "no Content-Type": b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
    % (len(GOOD), GOOD),
    **{f"Content-Type {kind!r}": post(GOOD, kind=kind) for kind in _TYPES},
    **{
        f"Content-Type {kind!r} of a commit": post(commit_body(), path=b"/groups/g/offsets", kind=kind)
        for kind in _TYPES
    },
    **{f"Accept {text(kind)}": post(GOOD, b"Accept: " + kind) for kind in _ACCEPTS},
    **{f"Accept {text(kind)} of records": get(RECORDS, b"Accept: " + kind) for kind in _ACCEPTS},
    **{f"Accept {text(kind)} of events": get(EVENTS, b"Accept: " + kind) for kind in _ACCEPTS},
    **{f"Accept {text(kind)} of groups": get(b"/groups", b"Accept: " + kind) for kind in _ACCEPTS},
    "gzip body without the header": post(gzip.compress(GOOD, mtime=0)),
    "unknown Content-Encoding": post(GOOD, b"Content-Encoding: br"),
}
_LARGE = b'{"records":[' + b",".join([b"{}"] * 100_000) + b",null]}"
#: No route takes these, whatever it is for. A lone surrogate and an unbounded number are in the place of a field.
_NO_DOCUMENTS = {
    "empty": b"",
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "invalid UTF-8": b'{"\xff":1}',
    "lone surrogate": b'{"\\ud800":1}',
    "NaN": b'{"a":NaN}',
    "1e400": b'{"a":1e400}',
    "10^5000": b'{"a":1' + b"0" * 5_000 + b"}",
    "-0": b"-0",
    "depth 100 000": b"[" * 100_000,
    "depth 100 000 of objects": b'{"a":' * 100_000,
    "10^6 keys": b"{" + b",".join(b'"%d":1' % n for n in range(80_000)) + b"}",
    "trailing comma": b'{"a":1,}',
    "comment": b"{} // no",
    "two documents": b"{}{}",
    "null": b"null",
    "scalar": b"1",
    "array": b"[]",
}


def documents(path: bytes, kind: bytes) -> dict[str, bytes]:
    return {
        f"{name} to {path.decode()} as {kind.decode()}": post(body, path=path, kind=kind)
        for name, body in _NO_DOCUMENTS.items()
    }


JSON_TEXTS = {
    **{
        f"{name} as {kind.decode()}": post(body, kind=kind)
        for name, body in DOCUMENTS.items()
        for kind in (JSON, KAFKA_BINARY)
    },
    **{
        f"{field} {text(value)} as {kind.decode()}": post(
            f'{{"records":[{{"value":"aGk=","{field}":{value}}}]}}'.encode(), kind=kind
        )
        for field, values in FIELDS.items()
        for value in values
        for kind in (KAFKA_JSON, KAFKA_BINARY)
    },
    **{f"header {header}": post(json.dumps({"records": [{"headers": [header]}]}).encode()) for header in HEADERS},
    **{
        f"Arrow: {name}": post(body, kind=ARROW)
        for name, body in BAD_ARROW.items()
        if "large" not in name and "bomb" not in name
    },
    **{f"creation {body[:40]!r}": post(body, path=V3 + b"/topics") for body in CREATIONS},
    **{f"commit {name}": post(body, path=b"/groups/g/offsets") for name, body in COMMITS.items()},
    **documents(b"/groups/g/join", JSON),
    **documents(b"/groups/g/consumer-heartbeat", JSON),
    **documents(b"/fetch", JSON),
    **documents(V3 + b"/topics/t/records:batch", JSON),
    **documents(V3 + b"/topics/t/configs:alter", JSON),
    "10^5 records, and one that is none": post(_LARGE),
}
_MEMBER = {"member_id": "m", "generation": 1}
_JOINING = {"member_id": "m", "protocols": [{"name": "range", "metadata": "AAA="}]}
_BEATING = {"member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000, "subscribed_topics": ["t"], "owned": []}
_UUID = "00000000-0000-0000-0000-000000000000"


def member(path: str, **fields: object) -> bytes:
    base = {"join": _JOINING, "consumer-heartbeat": _BEATING, "leave": {}}.get(path, _MEMBER)
    return post(json.dumps({**base, **fields}).encode(), path=f"/groups/g/{path}".encode())


MEMBERS = {
    "join without protocols": member("join", protocols=[]),
    "join with 33 protocols": member("join", protocols=[{"name": f"p{n}", "metadata": ""} for n in range(33)]),
    "join with a session of 1 ms": member("join", session_timeout_ms=1),
    "join with a session of 24 days": member("join", session_timeout_ms=2**31 - 1),
    "join with an empty id": member("join", member_id=""),
    "join with an id of 401 letters": member("join", member_id="m" * 401),
    "join with metadata that is no base64": member("join", protocols=[{"name": "range", "metadata": "a§"}]),
    "join with metadata of a lone surrogate": member("join", protocols=[{"name": "range", "metadata": "\ud800"}]),
    "join to a group without a name": post(json.dumps(_JOINING).encode(), path=b"/groups//join"),
    "join to a group of 32,768 letters": post(json.dumps(_JOINING).encode(), path=b"/groups/%b/join" % (b"g" * 32_768)),
    "sync of a stranger": member("sync"),
    "sync with assignments that are none": member("sync", assignments=[{"member_id": "m", "assignment": 1}]),
    "heartbeat of a stranger": member("heartbeat"),
    "heartbeat of generation 2^31": member("heartbeat", generation=2**31),
    "leave of nobody": member("leave", members=[]),
    "leave of 1001": member("leave", members=[{"member_id": f"m{n}"} for n in range(1_001)]),
    "commit of a stranger": post(commit_body()[:-1] + b',"member_id":"m","generation":7}', path=b"/groups/g/offsets"),
    "beat of a stranger": member("consumer-heartbeat", member_epoch=5),
    "beat of epoch -3": member("consumer-heartbeat", member_epoch=-3),
    "beat without topics": member("consumer-heartbeat", subscribed_topics=None),
    "beat with an assignor that is none": member("consumer-heartbeat", server_assignor="sticky"),
    "beat with pattern (": member("consumer-heartbeat", subscribed_topics=None, subscribed_regex="("),
    "beat that owns at once": member("consumer-heartbeat", owned=[{"topic_id": _UUID, "partition": 0}]),
    "beat that owns no topic": member("consumer-heartbeat", owned=[{"topic_id": "t", "partition": 0}]),
    "beat that owns partition -1": member("consumer-heartbeat", owned=[{"topic_id": _UUID, "partition": -1}]),
}
_IDS = [
    b"nonsense",
    b"1:0",
    b"0:-1",
    b"0:1e3",
    b"0:%d" % 2**63,
    b"0:99",
    b"0:0,0:0",
    b"00000000.0:0",
    b"0:",
    b":",
]
_IDS += [b"0:0," * 10_000, b"\xff", b"0:0;", b"0 :0", b"+0:0", b"00:0", b"0" * 5_000 + b":0"]
STREAMS = {
    **{f"Last-Event-ID {text(given)}": get(EVENTS, b"Last-Event-ID: " + given) for given in _IDS},
    **{
        f"from {text(given)}": get(EVENTS + b"?from=" + given.replace(b"\xff", b"%ff").replace(b" ", b"%20"))
        for given in [*_IDS, b"sometimes", b"earliest,latest", b"-1"]
    },
    **{
        f"?{query.decode()}": get(EVENTS + b"?" + query)
        for query in (
            b"partition=",
            b"partition=0,",
            b"partition=0,1",
            b"partition=%d" % 2**64,
            b"partition=0&partition=0",
            b"partition=" + b",".join(b"%d" % n for n in range(300)),
            b"key=no-base64&format=binary",
            b"key_format=string",
            b"key=a&key_format=avro",
            b"format=avro",
            b"isolation_level=2",
            b"offset=0",
        )
    },
    "of another topic id": get(EVENTS, b"Logstore-Topic-Id: " + _UUID.encode()),
}
_V3_RECORDS = V3 + b"/topics/t/records"
TYPED = {
    "AVRO": post(b'{"value":{"type":"AVRO","data":"x"}}', path=_V3_RECORDS),
    "schema": post(b'{"value":{"schema_id":1,"data":1}}', path=_V3_RECORDS),
    "binary that is no base64": post(b'{"value":{"type":"BINARY","data":"a"}}', path=_V3_RECORDS),
    "text that is none": post(b'{"value":{"type":"STRING","data":1}}', path=_V3_RECORDS),
    "partition text": post(b'{"partition_id":"0","value":null}', path=_V3_RECORDS),
    "partition 7": post(b'{"partition_id":7}', path=_V3_RECORDS),
    "time that is none": post(b'{"timestamp":"soon"}', path=_V3_RECORDS),
    "time before 1970": post(b'{"timestamp":-1}', path=_V3_RECORDS),
    "header without a name": post(b'{"headers":[{"value":"aGk="}]}', path=_V3_RECORDS),
    "empty": post(b"", path=_V3_RECORDS),
    "array": post(b"[]", path=_V3_RECORDS),
    "cut short": post(b'{"value":', path=_V3_RECORDS),
    "depth 100 000": post(b'{"value":' * 100_000, path=_V3_RECORDS),
    "other cluster": post(b"{}", path=b"/v3/clusters/other/topics/t/records"),
    "batch of none": post(b'{"entries":[]}', path=_V3_RECORDS + b":batch"),
    "batch of 1001": post(
        json.dumps({"entries": [{"id": f"{n}"} for n in range(1_001)]}).encode(), path=_V3_RECORDS + b":batch"
    ),
    "batch with an id twice": post(b'{"entries":[{"id":"1"},{"id":"1"}]}', path=_V3_RECORDS + b":batch"),
    "batch with an id of 81 letters": post(b'{"entries":[{"id":"%b"}]}' % (b"1" * 81), path=_V3_RECORDS + b":batch"),
}
#: Bad numbers in the headers of idempotent producers. test_idempotence.py has the sequences.
_P = b"Logstore-Producer-"
_NUMBERS_OF_PRODUCERS = [b"-1", b"", b"x", b"1.0", b"%d" % 2**63, b"1" * 400, b"+1"]
PRODUCERS = {
    **{
        f"id {n[:20]!r}": post(GOOD, _P + b"Id: " + n, _P + b"Epoch: 0", b"Logstore-Base-Sequences: 0:0")
        for n in _NUMBERS_OF_PRODUCERS
    },
    **{
        f"epoch {n[:20]!r}": post(GOOD, _P + b"Id: 1", _P + b"Epoch: " + n, b"Logstore-Base-Sequences: 0:0")
        for n in [*_NUMBERS_OF_PRODUCERS, b"32768"]
    },
    **{
        f"sequence {n[:20]!r}": post(GOOD, _P + b"Id: 1", _P + b"Epoch: 0", b"Logstore-Base-Sequences: 0:" + n)
        for n in [*_NUMBERS_OF_PRODUCERS, b"%d" % 2**31]
    },
    "id without epoch": post(GOOD, _P + b"Id: 1"),
    "gap": post(GOOD, _P + b"Id: 1", _P + b"Epoch: 0", b"Logstore-Base-Sequences: 0:7"),
    "pid of another client": post(b'{"producer_id":9223372036854775807,"producer_epoch":-1}', path=b"/producers"),
}
TABLES = {
    "framing": REFUSED,
    "path": PATH,
    "query": QUERY,
    "types": TYPES,
    "JSON": JSON_TEXTS,
    "members": MEMBERS,
    "streams": STREAMS,
    "records of v3": TYPED,
    "producers": PRODUCERS,
}


# ---- the store ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServer]:
    data = tmp_path_factory.mktemp("inputs") / "data"
    with WatchedServer(
        data, max_request_size=BODY_BYTES_MAX, group_max_size=MEMBERS_MAX, group_initial_rebalance_delay_ms=0
    ) as running:
        yield running


def state(server: WatchedServer) -> dict[str, Any]:
    """Return all that a request may have left behind: topics with their ends and configurations, and groups."""
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as http:
        topics = http.get("/topics").json()
        ends = {name: http.get(f"/topics/{name}").json() for name in topics}
        for described in ends.values():
            for partition in described["partitions"]:
                # A roll in between may change these.
                for name in ("segments", "size_bytes", "unsealed_bytes", "sealed_offset"):
                    del partition[name]
        return {"topics": ends, "groups": http.get("/groups").json()}


def cluster_of(server: WatchedServer) -> bytes:
    return httpx.get(f"{server.url}/v3/clusters", timeout=30).json()["data"][0]["cluster_id"].encode()


def refused(answer: Answer | None) -> bool:
    """Return whether the request was refused. ``RawClient.answer`` has checked that errors have the one shape and are
    no 5xx, without a traceback.
    """
    if answer is None:
        return False
    if answer.status == 200 and answer.body.startswith(b'{"error_code":4'):
        return True  # a stream of records has begun, and reports each
    if answer.status == 207:
        return not answer.json["successes"]
    return 400 <= answer.status < 500


async def not_refused(server: WatchedServer, table: dict[str, bytes]) -> dict[str, Answer | None]:
    cluster = cluster_of(server)
    found: dict[str, Answer | None] = {}
    entries = iter(table.items())

    async def send() -> None:
        for name, data in entries:
            async with server.connected() as client:
                await client.send(data.replace(CLUSTER, cluster, 1))
                answer = await client.answer()
                if not refused(answer):
                    found[name] = answer

    async with asyncio.TaskGroup() as senders:
        for _ in range(4):
            senders.create_task(send())
    return found


@pytest.mark.parametrize("section", TABLES)
def test_all_of_a_section_is_refused_and_leaves_no_trace(server, section):
    before = state(server)
    assert asyncio.run(not_refused(server, TABLES[section])) == {}
    assert state(server) == before
    server.check()


# ---- every field ----------------------------------------------------------------------------------------------------

_VALUES = (None, True, -1, 1.5, 2**63, "", "\u0000", "text", [], [None], {}, {"unknown": 1})


def spots(
    schema: dict[str, Any], value: Any, schemas: dict[str, Any], at: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all fields that ``schema`` has, at each level that ``value`` has."""
    while "$ref" in schema or "anyOf" in schema:
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rpartition("/")[2]]
        else:
            schema = next(part for part in schema["anyOf"] if part.get("type") != "null")
    if isinstance(value, list) and value and "items" in schema:
        yield from spots(schema["items"], value[0], schemas, (*at, 0))
    # Any other field is any JSON, as the value of a record is.
    if isinstance(value, dict) and "properties" in schema:
        yield (*at, "unknown")
        for name, part in schema["properties"].items():
            yield (*at, name)
            if value.get(name):
                yield from spots(part, value[name], schemas, (*at, name))


def with_value(body: Any, at: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    place = changed
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = value
    return changed


def without(body: Any, at: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(body)
    place = changed
    for key in at[:-1]:
        place = place[key]
    place.pop(at[-1], None)
    return changed


def wrong_bodies(document: dict[str, Any]) -> dict[str, bytes]:
    """Return wrong bodies: each operation's example, with each field of each level wrong, missing, or unknown."""
    found: dict[str, bytes] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None:
                continue
            values = {p["name"]: p["example"] for p in operation["parameters"] if p["in"] == "path"}
            values |= {"cluster_id": CLUSTER.decode(), "topic": "t", "group": "g"}
            where = path.format(**values).encode()
            fits = jsonschema.Draft202012Validator({**content["schema"], "components": document["components"]})
            schemas = document["components"]["schemas"]
            for at in spots(content["schema"], content["example"], schemas):
                bodies = {f"{value!r}": with_value(content["example"], at, value) for value in _VALUES}
                bodies["missing"] = without(content["example"], at)
                for name, body in bodies.items():
                    if not fits.is_valid(body) or (at[-1] == "unknown" and name != "missing"):
                        data = post(json.dumps(body).encode(), path=where)
                        found[f"{operation['operationId']} {at} {name}"] = data.replace(
                            b"POST", method.upper().encode(), 1
                        )
    return found


def test_every_field_of_every_body_wrong_missing_and_unknown(server):
    table = wrong_bodies(httpx.get(f"{server.url}/openapi.json", timeout=30).json())
    assert len(table) > 1_000
    before = state(server)
    assert asyncio.run(not_refused(server, table)) == {}
    assert state(server) == before
    server.check()


# ---- sequences ------------------------------------------------------------------------------------------------------


def test_one_of_many_concurrent_creations_succeeds(server):
    async def run() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
            path = (V3 + b"/topics").replace(CLUSTER, cluster_of(server)).decode()
            answers = await asyncio.gather(*(http.post(path, json={"topic_name": "at-once"}) for _ in range(20)))
            assert (await http.delete(f"{path}/at-once")).status_code == 204
            return sorted(answer.status_code for answer in answers)

    assert asyncio.run(run()) == [201] + [400] * 19


def test_names_that_some_disk_or_metric_takes_for_one(server):
    """Create topics at once whose names differ only by case, or by ``.`` and ``_``, which metrics do not tell apart:
    one is made.
    """
    names = [f"{a}{x}one{y}b{z}c" for a, x, y, z in itertools.product("aA", "._", "._", "._")]

    async def run() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
            path = (V3 + b"/topics").replace(CLUSTER, cluster_of(server)).decode()
            answers = await asyncio.gather(*(http.post(path, json={"topic_name": name}) for name in names))
            assert sorted(answer.status_code for answer in answers) == [201] + [400] * 15
            (made,) = [name for name, answer in zip(names, answers, strict=True) if answer.status_code == 201]
            for name in names:
                expected = 200 if name == made else 404
                assert (await http.get(f"/topics/{name}")).status_code == expected
                produced = await http.post(f"/topics/{name}", json={"records": [{"value": name}]})
                assert produced.status_code == expected
                again = await http.post(path, json={"topic_name": name})
                assert (again.status_code, again.json()["error_code"]) == (400, 40002)
            read = await http.get(f"/topics/{made}/partitions/0/records?offset=0")
            assert [record["value"] for record in read.json()] == [made]
            assert (await http.delete(f"{path}/{made}")).status_code == 204
            other = next(name for name in names if name != made)
            assert (await http.post(path, json={"topic_name": other})).status_code == 201
            assert (await http.get(f"/topics/{other}/partitions/0/records?offset=0")).json() == []
            assert (await http.delete(f"{path}/{other}")).status_code == 204

    asyncio.run(run())
    server.check()


def test_names_of_249_letters_are_topics_as_any_other(server):
    names = ["n" * 248 + letter for letter in "ab"]
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        path = (V3 + b"/topics").replace(CLUSTER, cluster_of(server)).decode()
        for name in names:
            assert http.post(path, json={"topic_name": name, "partitions_count": 2}).status_code == 201
            assert http.post(f"/topics/{name}", json={"records": [{"value": name, "partition": 1}]}).status_code == 200
            assert http.post(f"/topics/{name}/roll").status_code == 200
            commit = {"offsets": [{"topic": name, "partition": 1, "offset": 1}]}
            assert http.post(f"/groups/{name}/offsets", json=commit).status_code == 200
        for name in names:
            read = http.get(f"/topics/{name}/partitions/1/records?offset=0").json()
            assert [(record["value"], record["offset"]) for record in read] == [(name, 0)]
            assert http.get(f"/groups/{name}/lag").json()["total_lag"] == 0
            assert http.delete(f"/groups/{name}").status_code == 204
            assert http.delete(f"{path}/{name}").status_code == 204
        refusal = http.post(path, json={"topic_name": "n" * 250})
        assert (refusal.status_code, refusal.json()["error_code"]) == (400, 40002)
    server.check()


def test_a_topic_that_is_made_again_under_its_producers_and_readers(server):
    """Check that a request with the topic's id gets that topic or 404, and never a record of another topic of that
    name.
    """
    id_header, rounds = "Logstore-Topic-Id", 8

    async def run() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
            path = (V3 + b"/topics").replace(CLUSTER, cluster_of(server)).decode()
            stored: dict[str, list[int]] = {}
            statuses: set[tuple[int, int]] = set()
            current = ""
            ended = False

            async def make() -> None:
                nonlocal current
                assert (await http.post(path, json={"topic_name": "again"})).status_code == 201
                current = (await http.get("/topics/again")).json()["topic_id"]

            async def asked(method: str, rest: str, topic_id: str, **options: Any) -> httpx.Response:
                answer = await http.request(method, f"/topics/again/{rest}", headers={id_header: topic_id}, **options)
                if answer.status_code != 200:
                    statuses.add((answer.status_code, answer.json()["error_code"]))
                return answer

            async def produce() -> None:
                while not ended:
                    topic_id, records = current, [{"value": current}]
                    answer = await asked("POST", "partitions/0", topic_id, json={"records": records})
                    if answer.status_code == 200:
                        stored.setdefault(topic_id, []).append(answer.json()["offsets"][0]["offset"])

            async def read(rest: str) -> int:
                count = 0
                while not ended:
                    topic_id, offset = current, 0
                    while topic_id == current and not ended:
                        answer = await asked("GET", f"partitions/0/records?offset={offset}&{rest}", topic_id)
                        if answer.status_code != 200:
                            break
                        records = answer.json()
                        assert all(record["value"] == topic_id for record in records), "of another topic"
                        assert [record["offset"] for record in records] == list(range(offset, offset + len(records)))
                        offset, count = offset + len(records), count + len(records)
                return count

            await make()
            async with asyncio.TaskGroup() as tasks:
                producers = [tasks.create_task(produce()) for _ in range(2)]
                readers = [tasks.create_task(read(rest)) for rest in ("max_wait_ms=0", "max_wait_ms=500")]
                for number in range(rounds):
                    await asyncio.sleep(0.2)
                    if number % 2:
                        assert (await http.post("/topics/again/roll")).status_code == 200
                    assert (await http.delete(f"{path}/again")).status_code == 204
                    await make()
                await asyncio.sleep(0.2)
                ended = True
            assert all(task.result() is None for task in producers)
            assert all(reader.result() > 0 for reader in readers)
            assert statuses <= {(404, 40401), (404, 40406)}, statuses
            assert len(stored) > rounds // 2
            assert all(sorted(offsets) == list(range(len(offsets))) for offsets in stored.values())
            end = (await http.get("/topics/again/partitions/0/offsets")).json()["end_offset"]
            assert end == len(stored[current])
            assert (await http.delete(f"{path}/again")).status_code == 204

    asyncio.run(run())
    server.check()


@pytest.mark.parametrize("path", ["join", "consumer-heartbeat"])
def test_a_flood_of_members_is_refused_at_group_max_size(server, path):
    async def run() -> list[tuple[int, int]]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False, limits=limits) as http:
            base = _JOINING if path == "join" else _BEATING
            own = {"session_timeout_ms": 6_000, "rebalance_timeout_ms": 1_000} if path == "join" else {}
            asked = [http.post(f"/groups/{path}/{path}", json={**base, **own, "member_id": f"m{n}"}) for n in range(60)]
            answers = await asyncio.gather(*asked)
            members = (await http.get(f"/groups/{path}")).json()["members"]
            # The group has removed members that did not come back within their rebalance timeout.
            assert (0 if path == "join" else 1) <= len(members) <= MEMBERS_MAX
            leaving = {"members": [{"member_id": member["member_id"]} for member in members]}
            if path == "join" and members:
                assert (await http.post(f"/groups/{path}/leave", json=leaving)).status_code == 200
            elif path != "join":
                for member in members:
                    body = {"member_id": member["member_id"], "member_epoch": -1}
                    assert (await http.post(f"/groups/{path}/{path}", json=body)).status_code == 200
            assert (await http.delete(f"/groups/{path}")).status_code == 204
            return [(answer.status_code, answer.json().get("error_code", 0)) for answer in answers]

    answers = asyncio.run(run())
    # A member that joined a generation before may have to join again.
    assert set(answers) <= {(200, 0), (409, 40923), (409, 40917)}
    assert answers.count((409, 40923)) > 30


def test_a_pattern_without_end_costs_no_time(server):
    """Subscribe to (a+)+$, a pattern like any other for RE2, which does not backtrack. Nothing matches it here."""
    body = {**_BEATING, "subscribed_topics": None, "subscribed_regex": "(a+)+$"}
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        assert http.post("/groups/pattern/consumer-heartbeat", json=body).status_code == 200
        left = {"member_id": "m", "member_epoch": -1}
        assert http.post("/groups/pattern/consumer-heartbeat", json=left).status_code == 200
        assert http.delete("/groups/pattern").status_code == 204


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_memory_files_and_threads_are_back_to_before(server):
    """Compare memory, files and threads after each run of all tables; the first run fills caches and thread pools.

    The allocator takes memory in large steps now and then, whereas memory that requests lose is lost in each run.
    """
    everything = dict(itertools.chain.from_iterable(table.items() for table in TABLES.values()))
    seen = []
    for _ in range(4):
        asyncio.run(not_refused(server, everything))
        seen.append(server.settled())
    growths = [after.rss_bytes - before.rss_bytes for before, after in itertools.pairwise(seen)]
    assert min(growths) < GROWTH_BYTES_MAX
    eventually(lambda: server.resources().files <= seen[0].files, "descriptors are left")
    server.check()
