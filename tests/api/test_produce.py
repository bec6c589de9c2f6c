import asyncio
import base64
import gzip
import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from ingest_api.record_responses import produced_offsets, produced_ranges
from logstore.broker.context import INTERNAL
from logstore.broker.produce.result import PartitionResponse, ProduceResult
from logstore.protocol.messages.records import ProducedOffsets, ProducedRanges
from tests.api.api_client import ARROW, BINARY_V2, JSON_V2, NDJSON, assert_error, running_api
from tests.support.eventually import eventually_async

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("with_and_without_c")]


def arrow_stream(**columns: list) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def offsets_of(answer) -> list[tuple[int, int]]:
    """Check the v2 shape; return (partition, offset) of each record."""
    msgspec.json.decode(answer.content, type=ProducedOffsets)
    body = answer.json()
    assert set(body) == {"offsets", "key_schema_id", "value_schema_id"}
    for entry in body["offsets"]:
        assert set(entry) == {"partition", "offset", "error_code", "error"}
        assert entry["error_code"] is entry["error"] is None
    return [(entry["partition"], entry["offset"]) for entry in body["offsets"]]


@pytest.mark.parametrize("content_type", [JSON_V2, "application/json", f"{JSON_V2}; charset=utf-8"])
async def test_json_is_stored_as_its_text_and_answered_in_the_v2_shape(api, content_type):
    await api.create_topic("t")
    body = b'{"records":[{"key":"k","value":{"a": 1.0}},{"value":null},{"key": 1e2,"timestamp":7,"value":[ ]}]}'
    answer = await api.post("/topics/t", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/vnd.kafka.v2+json"
    assert offsets_of(answer) == [(0, 0), (0, 1), (0, 2)]

    stored = await api.fetch("t", offset=0)
    assert b'"value":{"a": 1.0}' in stored.content
    assert b'"key":1e2' in stored.content
    first, second, third = stored.json()
    assert (first["key"], second["key"], second["value"]) == ("k", None, None)
    assert third["timestamp"] == 7
    binary = (await api.fetch("t", offset=0, accept=BINARY_V2)).json()
    assert base64.b64decode(binary[0]["key"]) == b'"k"'


async def test_binary_keys_values_and_headers_come_back_as_they_were(api):
    await api.create_topic("t")
    key, value = bytes(range(256)), b"\x00\xff"
    record = {
        "key": base64.b64encode(key).decode(),
        "value": base64.b64encode(value).decode(),
        "headers": [{"key": "h", "value": base64.b64encode(b"\xfe").decode()}, {"key": "h", "value": None}],
    }
    answer = await api.post("/topics/t", json={"records": [record]}, headers={"Content-Type": BINARY_V2})
    assert offsets_of(answer) == [(0, 0)]
    (stored,) = (await api.fetch("t", offset=0, accept=BINARY_V2)).json()
    assert {name: stored[name] for name in ("key", "value", "headers")} == record


async def test_ndjson_takes_the_bytes_of_each_line_and_answers_ranges(api):
    await api.create_topic("t")
    answer = await api.post("/topics/t", content=b'{"a":1}\nplain\n\n 2', headers={"Content-Type": NDJSON})
    msgspec.json.decode(answer.content, type=ProducedRanges)
    assert answer.json() == {"ranges": [{"partition": 0, "base_offset": 0, "count": 3}]}
    stored = (await api.fetch("t", offset=0, accept=BINARY_V2)).json()
    assert [base64.b64decode(record["value"]) for record in stored] == [b'{"a":1}', b"plain", b" 2"]


async def test_arrow_goes_in_and_comes_out_with_its_partitions_and_timestamps(api):
    await api.create_topic("t", partitions=2)
    body = arrow_stream(value=["a", "b", "c"], partition=[1, 0, 1], timestamp=[1, 2, 3], key=[b"x", None, b"z"])
    answer = await api.post("/topics/t", content=body, headers={"Content-Type": ARROW})
    assert answer.json() == {
        "ranges": [
            {"partition": 0, "base_offset": 0, "count": 1},
            {"partition": 1, "base_offset": 0, "count": 2},
        ]
    }
    stored = await api.fetch("t", 1, offset=0, accept=ARROW)
    assert stored.headers["Content-Type"] == ARROW
    table = pa.ipc.open_stream(stored.content).read_all()
    assert table.column("value").to_pylist() == [b"a", b"c"]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [1, 3]


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("zstd", zstandard.compress), ("identity", bytes)],
)
async def test_compressed_bodies(api, coding, compress):
    await api.create_topic("t")
    body = json.dumps({"records": [{"value": "x" * 200_000}]}).encode()
    headers = {"Content-Type": JSON_V2, "Content-Encoding": coding}
    answer = await api.post("/topics/t", content=compress(body), headers=headers)
    assert answer.status_code == 200, answer.text
    assert await api.values("t") == ["x" * 200_000]


