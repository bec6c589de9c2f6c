import base64
import gzip
import json
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from logstore.records.murmur2 import murmur2
from tests.support.eventually import eventually
from tests.support.posting import post

pytestmark = pytest.mark.system

NEWLINES = csv.ParseOptions(newlines_in_values=True)


def place(row: dict) -> tuple[int, int]:
    return row["partition"], row["offset"]


def objects(result) -> list[dict]:
    """Return the objects that --json printed; keys and values that are JSON equal the stored texts."""
    found = [json.loads(line) for line in result.stdout.splitlines()]
    for row, line in zip(found, result.stdout.splitlines(), strict=True):
        texts = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        for name in ("key", "value"):
            if row[name] is not None and f"{name}_format" not in row:
                row[name] = bytes(texts[name]).decode()
    return found


def test_lines_come_back_as_they_went_in(run, run_json, topic):
    summary = run_json("produce", topic, "--partition", 0, input=b"one\ntwo \r\n\n\xc3\xa9\nlast")
    assert summary.pop("seconds") >= 0
    assert summary == {
        "topic": topic,
        "records": 4,
        "bytes": 18,
        "partitions": [{"partition": 0, "records": 4, "first_offset": 0, "last_offset": 3}],
        "error": None,
    }
    assert run("consume", topic).stdout_bytes == b"one\ntwo \n\xc3\xa9\nlast\n"


def test_a_file_in_many_small_requests(run, tmp_path, topic):
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {i}\n" for i in range(5_000)))
    result = run("produce", topic, file, "--batch-bytes", 4_000, "--partition", 1, "--compression", "zstd")
    assert f"Produced 5,000 records (47.7 KiB) to topic {topic}, 1 partition, in " in result.stdout
    assert run("consume", topic).stdout == file.read_text()


@pytest.mark.parametrize("key_json", [False, True])
def test_keys_of_json_fields(run, topic, key_json):
    lines = '{"k":"N1","v":1}\n{"k": {"a": 1}}\n{"v": 2}\n{"k":null}\n'
    run("produce", topic, "--key-field", "k", *(["--key-json"] if key_json else []), input=lines)
    found = {o["value"]: o for o in objects(run("consume", topic, "--json"))}
    text_key = '"N1"' if key_json else "N1"
    assert [found[line]["key"] for line in lines.splitlines()] == [text_key, '{"a": 1}', None, None]
    first = found['{"k":"N1","v":1}']
    assert first["partition"] == (murmur2(text_key.encode()) & 0x7FFFFFFF) % 2


@pytest.mark.parametrize("key_format", ["string", "json"])
def test_one_key_of_the_command_line_of_python_and_of_json_over_http_is_in_one_partition(
    run, server, topic, key_format
):
    import httpx

    from logstore import Producer

    run("topic", "alter", topic, "--config", f"key.format={key_format}")
    run("topic", "alter", topic, "--partitions", 8)
    text = '{"k":"N1"}'
    json_keys = ["--key-json"] if key_format == "json" else []
    run("produce", topic, "--key-field", "k", *json_keys, input=text)
    run("produce", topic, "--key", "N1", *json_keys, input=text)
    run("produce", topic, "--key-separator", "=>", *json_keys, input=f"N1=>{text}\n")
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    body = f'{{"records":[{{"key":"N1","value":{text}}}]}}'
    httpx.post(f"{server.url}/topics/{topic}", content=body, headers=headers).raise_for_status()
    with Producer(server.url) as producer:
        producer.send(topic, text, key='"N1"' if json_keys else "N1")
    found = [(o["key"], o["value"], o["partition"]) for o in objects(run("consume", topic, "--json"))]
    assert len(found) == 5
    assert len(set(found)) == 1
    assert found[0][0] == ('"N1"' if json_keys else "N1")


