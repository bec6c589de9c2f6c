"""``consume --format record`` and ``produce --format record`` store the same records again, byte for byte."""

from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.cli.line_reader import read_lines
from logstore.cli.record_lines import record_lines
from logstore.cli.record_objects import RecordObjects
from logstore.client.consumer.records import FetchedBatch
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA
from tests.support.posting import post

CONTENTS = [
    None,
    b"",
    b"ada",
    b'"ada"',
    b"17",
    b"1.0",
    b" 1",
    b"1 ",
    b"null",
    b'{"a": 1, "b":[true,null]}',
    b'{"a":\n1}',
    b'{"a":1}\r',
    b"\xff\x00",
    b'{"a":"\xff"}',
    b'"\\ud800"',
    "\u00fc\u2028".encode(),
    b"\xef\xbb\xbf{}",
    b"\x00",
    b"NaN",
    b"[" * 3000,
]


def fetched(rows) -> FetchedBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), LOG_SCHEMA, strict=True)]
    return FetchedBatch("t", 0, pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA), len(rows), 0, len(rows))


def read_back(lines, tmp_path):
    file = tmp_path / f"{uuid4()}.lines"
    file.write_bytes(lines)
    with file.open("rb") as stream:
        parts = [RecordObjects().columns(block) for block in read_lines(stream, 1 << 20)]
    assert [problem for _, problem in parts] == [None] * len(parts)
    return [pa.concat_arrays([columns[name] for columns, _ in parts]).to_pylist() for name in WIRE_SCHEMA.names]


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_contents = st.one_of(st.sampled_from(CONTENTS), st.binary(max_size=6), _texts.map(str.encode))
_header = st.fixed_dictionaries({"key": _texts, "value": st.one_of(st.none(), st.binary(max_size=3))})
_headers = st.one_of(st.none(), st.lists(_header, min_size=1, max_size=2))
_records = st.tuples(st.integers(-(10**12), 10**12), _contents, _contents, _headers)


@given(st.lists(_records, min_size=1, max_size=5), st.booleans())
def test_any_record_comes_back_as_it_was(tmp_path_factory, records, string_keys):
    batch = fetched([(number, *record) for number, record in enumerate(records)])
    times, *columns = read_back(record_lines(batch, string_keys=string_keys), tmp_path_factory.getbasetemp())
    assert times == batch.batch.column("timestamp").to_pylist()
    assert columns == [batch.batch.column(name).to_pylist() for name in ("key", "value", "headers")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{}", "missing required field `value`"),
        (b"ada", "line 1 is not a record"),
        (b'{"value":1,"value_format":"binary"}', "Expected `str`"),
        (b'{"value":"!","value_format":"binary"}', "is not base64"),
        (b'{"value":"a","value_format":"avro"}', "avro"),
        (b'{"value":1,"timestamp":1e99}', "timestamp"),
        (b'{"value":1,"timestamp":999999999999999999}', "out of range"),
        (b'{"value":"\xff"}', "not UTF-8"),
    ],
)
def test_a_line_that_is_no_record_is_refused_by_its_number(tmp_path, line, message):
    file = tmp_path / "lines"
    file.write_bytes(line + b"\n")
    with file.open("rb") as stream:
        ((columns, problem),) = [RecordObjects().columns(block) for block in read_lines(stream, 1 << 20)]
    assert len(columns["value"]) == 0
    assert "line 1 is not a record" in problem.message
    assert message in problem.message


@pytest.mark.system
def test_a_topic_goes_through_a_pipe(run, server, topic):
    rows = len(CONTENTS)
    post(
        server.url, topic, 0, CONTENTS[::-1], keys=CONTENTS,
        timestamps_ms=[1_000 * n for n in range(rows)], headers=[None, [("h", b"\xff"), ("h", None)]] * (rows // 2),
    )  # fmt: skip
    lines = run("consume", topic, "--format", "record").stdout_bytes
    run("topic", "create", f"{topic}-copy", "--partitions", 1)
    run("produce", f"{topic}-copy", "--format", "record", "-q", input=lines)

    def stored(name):
        return [line.partition('"timestamp"')[2] for line in run("consume", name, "-f", "base64").stdout.splitlines()]

    assert len(stored(topic)) == rows
    assert stored(f"{topic}-copy") == stored(topic)
    assert "has a key, value" in run("produce", topic, "--format", "record", "--key", "a", input="", code=2).stderr