async def test_offsets_are_in_the_order_of_the_request_over_partitions(api):
    await api.create_topic("t", partitions=3)
    partitions = [2, 0, 1, 2, 2, 0]
    body = {"records": [{"value": n, "partition": partition} for n, partition in enumerate(partitions)]}
    assert offsets_of(await api.post("/topics/t", json=body)) == [(2, 0), (0, 0), (1, 0), (2, 1), (2, 2), (0, 1)]
    assert await api.values("t", 2) == [0, 3, 4]


async def test_a_key_goes_to_the_partition_of_kafkas_default_partitioner(api):
    await api.create_topic("t", partitions=10)
    key = base64.b64encode(b"21").decode()
    answer = await api.post("/topics/t", json={"records": [{"key": key}]}, headers={"Content-Type": BINARY_V2})
    # murmur2("21") = -973932308 (Kafka's UtilsTest), made positive and modulo 10.
    assert offsets_of(answer) == [((-973932308 & 0x7FFFFFFF) % 10, 0)]


async def test_records_without_a_key_share_a_partition_and_requests_spread(api):
    await api.create_topic("t", partitions=3)
    chosen = set()
    for _ in range(9):
        answer = await api.post("/topics/t", json={"records": [{"value": 1}, {"value": 2}]})
        (partition,) = {partition for partition, _ in offsets_of(answer)}
        chosen.add(partition)
    assert len(chosen) > 1


async def test_a_record_may_name_the_partition_of_the_path_but_no_other(api):
    await api.create_topic("t", partitions=2)
    same = {"records": [{"value": 1, "partition": 1}, {"value": 2}]}
    assert offsets_of(await api.post("/topics/t/partitions/1", json=same)) == [(1, 0), (1, 1)]
    other = {"records": [{"value": 1}, {"value": 2, "partition": 0}]}
    message = assert_error(await api.post("/topics/t/partitions/1", json=other), 422, 42206)
    assert "Record 1 names partition 0" in message
    assert api.end_offsets("t") == [0, 2]


async def test_acks_0_is_answered_with_202_and_no_offsets_and_stored(api):
    await api.create_topic("t")
    answer = await api.post("/topics/t?acks=0", json={"records": [{"value": 1}]})
    assert answer.status_code == 202
    assert offsets_of(answer) == []
    lines = await api.post("/topics/t?acks=0", content=b"2", headers={"Content-Type": NDJSON})
    assert (lines.status_code, lines.json()) == (202, {"ranges": []})
    assert (await api.produce("t", [3])).json()["offsets"][0]["offset"] == 2
    assert await api.values("t") == [1, 2, 3]


@pytest.mark.parametrize("acks", ["1", "all", "-1"])
async def test_acks_1_and_all_are_answered_when_stored(api, acks):
    await api.create_topic("t")
    answer = await api.post(f"/topics/t?acks={acks}&timeout_ms=60000", json={"records": [{"value": 1}]})
    assert (answer.status_code, offsets_of(answer)) == (200, [(0, 0)])


async def test_a_timeout_is_504_with_its_code_and_the_records_may_be_stored(api, monkeypatch):
    await api.create_topic("t")
    store = api.broker.journal.store
    stored_later = []

    def slow(frames, told):
        store(frames, lambda *outcome: stored_later.append((told, outcome)))

    monkeypatch.setattr(api.broker.journal, "store", slow)
    message = assert_error(await api.post("/topics/t?timeout_ms=300", json={"records": [{"value": 1}]}), 504, 50401)
    assert "may or may not be stored" in message
    await eventually_async(lambda: stored_later, "not appended")
    ((told, outcome),) = stored_later
    told(*outcome)
    assert await api.values("t") == [1]


async def test_a_topic_is_created_by_the_first_good_request_only(tmp_path):
    settings = {"auto_create_topics_enable": True, "num_partitions": 3}
    async with running_api(tmp_path / "data", topic_defaults={"max.message.bytes": "10"}, **settings) as api:
        assert_error(await api.post("/topics/new", json={"records": []}), 422)
        assert_error(await api.post("/topics/new", json={"records": [{"value": "x" * 11}]}), 413, 41302)
        assert_error(await api.post("/topics/bad*name", json={"records": [{"value": 1}]}), 400, 40002)
        assert_error(await api.post("/topics/__audit", json={"records": [{"value": 1}]}), 400, 40002)
        assert (await api.get("/topics")).json() == []
        assert (await api.post("/topics/new", json={"records": [{"value": 1}]})).status_code == 200
        assert len((await api.get("/topics/new")).json()["partitions"]) == 3


