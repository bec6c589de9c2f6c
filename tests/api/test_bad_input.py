"""Everything malformed gets a 4xx as JSON that says what to change; nothing is stored, the next good request works."""

import base64
import gzip
import json

import pyarrow as pa
import pytest
import zstandard

from logstore.broker.context import INTERNAL
from tests.api.api_client import ARROW, BINARY_V2, JSON_V2, NDJSON, assert_error

pytestmark = pytest.mark.anyio

ANY_4XX = range(400, 500)
GOOD = b'{"records":[{"value":1}]}'


async def assert_refused(api, body: bytes, content_type: str, status: int | range = 422, path="/topics/t", **headers):
    """Send a request that is refused with ``status`` and leaves no trace in any topic; return the message."""
    before = {name: api.end_offsets(name) for name in ("t", "compacted", "untouched")}
    sent = {"Content-Type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
    answer = await api.post(path, content=body, headers=sent)
    message = assert_error(answer, status)
    assert {name: api.end_offsets(name) for name in before} == before
    assert api.app.state.api.requests.reserved == 0
    good = await api.post("/topics/t/partitions/0", content=GOOD, headers={"Content-Type": JSON_V2})
    assert good.status_code == 200, good.text
    return message


# ---- JSON -----------------------------------------------------------------------------------------------------------

DOCUMENTS = {
    "empty": b"",
    "space": b" ",
    "null": b"null",
    "number": b"1",
    "text": b'"records"',
    "array": b"[]",
    "array of records": b'[{"value":1}]',
    "empty object": b"{}",
    "no records": b'{"records":[]}',
    "records null": b'{"records":null}',
    "records text": b'{"records":"x"}',
    "records object": b'{"records":{"value":1}}',
    "record null": b'{"records":[null]}',
    "record number": b'{"records":[1]}',
    "record array": b'{"records":[[]]}',
    "unknown field of a record": b'{"records":[{"Value":1}]}',
    "unknown field of the request": b'{"records":[{"value":1}],"acks":"all"}',
    "schema": b'{"records":[{"value":1}],"value_schema":"{}"}',
    "schema id": b'{"records":[{"value":1}],"key_schema_id":1}',
    "trailing comma": b'{"records":[{"value":1},]}',
    "comment": b'{"records":[{"value":1}]} // no',
    "two documents": GOOD + GOOD,
    "cut short": GOOD[:-3],
    "two byte order marks": b"\xef\xbb\xbf" * 2 + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "value twice": b'{"records":[{"value":"aGk=","value":"aGk="}]}',
    "records twice": b'{"records":[{"value":"aGk="}],"records":[{"value":"aGk="}]}',
    "partition twice": b'{"records":[{"value":"aGk=","partition":0,"partition":0}]}',
    "header's key twice": b'{"records":[{"value":"aGk=","headers":[{"key":"h","key":"h"}]}]}',
    "UTF-32": GOOD.decode().encode("utf-32"),
    "not UTF-8": b'{"records":[{"value":"\xff"}]}',
    "UTF-8 surrogate": b'{"records":[{"value":"\xed\xa0\x80"}]}',
    "single quotes": b"{'records':[{'value':1}]}",
    "NaN": b'{"records":[{"value":NaN}]}',
    "Infinity": b'{"records":[{"value":-Infinity}]}',
    "leading zero": b'{"records":[{"value":01}]}',
    "plus": b'{"records":[{"value":+1}]}',
    "control character": b'{"records":[{"value":"\x01"}]}',
    "bad escape": b'{"records":[{"value":"\\x"}]}',
    "deep value": b'{"records":[{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    "deep and open": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a million keys": b'{"records":[{' + b",".join(b'"k%d":1' % n for n in range(100_000)) + b"}]}",
    "NUL": b"\x00" + GOOD,
    "bytes": bytes(range(256)),
}
# Values are JSON texts, because Python does not write all of these.
FIELDS = {
    "partition": ['"1"', "1.5", "-1", "true", "[]", "{}", "2147483648", "1e400", "1" + "0" * 400, '"x"'],
    "timestamp": [
        '"now"',
        '"2024-01-01"',
        "1.5",
        "-1",
        "-1" + "0" * 20,
        "1" + "0" * 20,
        "1" + "0" * 5000,
        "true",
        "{}",
    ],
    "headers": ["1", '"h"', "true", "{}", '{"h":"v"}', "[1]", "[null]", "[[]]", '["h"]', "[{}]"],
}
HEADERS = [
    {"key": None, "value": "aGk="},
    {"value": "aGk="},
    {"key": 1, "value": "aGk="},
    {"key": "h", "value": 1},
    {"key": "h", "value": "not base64!"},
    {"key": "h", "value": "aGk"},
    {"key": "h", "value": "aGl="},
    {"key": "h", "value": "aGk=", "more": 1},
]


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("content_type", [JSON_V2, BINARY_V2])
async def test_documents(shared_api, name, content_type):
    message = await assert_refused(shared_api, DOCUMENTS[name], content_type)
    assert len(message) < 1_010


@pytest.mark.parametrize(
    ("field", "text"),
    [(field, text) for field, texts in FIELDS.items() for text in texts],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("content_type", [JSON_V2, BINARY_V2])
async def test_fields_of_a_wrong_type(shared_api, field, text, content_type):
    body = f'{{"records":[{{"value":"aGk="}},{{"value":"aGk=","{field}":{text}}}]}}'.encode()
    await assert_refused(shared_api, body, content_type)


@pytest.mark.parametrize("header", HEADERS, ids=str)
@pytest.mark.parametrize("content_type", [JSON_V2, BINARY_V2])
async def test_headers(shared_api, header, content_type):
    await assert_refused(shared_api, json.dumps({"records": [{"headers": [header]}]}).encode(), content_type)


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize(
    "text",
    [
        "a",
        "aGk",
        "aGk==",
        "aGk=\n",
        " aGk=",
        "aG k=",
        "_-_-",
        "äöü=",
        "aGk=aGk=",
        "aGl=",
        "aR==",
        "====",
        1,
        1.5,
        True,
        [],
        {},
        ["aGk="],
    ],
    ids=str,
)
async def test_base64(shared_api, field, text):
    await assert_refused(shared_api, json.dumps({"records": [{field: text}]}).encode(), BINARY_V2)


@pytest.mark.parametrize("content_type", [JSON_V2, BINARY_V2, NDJSON])
async def test_a_record_over_max_message_bytes_takes_the_request_with_it(shared_api, content_type):
    value = "x" * 998 + "yz"  # 1002 bytes as JSON, with its quotes; max.message.bytes is 1000
    if content_type == NDJSON:
        body = b"small\n" + (value + "y").encode()
    else:
        text = base64.b64encode((value + "y").encode()).decode() if content_type == BINARY_V2 else value
        body = json.dumps({"records": [{"value": "aGk="}, {"value": text}]}).encode()
    message = await assert_refused(shared_api, body, content_type, 413)
    assert "1000" in message
    assert "max.message.bytes" in message


async def test_a_record_of_exactly_max_message_bytes_is_taken(shared_api):
    api = shared_api
    answer = await api.post("/topics/t/partitions/1", content=b"x" * 1000, headers={"Content-Type": NDJSON})
    assert answer.status_code == 200
    over = await api.post("/topics/t/partitions/1", content=b"x" * 1001, headers={"Content-Type": NDJSON})
    assert_error(over, 413, 41302)


async def test_a_null_key_in_a_compacted_topic(shared_api):
    body = b'{"records":[{"key":"k","value":1},{"key":null,"value":2}]}'
    message = await assert_refused(shared_api, body, JSON_V2, 422, "/topics/compacted")
    assert "compact" in message
    assert "1" in message


@pytest.mark.parametrize("partition", [2, 100, 2**31 - 1])
async def test_a_partition_that_the_topic_does_not_have(shared_api, partition):
    body = json.dumps({"records": [{"value": 1, "partition": partition}]}).encode()
    assert f"Record 0 of the request names partition {partition};" in await assert_refused(
        shared_api, body, JSON_V2, 404
    )


# ---- NDJSON and Arrow -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n\n\r\n"])
async def test_ndjson_without_a_line(shared_api, body):
    await assert_refused(shared_api, body, NDJSON)


def arrow(columns: dict, schema: pa.Schema | None = None, **options) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def arrow_file() -> bytes:
    batch = pa.RecordBatch.from_pydict({"value": ["x"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


GOOD_ARROW = arrow({"value": ["a", "b", "c"], "key": [b"1", None, b"3"]})
BAD_ARROW = {
    "empty": b"",
    "text": b"not arrow",
    "zeros": bytes(64),
    "json": GOOD,
    "file format": arrow_file(),
    "no value": arrow({"key": [b"x"]}),
    "unknown column": arrow({"value": ["x"], "topic": ["t"]}),
    "offset column": arrow({"value": ["x"], "offset": [1]}),
    "no rows": arrow({"value": pa.array([], pa.string())}),
    "value of integers": arrow({"value": [1, 2]}),
    "value of lists": arrow({"value": [["x"]]}),
    "dictionary": arrow({"value": pa.array(["x"]).dictionary_encode()}),
    "timestamp text": arrow({"value": ["x"], "timestamp": ["now"]}),
    "timestamp negative": arrow({"value": ["x"], "timestamp": [-1]}),
    "timestamp far": arrow({"value": ["x"], "timestamp": [2**62]}),
    "partition negative": arrow({"value": ["x"], "partition": [-2]}),
    "partition text": arrow({"value": ["x"], "partition": ["0"]}),
    "headers text": arrow({"value": ["x"], "headers": ["h"]}),
    "column twice": arrow({"value": ["x"], "key": [b"x"]}).replace(b"key", b"val"),
    "record too large": arrow({"value": ["x" * 1001]}),
    "bomb": arrow({"value": [b"\0" * (16 << 20)]}, compression="zstd"),
    "bomb of small records": arrow({"value": [b"\0" * 1000] * 10_000}, compression="lz4"),
}


@pytest.mark.parametrize("name", BAD_ARROW)
async def test_arrow(shared_api, name):
    await assert_refused(shared_api, BAD_ARROW[name], ARROW, range(413, 423))


@pytest.mark.parametrize("cut", range(0, len(GOOD_ARROW), 24))
async def test_arrow_cut_short(shared_api, cut):
    await assert_refused(shared_api, GOOD_ARROW[:cut], ARROW, 422)


async def test_arrow_with_flipped_bytes_is_stored_whole_or_refused(shared_api):
    """Flip bytes of a good stream. Some flips only make other records; none may crash, hang or store a part."""
    api = shared_api
    for position in range(0, len(GOOD_ARROW), 5):
        body = bytearray(GOOD_ARROW)
        body[position] ^= 0xFF
        before = sum(api.end_offsets("t"))
        answer = await api.post("/topics/t/partitions/1", content=bytes(body), headers={"Content-Type": ARROW})
        if answer.status_code == 200:
            assert sum(api.end_offsets("t")) == before + answer.json()["ranges"][0]["count"]
        else:
            assert_error(answer, range(413, 423))
            assert sum(api.end_offsets("t")) == before


# ---- content type, coding, accept -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        " ",
        "*/*",
        "application/*",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/vnd.kafka.v2+json",
        "application/vnd.kafka.json.v1+json",
        "application/vnd.kafka.json.v3+json",
        "application/vnd.kafka.avro.v2+json",
        "application/vnd.apache.arrow.file",
        "application/json, text/plain",
        "application/json; charset=utf-16",
        "json",
        "a" * 10000,
    ],
)
async def test_content_types(shared_api, content_type):
    assert await assert_refused(shared_api, GOOD, content_type, 415)


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "gzip, zstd", "x", "gzip;q=1"])
async def test_content_codings(shared_api, coding):
    message = await assert_refused(shared_api, GOOD, JSON_V2, 415, Content_Encoding=coding)
    assert "gzip, zstd" in message


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", GOOD),
        ("gzip", b""),
        ("gzip", gzip.compress(GOOD, mtime=0)[:-1]),
        ("gzip", gzip.compress(GOOD, mtime=0)[:12]),
        ("gzip", gzip.compress(GOOD, mtime=0)[:-8] + bytes(8)),
        ("gzip", gzip.compress(GOOD, mtime=0) + b"rest"),
        ("gzip", gzip.compress(b"", mtime=0)),
        ("gzip", zstandard.compress(GOOD)),
        ("zstd", GOOD),
        ("zstd", zstandard.compress(GOOD)[:-1]),
        ("zstd", zstandard.compress(GOOD) + b"rest"),
        ("zstd", gzip.compress(GOOD, mtime=0)),
    ],
)
async def test_compressed_bodies_that_are_not(shared_api, coding, body):
    await assert_refused(shared_api, body, JSON_V2, 422, Content_Encoding=coding)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
async def test_a_compressed_body_without_the_header_is_not_guessed(shared_api, compress):
    await assert_refused(shared_api, compress(GOOD), JSON_V2, 422)


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
async def test_bombs(shared_api, coding, compress):
    """Send a body that is small on the wire and twice max.request.size when inflated."""
    message = await assert_refused(shared_api, compress(b" " * (16 << 20)), JSON_V2, 413, Content_Encoding=coding)
    assert str(8 << 20) in message


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;q=0", "a/b;q=2", "nonsense", "*/*;q=0", ",", "a/b, c"]
)
async def test_accept(shared_api, accept):
    await assert_refused(shared_api, GOOD, JSON_V2, 406, Accept=accept)
    for path in ("/topics", "/topics/t/partitions/0/records", "/topics/t/partitions/0/offsets", "/v3/clusters"):
        assert_error(await shared_api.get(path, headers={"Accept": accept}), 406, 406)


async def test_accept_of_200_alternatives(shared_api):
    many = ", ".join(f"application/x{n};q=0.{n % 9 + 1}" for n in range(200))
    await assert_refused(shared_api, GOOD, JSON_V2, 406, Accept=many)
    answer = await shared_api.get("/topics", headers={"Accept": f"{many}, application/json;q=0.001"})
    assert answer.headers["Content-Type"] == "application/json"


# ---- paths and queries ----------------------------------------------------------------------------------------------

PARTITIONS = ["-1", "+1", "01", "00", "1e1", "0x1", "%201", "1%20", "1.0", "NaN", "two", "%D9%A1", "%EF%BC%91", "1_0"]
PARTITIONS += ["2", str(2**31 - 1), str(2**31), str(2**63), str(2**64), "1" + "0" * 400, "%00", "0%0a", "null", "*"]


@pytest.mark.parametrize("partition", PARTITIONS)
async def test_partitions_in_the_path(shared_api, partition):
    api = shared_api
    path = f"/topics/t/partitions/{partition}"
    await assert_refused(api, GOOD, JSON_V2, 404, path)
    for answer in [
        await api.get(path),
        await api.get(f"{path}/records"),
        await api.get(f"{path}/offsets"),
        await api.post(f"{path}/delete-records", json={"before_offset": 0}),
    ]:
        assert_error(answer, 404, 40402)


NUMBERS = ["", "-1", "+1", "1e3", "1.0", "0x10", "01", "%201", "1%20", "ten", "NaN", "null", "%D9%A1", "1,2", "1%00"]
NUMBERS += [str(2**63), str(2**64), "1" + "0" * 400, "-0", "--1", "1_0"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", ["offset", "max_bytes", "min_bytes", "max_wait_ms"])
async def test_numbers_in_the_query_of_a_fetch(shared_api, name, number):
    message = assert_error(await shared_api.get(f"/topics/t/partitions/0/records?{name}={number}"), 422, 422)
    assert name in message


@pytest.mark.parametrize("number", [*NUMBERS, "0"])
async def test_timeouts(shared_api, number):
    message = await assert_refused(shared_api, GOOD, JSON_V2, 422, f"/topics/t?timeout_ms={number}")
    assert "timeout_ms" in message


@pytest.mark.parametrize("acks", ["", "2", "-2", "ALL", "true", "none", "01", "1.0", "%20all"])
async def test_acks(shared_api, acks):
    assert "acks" in await assert_refused(shared_api, GOOD, JSON_V2, 422, f"/topics/t?acks={acks}")


@pytest.mark.parametrize("number", sorted(set(NUMBERS) - {"-1"}))
async def test_timestamps(shared_api, number):
    assert_error(await shared_api.get(f"/topics/t/partitions/0/offsets?timestamp={number}"), 422, 422)


@pytest.mark.parametrize(
    "query",
    [
        "acks=1&acks=1",
        "acks=0&acks=all",
        "acks",
        "akcs=1",
        "ACKS=1",
        "=1",
        "&x=1",
        "acks=1;timeout_ms=5",
        "a" * 5000,
        "&".join(f"k{n}=1" for n in range(1000)),
        "%00=1",
        "%ff=%ff",
        "timeout_ms=1&timeout_ms=1",
        "timeout=5",
    ],
)
async def test_queries(shared_api, query):
    await assert_refused(shared_api, GOOD, JSON_V2, 422, f"/topics/t?{query}")


@pytest.mark.parametrize(
    "path",
    [
        "/topics",
        "/topics/t",
        "/topics/t/partitions",
        "/topics/t/partitions/0",
        "/v3/clusters",
        "/health/live",
        "/metrics",
    ],
)
async def test_parameters_where_there_are_none(shared_api, path):
    assert "takes none" in assert_error(await shared_api.get(f"{path}?x=1"), 422, 422)


async def test_a_misspelt_parameter_names_the_nearest(shared_api):
    answer = await shared_api.get("/topics/t/partitions/0/records?max_wait=5")
    assert "did you mean max_wait_ms?" in assert_error(answer, 422, 422)


@pytest.mark.parametrize(
    "path",
    [
        "/topics//partitions",
        "/topics/t/records",
        "/topics/t/partitions//records",
        "/v3",
        "/v3/",
        "/v2/topics",
        "/%74opics//",
        "/topics/t//",
        "/" + "x" * 10000,
        "/redoc",
        "/%2e%2e/etc/passwd",
        "/ä",
    ],
)
async def test_paths_that_are_not_there(shared_api, path):
    for method in ("GET", "POST", "DELETE"):
        assert_error(await shared_api.request(method, path), 404)


# ---- administration -------------------------------------------------------------------------------------------------

CREATIONS = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b'{"topic_name":null}',
    b'{"topic_name":1}',
    b'{"topic_name":["new"]}',
    b'{"topic_name":"new","partitions":4}',
    b'{"topic_name":"new","partitions_count":"4"}',
    b'{"topic_name":"new","partitions_count":4.0}',
    b'{"topic_name":"new","partitions_count":true}',
    b'{"topic_name":"new","partitions_count":0}',
    b'{"topic_name":"new","partitions_count":-1}',
    b'{"topic_name":"new","partitions_count":10001}',
    b'{"topic_name":"new","partitions_count":1e400}',
    b'{"topic_name":"new","partitions_count":1' + b"0" * 5000 + b"}",
    b'{"topic_name":"new","partitions_count":NaN}',
    b'{"topic_name":"new","replication_factor":"1"}',
    b'{"topic_name":"new","configs":{}}',
    b'{"topic_name":"new","configs":[null]}',
    b'{"topic_name":"new","configs":[{}]}',
    b'{"topic_name":"new","configs":[{"name":"retention.ms","value":5}]}',
    b'{"topic_name":"new","configs":[{"name":"retention.ms","value":"5","more":1}]}',
    b'{"topic_name":"new","validate_only":"yes"}',
    b'{"topic_name":"t","topic_name":"new"}',
    b'{"topic_name":"new","partitions_count":1' + b"0" * 5000 + b',"partitions_count":1}',
    b'{"topic_name":"new","configs":[{"name":"retention.ms","value":"5","value":"6"}]}',
    b'{"topic_name":"new"}{}',
    b'{"topic_name":"\xff"}',
    b'{"topic_name":"\\ud800"}',
    b"[" * 100_000,
    b'{"topic_name":' * 50_000,
    b'{"topic_name":"' + b"x" * 500_000 + b'"}',
]


@pytest.mark.parametrize("body", CREATIONS, ids=lambda body: body[:50].decode("latin-1"))
async def test_creations(shared_api, body):
    api = shared_api
    answer = await api.post(api.topics_url, content=body, headers={"Content-Type": "application/json"})
    assert_error(answer, range(400, 423))
    assert (await api.get("/topics")).json() == ["compacted", "t", "untouched"]


async def test_a_lone_surrogate_in_a_name_is_named(shared_api):
    """Send what is JSON by RFC 8259, and with an error of its own behind it."""
    headers = {"Content-Type": "application/json"}
    for body, says in (
        (b'{"topic_name":"\\ud800"}', "lone surrogate"),
        (b'{"topic_name":"\\ud800"', "Invalid JSON"),
        (b'{"topic_name":"\\ud83d\\ude00"}', ""),
    ):
        message = assert_error(
            await shared_api.post(shared_api.topics_url, content=body, headers=headers), range(400, 423)
        )
        assert says in message
        assert ("hex escape" in message) == (says == "Invalid JSON")


async def test_a_huge_administrative_body_is_not_read(shared_api):
    headers = {"Content-Type": "application/json"}
    answer = await shared_api.post(shared_api.topics_url, content=b" " * (2 << 20), headers=headers)
    assert_error(answer, 413, 41301)


async def test_administration_needs_to_be_called_json(shared_api):
    api = shared_api
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/xml"):
        headers = {"Content-Type": content_type}
        assert_error(await api.post(api.topics_url, content=b'{"topic_name":"new"}', headers=headers), 415, 415)
    assert_error(await api.post(api.topics_url, content=b'{"topic_name":"new"}'), 415, 415)


@pytest.mark.parametrize("offset", ["null", '"1"', "1.5", "-2", "true", "[]", str(2**63), "1" + "0" * 5000, "NaN"])
async def test_offsets_to_delete_before(shared_api, offset):
    api = shared_api
    before = await api.values("t")
    headers = {"Content-Type": "application/json"}
    body = f'{{"before_offset":{offset}}}'
    answer = await api.post("/topics/t/partitions/0/delete-records", content=body, headers=headers)
    assert_error(answer, range(416, 423))
    assert await api.values("t") == before


TWICE = b'{"before_offset":9,"before_offset":0}'


@pytest.mark.parametrize("body", [b"", b"{}", b'{"before_offset":1,"partition":0}', b"1", b"{", TWICE])
async def test_delete_records_bodies(shared_api, body):
    headers = {"Content-Type": "application/json"}
    answer = await shared_api.post("/topics/t/partitions/0/delete-records", content=body, headers=headers)
    assert_error(answer, 422, 42206)


@pytest.mark.parametrize("body", [b"null", b"[]", b'{"force":true}', b"x", b"1"])
async def test_roll_bodies(shared_api, body):
    headers = {"Content-Type": "application/json"}
    assert_error(await shared_api.post("/topics/untouched/roll", content=body, headers=headers), 422, 42206)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"data":null}',
        b'{"data":[]}',
        b'{"data":[{}]}',
        b'{"data":[{"name":1}]}',
        b'{"data":{"name":"x"}}',
        b'{"data":[{"name":"retention.ms","value":5}]}',
        b'{"data":[{"name":"retention.ms","operation":"APPEND"}]}',
        b'{"data":[{"name":"retention.ms","value":"5","operation":"SET","operation":"SET"}]}',
    ],
)
async def test_alterations(shared_api, body):
    api = shared_api
    headers = {"Content-Type": "application/json"}
    answer = await api.post(f"{api.topics_url}/untouched/configs:alter", content=body, headers=headers)
    assert_error(answer, 422, 42206)
    assert all(entry["is_default"] for entry in (await api.get(f"{api.topics_url}/untouched/configs")).json()["data"])


# ---- groups ---------------------------------------------------------------------------------------------------------

COMMITS = {
    "empty": b"",
    "null": b"null",
    "array": b"[]",
    "cut short": b'{"offsets":[{"topic":"t"',
    "two documents": b'{"offsets":[]}{}',
    "empty object": b"{}",
    "no offsets": b'{"offsets":[]}',
    "offsets null": b'{"offsets":null}',
    "offsets object": b'{"offsets":{"topic":"t","partition":0,"offset":0}}',
    "offset null": b'{"offsets":[null]}',
    "offset number": b'{"offsets":[1]}',
    "unknown field of the request": b'{"offsets":[{"topic":"t","partition":0,"offset":0}],"group":"g"}',
    "offset twice": b'{"offsets":[{"topic":"t","partition":0,"offset":0,"offset":0}]}',
    "offsets twice": b'{"offsets":[],"offsets":[{"topic":"t","partition":0,"offset":0}]}',
    "not UTF-8": b'{"offsets":[{"topic":"t\xff","partition":0,"offset":0}]}',
    "NUL": b"\x00{}",
    "deep": b'{"offsets":' + b"[" * 100_000,
    "twice the same partition": b'{"offsets":[' + b",".join([b'{"topic":"t","partition":1,"offset":0}'] * 2) + b"]}",
}
# Each JSON text takes the place of a good one.
COMMIT_FIELDS = {
    "topic": ["null", "1", "true", '["t"]', "{}", '"\\ud800"'],
    "partition": ["null", '"0"', "0.0", "true", "[]", "-1", str(2**31), "1e400", "1" + "0" * 5000],
    "offset": ["null", '"0"', "0.5", "true", "[]", "-1", str(2**63), "NaN", "Infinity", "1" + "0" * 5000, "-0.0"],
    "metadata": ["1", "true", "[]", "{}", '"\\ud800"', '"' + "x" * 4097 + '"', '"' + "\u00e9" * 2049 + '"'],
    "more": ["1"],
    "generation": ["1"],
}


async def assert_commit_refused(api, body: bytes, status: int | range, error_code: int | None = None, group="g"):
    answer = await api.post(f"/groups/{group}/offsets", content=body, headers={"Content-Type": "application/json"})
    message = assert_error(answer, status, error_code)
    assert len(message) < 1_010
    assert (await api.get("/groups")).json() == []
    return message


def commit_body(**fields: str) -> bytes:
    """Return a body with a good entry, and after it one in which ``fields``, as JSON texts, replace good ones."""
    entry = {"topic": '"t"', "partition": "0", "offset": "0", "metadata": '""'} | fields
    members = ",".join(f'"{name}":{text}' for name, text in entry.items())
    return f'{{"offsets":[{{"topic":"t","partition":1,"offset":0}},{{{members}}}]}}'.encode()


@pytest.mark.parametrize("name", COMMITS)
async def test_commits(shared_api, name):
    await assert_commit_refused(shared_api, COMMITS[name], 422, 42206)


@pytest.mark.parametrize(
    ("field", "text"),
    [(field, text) for field, texts in COMMIT_FIELDS.items() for text in texts],
    ids=lambda text: text[:12],
)
async def test_fields_of_a_commit(shared_api, field, text):
    await assert_commit_refused(shared_api, commit_body(**{field: text}), 422, 42206)


@pytest.mark.parametrize("field", ["topic", "partition", "offset"])
async def test_a_commit_without_a_field(shared_api, field):
    entry = {"topic": "t", "partition": 0, "offset": 0}
    del entry[field]
    body = json.dumps({"offsets": [entry]}).encode()
    assert field in await assert_commit_refused(shared_api, body, 422, 42206)


@pytest.mark.parametrize(
    ("fields", "status", "error_code", "says"),
    [
        ({"topic": '"absent"'}, 404, 40401, "absent"),
        ({"topic": '""'}, 404, 40401, "''"),
        ({"topic": '"T"'}, 404, 40401, "'T'"),
        ({"topic": '"../t"'}, 404, 40401, "../t"),
        ({"topic": '"' + "x" * 100_000 + '"'}, 404, 40401, "xxx"),
        ({"partition": "2"}, 404, 40402, "Partition 2"),
        ({"partition": str(2**31 - 1)}, 404, 40402, str(2**31 - 1)),
        ({"topic": '"untouched"', "offset": "1"}, 416, 41601, "0 to 0"),
        ({"offset": str(2**63 - 1)}, 416, 41601, "t-0"),
    ],
    ids=str,
)
async def test_commits_of_what_is_not_there(shared_api, fields, status, error_code, says):
    assert says in await assert_commit_refused(shared_api, commit_body(**fields), status, error_code)


async def test_an_offset_beyond_the_end_is_answered_with_the_range(shared_api):
    body = commit_body(topic='"untouched"', offset="1")
    answer = await shared_api.post("/groups/g/offsets", content=body, headers={"Content-Type": "application/json"})
    assert (answer.headers["Logstore-Log-Start-Offset"], answer.headers["Logstore-High-Watermark"]) == ("0", "0")


@pytest.mark.parametrize(("group", "status"), [("%ff", 404), ("%C3", 404), ("x" * 32_768, 422)])
async def test_names_of_groups(shared_api, group, status):
    await assert_commit_refused(shared_api, commit_body(), status, group=group)


async def test_a_commit_is_json_and_not_huge(shared_api):
    for content_type in ("text/plain", "application/x-www-form-urlencoded", JSON_V2):
        headers = {"Content-Type": content_type}
        answer = await shared_api.post("/groups/g/offsets", content=commit_body(partition="9"), headers=headers)
        assert_error(answer, range(404, 416))
    headers = {"Content-Type": "application/json"}
    assert_error(await shared_api.post("/groups/g/offsets", content=b" " * (9 << 20), headers=headers), 413, 41301)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/groups?x=1"),
        ("GET", "/groups/g/lag?topic=t"),
        ("GET", "/groups/g/offsets?topic="),
        ("GET", "/groups/g/offsets?topic=t&topic=t"),
        ("GET", "/groups/g/offsets?topics=t"),
        ("DELETE", "/groups/g?force=1"),
    ],
)
async def test_queries_about_groups(shared_api, method, path):
    assert_error(await shared_api.request(method, path), 422, 422)


@pytest.mark.parametrize(
    "path", ["/groups//", "/groups//offsets", "/groups/g//", "/groups/g/offsets//", "/groups/a%2Fb/lag"]
)
async def test_paths_about_groups_that_are_not_there(shared_api, path):
    for method in ("GET", "POST", "DELETE"):
        assert_error(await shared_api.request(method, path), range(404, 406))


async def test_after_all_bad_requests_nothing_is_stored(shared_api):
    assert shared_api.end_offsets("untouched") == [0]
    assert shared_api.end_offsets("compacted") == [0]
    assert shared_api.app.state.api.requests.reserved == 0
    assert shared_api.app.state.api.answers.reserved == 0
    assert (await shared_api.get("/groups")).json() == []
    assert all(not topic.is_internal for topic in shared_api.broker.topics.served.all(INTERNAL, include_internal=True))
