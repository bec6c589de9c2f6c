import base64
import gzip
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from logstore.records.partitioner import murmur2


def objects(result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


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


@pytest.mark.parametrize("raw", [False, True])
def test_keys_of_json_fields(run, topic, raw):
    lines = '{"k":"N1","v":1}\n{"k": {"a": 1}}\n{"v": 2}\n{"k":null}\n'
    run("produce", topic, "--key-field", "k", *(["--key-raw"] if raw else []), input=lines)
    found = {o["value"]: o for o in objects(run("consume", topic, "--json"))}
    text_key = "N1" if raw else '"N1"'
    assert [found[line]["key"] for line in lines.splitlines()] == [text_key, '{"a": 1}', None, None]
    first = found['{"k":"N1","v":1}']
    assert first["partition"] == (murmur2(text_key.encode()) & 0x7FFFFFFF) % 2


def test_keys_are_those_of_the_same_record_posted_as_json(run, server, topic):
    import httpx

    run("produce", topic, "--key-field", "k", input='{"k":"N1"}\n')
    body = '{"records":[{"key":"N1","value":{"k":"N1"}}]}'
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    httpx.post(f"{server.url}/topics/{topic}", content=body, headers=headers).raise_for_status()
    one, other = ({k: o[k] for k in ("key", "value", "partition")} for o in objects(run("consume", topic, "--json")))
    assert one == other


@pytest.mark.parametrize(
    ("arguments", "line", "says"),
    [
        (["--ndjson"], "{oops", "line 3 is not JSON"),
        (["--key-field", "k"], "[1]", "line 3 is not a JSON object"),
    ],
)
def test_a_line_that_is_no_json_is_named(run, topic, arguments, line, says):
    result = run("produce", topic, *arguments, input='{"k":1}\n\n' + line + "\n", code=1)
    assert says in result.stderr


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


def test_what_consume_prints(run, server, topic):
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
    assert objects(run("consume", topic, "--format", "base64")) == [
        {**place, "offset": 0, **records[0]},
        {**place, "offset": 1, **records[1], "headers": []},
    ]
    assert (
        "offset 0 of partition 0 is not UTF-8 text: use --format base64"
        in run("consume", topic, "--json", code=1).stderr
    )


def test_where_consume_starts_and_stops(run, topic):
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


def test_follow_prints_what_comes_from_now_on_until_ctrl_c(run, start, topic):
    run("produce", topic, input="before\n")
    following = start("consume", topic, "--follow")
    printed = b""
    deadline = time.monotonic() + 30
    # It starts at the end at a moment that is its own: send until the first one is seen.
    while not printed and time.monotonic() < deadline:
        run("produce", topic, "-q", input="after\n")
        time.sleep(0.2)
        if following.poll() is None and _readable(following.stdout, 0.3):
            printed = following.stdout.readline()
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=30)
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


def test_produce_follows_a_pipe_and_ctrl_c_tells_what_is_stored(run, start, topic):
    producing = start("produce", topic, stdin=subprocess.PIPE)
    producing.stdin.write(b"first\nhalf a li")
    producing.stdin.flush()
    deadline = time.monotonic() + 30
    while not run("consume", topic).stdout and time.monotonic() < deadline:
        time.sleep(0.1)
    producing.send_signal(signal.SIGINT)
    output, errors = producing.communicate(timeout=60)
    assert producing.returncode == 130
    assert b"Produced 1 record " in output
    assert errors == b""
    assert run("consume", topic).stdout == "first\n"


def test_a_large_input_streams_in_bounded_memory(run_json, start, topic, tmp_path):
    """100 MB, of which no more than some batches may be in memory at once."""
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