@pytest.mark.parametrize(
    ("arguments", "line", "says"),
    [
        (["--format", "ndjson"], "{oops", "line 3 is not JSON"),
        (["--key-field", "k"], "[1]", "line 3 is not a JSON object"),
    ],
)
def test_a_line_that_is_no_json_is_named_and_those_before_it_are_stored(run, topic, arguments, line, says):
    result = run("produce", topic, *arguments, input='{"k":1}\n\n' + line + '\n{"k":2}\n', code=1)
    assert says in result.stderr
    assert "Produced 1 record (8 B)" in result.stdout
    assert run("consume", topic).stdout == '{"k":1}\n'


def test_a_record_that_is_refused_is_named_by_its_line_and_the_rest_counted(run, topic):
    run("topic", "alter", topic, "-c", "max.message.bytes=100")
    lines = "\n".join(["a", "", "b" * 101, "c"])
    result = run("produce", topic, "--partition", 0, input=lines, code=1)
    assert result.stderr.startswith("logstore: line 3: ")
    assert "Produced 2 records" in result.stdout
    assert run("consume", topic).stdout == "a\nc\n"


def test_produce_failures_are_one_line(run, topic, tmp_path):
    assert "absent-topic" in run("produce", "absent-topic", input="x\n", code=1).stderr
    assert "nowhere" in run("produce", topic, tmp_path / "nowhere", code=1).stderr
    assert "partition" in run("produce", topic, "--partition", 9, input="x\n", code=1).stderr.lower()
    run("produce", topic, input="")


def test_the_formats_of_consume(run, server, topic):
    import httpx

    encoded = base64.b64encode(b"\xff").decode()
    records = [
        {"key": encoded, "value": encoded, "timestamp": 5, "headers": [{"key": "h", "value": encoded}]},
        {"key": None, "value": None, "timestamp": 6},
    ]
    headers = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
    url = f"{server.url}/topics/{topic}/partitions/0"
    httpx.post(url, json={"records": records}, headers=headers).raise_for_status()

    assert run("consume", topic).stdout_bytes == b"\xff\nnull\n"
    assert run("consume", topic, "--format", "key-value").stdout_bytes == b"\xff\t\xff\nnull\tnull\n"
    place = {"topic": topic, "partition": 0}
    first, second = map(json.loads, run("consume", topic, "--format", "base64").stdout.splitlines())
    assert first == {**place, "offset": 0, **records[0]}
    assert second == {**place, "offset": 1, **records[1], "headers": []}
    binary = {"key_format": "binary", "value_format": "binary"}
    assert list(map(json.loads, run("consume", topic, "--json").stdout.splitlines())) == [first | binary, second]


def test_the_start_and_the_end_of_consume(run, topic):
    run("produce", topic, "--partition", 0, input="a\nb\nc\nd\n")
    run("produce", topic, "--partition", 1, input="e\n")
    assert run("consume", topic, "-p", 0, "--offset", 2).stdout == "c\nd\n"
    assert run("consume", topic, "-p", 0, "--offset", 1, "--max", 2).stdout == "b\nc\n"
    assert sorted(run("consume", topic, "--from-beginning").stdout.split()) == ["a", "b", "c", "d", "e"]
    assert run("consume", topic, "-p", 0, "--offset", 4).stdout == ""
    now_ms = int(time.time() * 1000)
    assert run("consume", topic, "--from-timestamp", now_ms + 60_000).stdout == ""
    assert len(run("consume", topic, "--from-timestamp", now_ms - 60_000).stdout.split()) == 5
    assert "name one with --partition" in run("consume", topic, "--offset", 1, code=2).stderr
    assert "it has 0 to 4" in run("consume", topic, "-p", 0, "--offset", 5, code=1).stderr
    assert "Partition 7 not found" in run("consume", topic, "-p", 7, code=1).stderr