async def test_topics_are_not_created_unless_the_setting_says_so(api):
    assert_error(await api.post("/topics/new", json={"records": [{"value": 1}]}), 404, 40401)
    assert (await api.get("/topics")).json() == []


async def test_the_answer_is_of_the_type_asked_for(api):
    await api.create_topic("t")
    body = {"records": [{"value": 1}]}
    plain = await api.post("/topics/t", json=body, headers={"Accept": "application/json"})
    assert plain.headers["Content-Type"] == "application/json"
    assert_error(await api.post("/topics/t", json=body, headers={"Accept": "text/html"}), 406, 406)
    assert api.end_offsets("t") == [1], "what cannot be answered is not done"


async def test_concurrent_requests_get_dense_offsets_without_overlap(api):
    await api.create_topic("t")
    answers = await asyncio.gather(*(api.produce("t", [n, n, n]) for n in range(20)))
    found = [offsets_of(answer) for answer in answers]
    assert sorted(offset for offsets in found for _, offset in offsets) == list(range(60))
    assert all(offsets == [(0, offsets[0][1] + n) for n in range(3)] for offsets in found)


def test_a_large_answer_is_the_same_as_one_built_record_by_record():
    partitions = np.arange(100_000) % 7
    rows = [np.flatnonzero(partitions == partition) for partition in range(7)]
    ranges = tuple(PartitionResponse(p, 10**12 + p, len(rows[p]), rows[p]) for p in range(7))
    offsets = json.loads(produced_offsets(ProduceResult(ranges, 100_000)))["offsets"]
    expected = [
        {"partition": n % 7, "offset": 10**12 + n % 7 + n // 7, "error_code": None, "error": None}
        for n in range(100_000)
    ]
    assert offsets == expected
    assert json.loads(produced_ranges(ProduceResult(ranges, 100_000)))["ranges"][6] == {
        "partition": 6,
        "base_offset": 10**12 + 6,
        "count": len(rows[6]),
    }


async def test_a_partition_that_takes_nothing_spoils_no_other(api):
    await api.create_topic("t", partitions=3)
    records = [{"value": n, "partition": partition} for n, partition in enumerate((0, 7, 1, 0, 2))]
    api.broker.topics.served.topic(INTERNAL, "t").partition(2).quarantine("a test", "end it")
    answer = await api.post("/topics/t", json={"records": records}, headers={"Content-Type": JSON_V2})
    assert answer.status_code == 200
    msgspec.json.decode(answer.content, type=ProducedOffsets)
    places = answer.json()["offsets"]
    assert [(place["partition"], place["offset"], place["error_code"]) for place in places] == [
        (0, 0, None),
        (None, None, 40402),
        (1, 0, None),
        (0, 1, None),
        (None, None, 50303),
    ]
    assert places[1]["error"] == "Record 1 of the request names partition 7; the topic has 3, from 0"
    assert (await api.values("t", 0), await api.values("t", 1)) == ([0, 3], [2])
    # No record is stored, and all partitions have the same kind of error, so the request has that error.
    for wrong, status in (([7], 404), ([2, 2], 503), ([7, 8], 404)):
        records = [{"value": 9, "partition": partition} for partition in wrong]
        assert_error(await api.post("/topics/t", json={"records": records}, headers={"Content-Type": JSON_V2}), status)
    records = [{"value": 9, "partition": partition} for partition in (7, 2)]
    answer = await api.post("/topics/t", json={"records": records}, headers={"Content-Type": JSON_V2})
    assert [place["error_code"] for place in answer.json()["offsets"]] == [40402, 50303]
    assert (await api.values("t", 0), await api.values("t", 1)) == ([0, 3], [2])


async def test_ranges_that_a_partition_has_not_taken_say_why(api):
    await api.create_topic("t", partitions=2)
    api.broker.topics.served.topic(INTERNAL, "t").partition(1).quarantine("a test", "end it")
    sink = pa.BufferOutputStream()
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c"], "partition": pa.array([0, 1, 0], pa.int32())})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    answer = await api.post("/topics/t", content=sink.getvalue().to_pybytes(), headers={"Content-Type": ARROW})
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=ProducedRanges)
    taken, refused = answer.json()["ranges"]
    assert taken == {"partition": 0, "base_offset": 0, "count": 2, "error_code": None, "error": None}
    assert refused["error"].startswith("t-1 is quarantined: a test")
    assert (refused["partition"], refused["base_offset"], refused["count"]) == (1, None, 1)
    assert refused["error_code"] == 50303
