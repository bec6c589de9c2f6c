"""A produce request in REST v3 shapes gets a report for each record, in order, whatever happens to the others."""

import asyncio
import base64
import json
import socket

import httpx
import msgspec
import pytest

from logstore.protocol.messages.records import RecordBatchAnswer, RecordReport
from tests.api.api_client import BINARY_V2, assert_error, running_api
from tests.api.real_server import RealServer

pytestmark = pytest.mark.anyio


def url(api, topic: str = "t", tail: str = "records") -> str:
    return f"{api.topics_url}/{topic}/{tail}"


def record(data, kind: str = "JSON", **fields) -> str:
    return json.dumps({"value": {"type": kind, "data": data}, **fields})


async def send(api, body: str | bytes, topic: str = "t") -> list[dict]:
    answer = await api.post(url(api, topic), content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_one_record_with_everything_comes_back_as_it_was(api):
    await api.create_topic("t", partitions=2)
    (report,) = await send(
        api,
        record(
            {"a": 1.0},
            key={"type": "BINARY", "data": "AAE="},
            partition_id=1,
            headers=[{"name": "h", "value": "/w=="}, {"name": "n", "value": None}],
            timestamp="2021-02-05T19:14:42Z",
        ),
    )
    msgspec.convert(report, RecordReport)
    assert report == {
        "error_code": 200,
        "cluster_id": api.broker.cluster_id,
        "topic_name": "t",
        "partition_id": 1,
        "offset": 0,
        "timestamp": "2021-02-05T19:14:42.000Z",
        "key": {"type": "BINARY", "size": 2},
        "value": {"type": "JSON", "size": 10},
    }
    (stored,) = (await api.fetch("t", partition=1, offset=0, accept=BINARY_V2)).json()
    assert base64.b64decode(stored["key"]) == b"\x00\x01"
    assert base64.b64decode(stored["value"]) == b'{"a": 1.0}'
    assert stored["headers"] == [{"key": "h", "value": "/w=="}, {"key": "n", "value": None}]
    assert stored["timestamp"] == 1_612_552_482_000


async def test_many_records_have_reports_in_their_order_and_bad_ones_an_error_each(api):
    await api.create_topic("t", max_message_bytes="1000")
    good = [record(n) for n in range(1200)]
    bad = record(1, "AVRO"), record("x" * 1001), record(1, partition_id=9), '{"valu":1}'
    body = [*good[:3], *bad[:2], *good[3:7], *bad[2:], *good[7:]]
    reports = await send(api, "\n".join(body))
    assert len(reports) == len(body)
    codes = [report["error_code"] for report in reports]
    assert {at: code for at, code in enumerate(codes) if code != 200} == {3: 42206, 4: 41302, 9: 40402, 10: 42206}
    assert "send the value as one of BINARY, JSON, STRING" in reports[3]["message"]
    assert [report["offset"] for report in reports if report["error_code"] == 200] == list(range(1200))
    assert await api.values("t") == list(range(1200))


async def test_a_record_without_a_key_is_refused_alone_in_a_compacted_topic(api):
    await api.create_topic("t", cleanup_policy="compact")
    key = {"type": "STRING", "data": "k"}
    reports = await send(api, record(1, key=key) + record(2) + record(None, key=key))
    assert [report["error_code"] for report in reports] == [200, 42206, 200]
    assert [report.get("offset") for report in reports] == [0, None, 1]
    assert reports[2]["value"] == {"type": "JSON", "size": 0}
    assert await api.values("t") == [1, None]


async def test_the_store_reports_no_time_that_it_has_not_given_yet(api):
    await api.create_topic("t", message_timestamp_type="LogAppendTime")
    (report,) = await send(api, "{}")
    assert (report["timestamp"], report["key"], report["value"]) == (None, None, None)


async def test_a_malformed_record_ends_the_stream(api):
    await api.create_topic("t")
    reports = await send(api, record(1) + record(2) + ", " + record(3))
    assert [report["error_code"] for report in reports] == [200, 200, 42206]
    reports = await send(api, record(3) + record(4)[:-1])
    assert [report["error_code"] for report in reports] == [200, 42206]
    assert "not stored" in reports[1]["message"]
    assert await api.values("t") == [1, 2, 3]


@pytest.mark.parametrize("body", ["", "  \n", "[]", "null", "nonsense", '{"value":', "\x00"])
async def test_a_body_without_a_record_is_refused_as_a_whole(shared_api, body):
    answer = await shared_api.post(
        url(shared_api, "untouched"), content=body, headers={"Content-Type": "application/json"}
    )
    assert_error(answer, 422, 42206 if body.strip() else 422)
    assert await shared_api.values("untouched") == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json", "Accept": "text/csv"}, 406),
    ],
)
async def test_other_types_are_refused(shared_api, headers, status):
    answer = await shared_api.post(url(shared_api, "untouched"), content="{}", headers=headers)
    assert_error(answer, status, status)


async def test_a_topic_a_cluster_and_parameters_that_are_not_there(shared_api):
    json_type = {"Content-Type": "application/json"}
    for tail, body in (("records", "{}"), ("records:batch", '{"entries":[{"id":"1"}]}')):
        assert_error(await shared_api.post(url(shared_api, "none", tail), content=body, headers=json_type), 404, 40401)
        other = f"/v3/clusters/other/topics/t/{tail}"
        assert_error(await shared_api.post(other, content=body, headers=json_type), 404, 404)
        more = url(shared_api, "t", tail) + "?acks=1"
        assert_error(await shared_api.post(more, content=body, headers=json_type), 422, 422)