def test_columns_go_into_files_by_their_names(run, server, topic, tmp_path):
    post(
        server.url, topic, 0, [b"a", b"", None, b'q"uo,te\n'], keys=[b"k", None, b"", b"k"], timestamps_ms=[1, 2, 3, 4]
    )
    post(server.url, topic, 1, [b"z"], timestamps_ms=[5], headers=[[("h", b"\xff")]])
    result = run("consume", topic, "-o", tmp_path / "t.csv")
    assert result.stdout == ""
    assert "Consumed 5 records" in result.stderr
    header, *lines = (tmp_path / "t.csv").read_text().split("\n", 1)
    assert header == '"partition","offset","timestamp","key","value"'
    assert sorted(csv.read_csv(tmp_path / "t.csv", parse_options=NEWLINES).to_pylist(), key=place) == [
        {"partition": 0, "offset": 0, "timestamp": 1, "key": "k", "value": "a"},
        {"partition": 0, "offset": 1, "timestamp": 2, "key": "", "value": ""},
        {"partition": 0, "offset": 2, "timestamp": 3, "key": "", "value": ""},
        {"partition": 0, "offset": 3, "timestamp": 4, "key": "k", "value": 'q"uo,te\n'},
        {"partition": 1, "offset": 0, "timestamp": 5, "key": "", "value": "z"},
    ]
    assert '0,1,2,,""\n0,2,3,"",\n' in lines[0], "null and empty text look alike"
    run("consume", topic, "-o", tmp_path / "t.parquet", "--no-progress")
    rows = sorted(parquet.read_table(tmp_path / "t.parquet").to_pylist(), key=place)
    assert [row["value"] for row in rows] == [b"a", b"", None, b'q"uo,te\n', b"z"]
    assert [row["timestamp"].timestamp() for row in rows] == [0.001, 0.002, 0.003, 0.004, 0.005]
    assert rows[-1]["headers"] == [{"key": "h", "value": b"\xff"}]
    piped = run("consume", topic, "--format", "parquet").stdout_bytes
    assert parquet.read_table(pa.BufferReader(piped)).num_rows == 5
    run("consume", topic, "-o", tmp_path / "t.ndjson")
    assert len((tmp_path / "t.ndjson").read_text().splitlines()) == 5
    assert run("consume", topic, "-p", 0, "--offset", 4, "--format", "csv").stdout == header + "\n"
    post(server.url, topic, 1, [b"\xff"])
    assert "offset 1 of partition 1 is not UTF-8" in run("consume", topic, "--format", "csv", code=1).stderr


@pytest.mark.parametrize("key_format", ["json", "string"])
def test_keys_are_shown_as_over_http(run, server, topic, key_format):
    run("topic", "alter", topic, "-c", f"key.format={key_format}")
    post(server.url, topic, 0, [b"v"] * 4, keys=[b"17", b"ada", b"\xff", None])
    shown = httpx.get(f"{server.url}/topics/{topic}/partitions/0/records").json()
    expected = [(record["key"], record.get("key_format")) for record in shown]
    assert expected[0] == ((17, None) if key_format == "json" else ("17", "string"))
    for option in ("--json", "--pretty"):
        found = list(_objects(run("consume", topic, option).stdout))
        assert [(record["key"], record.get("key_format")) for record in found] == expected


def _objects(text: str) -> Iterator[dict[str, Any]]:
    while text := text.lstrip():
        found, end = json.JSONDecoder().raw_decode(text)
        yield found
        text = text[end:]


def test_a_long_topic_becomes_several_row_groups(run, server, topic, tmp_path):
    for _ in range(40):
        post(server.url, topic, 0, [b"x" * 100_000] * 10, compression="lz4")
    run("consume", topic, "-o", tmp_path / "t.parquet")
    metadata = parquet.read_metadata(tmp_path / "t.parquet")
    assert metadata.num_rows == 400
    # A row group has 16 MiB, and up to one fetched batch more.
    assert metadata.num_row_groups >= 2


def test_a_group_continues_after_what_was_written(run, run_json, topic, tmp_path):
    group = f"group-of-{topic}"
    run("produce", topic, "--partition", 0, input="a\nb\nc\nd\n")
    assert run("consume", topic, "--group", group, "--max", 3).stdout == "a\nb\nc\n"
    assert run("consume", topic, "-g", group, "-o", tmp_path / "d.parquet").stdout == ""
    assert parquet.read_table(tmp_path / "d.parquet")["value"].to_pylist() == [b"d"]
    assert run("consume", topic, "-g", group, "--from-beginning").stdout == ""
    assert run("consume", topic, "-g", group, "-p", 0, "--offset", 1, "-n", 1).stdout == "b\n"
    assert run("consume", topic, "-g", group).stdout == "c\nd\n"
    assert run_json("group", "describe", group)["total_lag"] == 0


@pytest.mark.parametrize("first", [[], ["--follow"]], ids=["plain", "follow"])
def test_a_group_has_an_offset_also_where_there_was_no_record(run, run_json, start, topic, first):
    """Commit an offset for each partition: without it, a later run with --follow would begin there at the end and skip
    records.
    """
    group = f"group-of-{topic}"

    def follow_until(signal_number: int, *, printed: bytes) -> None:
        following = start("consume", topic, "-F", "-g", group, "--progress")
        _wait_for_progress(following, "Consumed ")
        assert following.stdout.readline() == printed if printed else True
        following.send_signal(signal_number)
        _, said = following.communicate(timeout=120)
        assert following.returncode == 130, said.decode()

    if first:
        follow_until(signal.SIGTERM, printed=b"")
    else:
        run("produce", topic, "--partition", 0, input="a\n")
        assert run("consume", topic, "-g", group, "--max", 1).stdout == "a\n"
    found = run_json("group", "describe", group)["partitions"]
    assert [row["committed_offset"] for row in found] == [0 if first else 1, 0]
    run("produce", topic, "--partition", 1, input="meanwhile\n")
    follow_until(signal.SIGTERM, printed=b"meanwhile\n")
    assert run_json("group", "describe", group)["total_lag"] == 0


def test_offsets_of_records_that_could_not_be_written_are_not_committed(run, start, server, topic, tmp_path):
    group = f"group-of-{topic}"
    values = [random.Random(0).randbytes(20_000), b"b"]
    post(server.url, topic, 0, values)
    failed = run("consume", topic, "-g", group, "-o", "/dev/full", code=1)
    assert "No space left on device" in failed.stderr
    # The rows are written only when the file is closed.
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (10_000, 10_000))
    failing = start("consume", topic, "-g", group, "-o", tmp_path / "t.parquet", preexec_fn=limit)
    assert b"File too large" in failing.communicate()[1]
    assert failing.returncode == 1
    assert run("consume", topic, "-g", group).stdout_bytes == values[0] + b"\nb\n"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_whole_file_and_commits_what_is_in_it(run, run_json, start, topic, tmp_path, stop):
    group = f"group-of-{topic}"
    run("produce", topic, "--partition", 0, input="a\nb\n")
    following = start("consume", topic, "--follow", "--from-beginning", "-g", group, "-o", tmp_path / "t.parquet")
    _wait_for_progress(following, "Consumed 2 records")
    following.send_signal(stop)
    following.communicate(timeout=120)
    assert following.returncode == 130
    assert parquet.read_table(tmp_path / "t.parquet")["value"].to_pylist() == [b"a", b"b"]
    assert run_json("group", "describe", group)["partitions"][0]["committed_offset"] == 2


def test_sigterm_ends_it_also_while_nobody_reads_its_output(run_json, start, server, topic):
    group = f"group-of-{topic}"
    post(server.url, topic, 0, [b"x" * 1_000] * 500)
    blocked = start("consume", topic, "--follow", "--from-beginning", "-g", group)
    blocked.stdout.read(1)
    # A pipe takes less than this output.
    blocked.send_signal(signal.SIGTERM)
    assert blocked.wait(120) == 130
    blocked.communicate()
    assert run_json("group", "describe", group)["partitions"][0]["committed_offset"] == 0


def _wait_for_progress(process: subprocess.Popen[bytes], text: str) -> None:
    while text.encode() not in process.stderr.readline():
        assert process.poll() is None