async def test_only_a_good_record_creates_a_topic(tmp_path):
    async with running_api(tmp_path / "data", auto_create_topics_enable=True) as api:
        reports = await send(api, '{"valu":1}', "new")
        assert reports[0]["error_code"] == 42206
        assert (await api.get("/topics")).json() == []
        assert (await send(api, record(1), "new"))[0]["offset"] == 0


# ---- while it streams -----------------------------------------------------------------------------------------------


async def test_reports_come_during_the_body_and_memory_is_given_back(api):
    await api.create_topic("t")
    reported: asyncio.Queue[int] = asyncio.Queue()
    requests = api.broker.admission.requests

    async def body():
        for number in range(5):
            text = record(number).encode()
            yield text[:7]
            yield text[7:]
            # The end of the log moves before the body has ended.
            while len(await api.values("t")) <= number:  # noqa: ASYNC110 - the store's own log
                await asyncio.sleep(0.01)
            reported.put_nowait(number)

    assert [report["offset"] for report in await send(api, body())] == list(range(5))
    assert reported.qsize() == 5
    assert requests.reserved == 0


def connect(server) -> socket.socket:
    cluster_id = httpx.get(f"{server.url}/v3/clusters", timeout=60).json()["data"][0]["cluster_id"]
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    path = f"/v3/clusters/{cluster_id}/topics/t/records"
    head = ["Host: localhost", "Content-Type: application/json", "Transfer-Encoding: chunked"]
    sock.sendall("\r\n".join([f"POST {path} HTTP/1.1", *head, "", ""]).encode())
    return sock


def chunk(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()


def read_until(sock: socket.socket, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        data = sock.recv(65536)
        assert data, found
        found += data
    return found


@pytest.mark.system
def test_a_client_reads_the_report_of_one_record_before_it_sends_the_next(server):
    with connect(server) as sock:
        for number in range(3):
            sock.sendall(chunk(record(number)))
            read_until(sock, b'"offset":%d' % number)
        sock.sendall(b"0\r\n\r\n")
        read_until(sock, b"0\r\n\r\n")
        # The connection can still be used.
        sock.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in read_until(sock, b"\r\n\r\n")


@pytest.mark.system
def test_a_client_that_goes_away_in_the_middle_leaves_whole_records(server):
    before = server.end_offset()
    with connect(server) as sock:
        sock.sendall(chunk(record("whole")))
        read_until(sock, b'"error_code":200')
        sock.sendall(chunk(record("half")[:9]))
    assert server.end_offset() == before + 1


# ---- a batch --------------------------------------------------------------------------------------------------------


async def send_batch(api, entries: list[dict]) -> dict:
    answer = await api.post(url(api, tail="records:batch"), json={"entries": entries})
    assert answer.status_code == 207, answer.text
    msgspec.json.decode(answer.content, type=RecordBatchAnswer)
    return answer.json()


async def test_a_batch_reports_successes_and_failures_by_their_ids(api):
    await api.create_topic("t")
    entries = [
        {"id": "a", "value": {"type": "STRING", "data": "x"}},
        {"id": "b", "value": {"type": "PROTOBUF", "data": "x"}},
        {"id": "c", "value": {"type": "STRING", "data": "y"}, "partition_id": 1},
        {"id": "d", "key": {"type": "JSON", "data": "k"}},
    ]
    told = await send_batch(api, entries)
    assert [(s["id"], s["offset"]) for s in told["successes"]] == [("a", 0), ("d", 1)]
    assert [(f["id"], f["error_code"]) for f in told["failures"]] == [("b", 42206), ("c", 40402)]
    assert "error_code" not in told["successes"][0]


@pytest.mark.parametrize(
    "entries", [[], [{"id": "a"}, {"id": "a"}], [{}], [{"id": ""}], [{"id": str(n)} for n in range(1001)]]
)
async def test_a_batch_that_cannot_be_answered_by_ids_stores_nothing(shared_api, entries):
    answer = await shared_api.post(url(shared_api, "untouched", "records:batch"), json={"entries": entries})
    assert_error(answer, 422, 42206)
    assert await shared_api.values("untouched") == []


# ---- a stream that rests --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.system
def test_a_stream_that_rests_and_one_that_meets_a_stop_end_with_a_report(tmp_path):
    with RealServer(tmp_path / "data", request_body_timeout_ms=2_000) as server:
        server.create_topic("t")
        with connect(server) as sock:
            sock.sendall(chunk(record(1)))
            read_until(sock, b'"error_code":200')
            read_until(sock, b'"error_code":408')
        assert server.stop() == 0
    with RealServer(tmp_path / "data") as server:
        with connect(server) as sock:
            sock.sendall(chunk(record(2)))
            read_until(sock, b'"error_code":200')
            server.process.terminate()
            read_until(sock, b'"error_code":50301')
        assert server.stop() == 0
    with RealServer(tmp_path / "data") as server:
        assert server.end_offset() == 2