def test_follow_prints_what_comes_from_now_on_until_ctrl_c(run, start, topic):
    run("produce", topic, input="before\n")
    following = start("consume", topic, "--follow")
    printed = b""
    deadline = time.monotonic() + 120
    # The moment at which it starts is unknown, so records are sent until one arrives.
    while not printed and time.monotonic() < deadline:
        run("produce", topic, "-q", input="after\n")
        if following.poll() is None and _readable(following.stdout, 0.3):
            printed = following.stdout.readline()
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=120)
    assert printed == b"after\n"
    assert following.returncode == 130
    assert errors == b""


def test_a_reader_that_goes_away_ends_consume_quietly(run, start, topic):
    run("produce", topic, "-q", input="x" * 999 + "\n" + ("y" * 999 + "\n") * 2_000)
    consuming = start("consume", topic)
    head = subprocess.run(["head", "-n", "1"], stdin=consuming.stdout, capture_output=True, timeout=60, check=True)
    consuming.stdout.close()
    assert head.stdout.strip(b"xy") == b"\n"
    assert consuming.wait(60) == 0
    assert consuming.stderr.read() == b""
    consuming.stderr.close()


def test_produce_follows_a_pipe_and_ctrl_c_reports_what_is_stored(run, start, topic):
    producing = start("produce", topic, stdin=subprocess.PIPE)
    producing.stdin.write(b"first\nhalf a li")
    producing.stdin.flush()
    eventually(lambda: run("consume", topic).stdout)
    producing.send_signal(signal.SIGINT)
    assert producing.wait(60) == 130  # wait before communicate() ends the input, which could end it first
    output, errors = producing.communicate()
    assert b"Produced 1 record " in output
    assert errors == b""
    assert run("consume", topic).stdout == "first\n"


@pytest.mark.long
def test_a_large_input_streams_in_bounded_memory(run_json, start, topic, tmp_path):
    """Produce 100 MB, of which only a few batches may be in memory at once."""
    line = json.dumps({"text": "x" * 980}).encode() + b"\n"
    compressed = tmp_path / "large.gz"
    with gzip.open(compressed, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(line * 1_000)
    unpacking = subprocess.Popen(["gzip", "-dc", compressed], stdout=subprocess.PIPE)
    producing = start("produce", topic, "--json", stdin=unpacking.stdout)
    unpacking.stdout.close()
    peak_kib = 0
    while producing.poll() is None:
        with Path(f"/proc/{producing.pid}/status").open() as status:
            found = [int(text.split()[1]) for text in status if text.startswith("VmHWM")]
        peak_kib = max(peak_kib, *found, 0)
        time.sleep(0.02)
    assert unpacking.wait() == 0
    assert json.loads(producing.communicate()[0])["records"] == 100_000
    assert peak_kib < 400 * 1024


def _readable(stream, seconds: float) -> bool:
    import select

    return bool(select.select([stream], [], [], seconds)[0])


def test_an_output_that_ends_with_no_known_format_needs_one(run, topic, tmp_path):
    run("produce", topic, "-p", 0, input="a\n")
    unknown = tmp_path / "t.avro"
    refused = run("consume", topic, "-o", unknown, code=2).stderr
    assert ".csv, .parquet, .ndjson, .jsonl, .txt, or give --format" in " ".join(refused.replace("│", " ").split())
    assert not unknown.exists()
    run("consume", topic, "-o", unknown, "--format", "value")
    for name in ("t.txt", "t"):
        run("consume", topic, "-o", tmp_path / name)
        assert (tmp_path / name).read_text() == unknown.read_text() == "a\n"


@pytest.mark.parametrize("name", ["records.csv", "records.parquet"])
def test_a_file_of_consume_comes_back_as_it_was(run, topic, tmp_path, name):
    run("produce", topic, "--partition", 1, "--key-field", "k", input='{"k":"007"}\n{"k":""}\n{"n":1}\n')
    run("consume", topic, "--output", tmp_path / name)
    copy = f"{topic}-copy"
    run("topic", "create", copy, "--partitions", 2)
    assert "Produced 3 records" in run("produce", copy, tmp_path / name, "--partition-field", "partition").stdout
    one, other = ([{**o, "topic": ""} for o in objects(run("consume", t, "--json"))] for t in (topic, copy))
    assert one == other
    assert [o["key"] for o in one] == ["007", "", None]


def test_rows_without_a_value_are_objects(run, topic, tmp_path):
    text = 'id,name,score\n1,"a ""b""\nc",1.5\n2,,\n'
    run("produce", topic, "--format", "csv", "--key-field", "name", "--partition", 0, input=text)
    table = pa.table({"id": [3], "at": pa.array([1_500], pa.timestamp("ms", "UTC")), "tags": [["x"]]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    arguments = ("--key-field", "id", "--timestamp-field", "at", "--partition", 0)
    run("produce", topic, tmp_path / "rows.parquet", *arguments)
    first, second, third = objects(run("consume", topic, "--json"))
    assert json.loads(first["value"]) == {"id": "1", "name": 'a "b"\nc', "score": "1.5"}
    assert (first["key"], second["key"], third["key"]) == ('a "b"\nc', None, "3")
    assert json.loads(second["value"]) == {"id": "2", "name": None, "score": None}
    assert json.loads(third["value"]) == {"id": 3, "at": "1970-01-01T00:00:01.500Z", "tags": ["x"]}
    assert third["timestamp"] == 1_500


def test_columns_may_have_other_names(run, topic):
    text = "who,what,when,to\nann,hello,1000,1\nbob,,2000,0\n"
    fields = ("--key-field", "who", "--value-field", "what", "--timestamp-field", "when", "--partition-field", "to")
    run("produce", topic, "--format", "csv", *fields, input=text)
    found = [(o["partition"], o["key"], o["value"], o["timestamp"]) for o in objects(run("consume", topic, "--json"))]
    assert sorted(found) == [(0, "bob", None, 2_000), (1, "ann", "hello", 1_000)]


def test_a_large_table_goes_in_parts(run, run_json, topic, tmp_path):
    rows = 50_000
    parquet.write_table(pa.table({"value": [f"{i}" for i in range(rows)]}), tmp_path / "large.parquet")
    assert run_json("produce", topic, tmp_path / "large.parquet", "--batch-bytes", 10_000)["records"] == rows
    text = "value\n" + "".join(f"{i}\n" for i in range(rows))
    assert run_json("produce", topic, "--format", "csv", "--batch-bytes", 10_000, input=text)["records"] == rows


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("a,b\n1,2\n3\n", [], "row 2: it has 1 value, and the file 2 columns: 3"),
        ("a,b\n1,2\n", ["--key-field", "c"], "there is no column 'c': the file has a, b"),
        ("value,timestamp\nx,yesterday\n", [], "row 1: 'yesterday' is not a time"),
        ("value,to\nx,0\nx,9\n", ["--partition-field", "to"], "row 2: Partition 9 not found"),
    ],
)
def test_a_mistake_in_a_table_is_named(run, topic, text, arguments, says):
    result = run("produce", topic, "--format", "csv", *arguments, input=text, code=1)
    assert result.stderr.startswith("logstore: ")
    assert says in result.stderr


def test_a_file_that_is_no_parquet_is_named(run, topic, tmp_path):
    (tmp_path / "no.parquet").write_text("nothing of the kind")
    assert "Parquet" in run("produce", topic, tmp_path / "no.parquet", code=1).stderr


def test_a_rate_is_kept_and_progress_shown_when_asked_for(run, run_json, topic):
    summary = run_json("produce", topic, "--rate", 100, input="x\n" * 60)
    assert summary["records"] == 60
    # The last five records are due after 0.55 s.
    assert summary["seconds"] >= 0.5
    assert "60 records" in run("produce", topic, "--progress", "-q", input="x\n" * 60).stderr


@pytest.mark.parametrize("name", ["t.txt", "t.csv"])
def test_the_bar_is_full_when_all_is_sent(run, topic, tmp_path, name):
    (tmp_path / name).write_text("value\n\n" + "x\n" * 60)
    shown = run("produce", topic, tmp_path / name, "--progress", "-q").stderr
    assert "127/127 bytes" in shown
    assert run("produce", topic, "-q", input="x\n").stderr == ""
