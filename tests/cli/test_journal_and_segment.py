import asyncio
import itertools
import json
import re
from pathlib import Path

import httpx
import pytest

from logstore.journal.frame import HEADER_BYTES
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.kafka_batches.header import Compression
from logstore.records.batch_identity import RememberedBatch
from tests.support.journals import (
    control_frame,
    data_frame,
    kafka_frame,
    running,
    snapshot_frame,
    transactional_frame,
    truncate_frame,
)
from tests.support.kafka_batches import client_batch
from tests.support.records import Row
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.system


def journal_of(server: ServerProcess) -> Path:
    return server.data / "brokers" / "0" / "journal" / "0"


@pytest.fixture
def own_server(tmp_path, run):
    """Yield a store with one topic, for one test that stops it hard and damages it."""
    with ServerProcess(tmp_path / "data") as server:
        run("topic", "create", "t", "--url", server.url)
        yield server


def test_dump_shows_the_frames_of_a_running_store(run, server, topic):
    run("produce", topic, "--partition", 1, input="a\nb\n")
    rows = [json.loads(line) for line in run("journal", "dump", "--data", server.data, "--json").stdout.splitlines()]
    topic_id = json.loads(run("topic", "describe", topic, "--json").stdout)["topic"]["topic_id"]
    found = [row for row in rows if row["topic_id"] == topic_id and row["type"] == "DATA"]
    assert [(row["partition"], row["base_offset"], row["record_count"]) for row in found] == [(1, 0, 2)]
    assert all(later["position"] > earlier["position"] for earlier, later in itertools.pairwise(rows))

    lines = run("journal", "dump", journal_of(server)).stdout.splitlines()
    assert lines[0].split()[:3] == ["position", "bytes", "type"]
    assert any(f" data        {topic} " in line for line in lines)
    assert len(run("journal", "dump", journal_of(server), "--limit", 1).stdout.splitlines()) == 2


def test_without_a_directory_it_is_that_of_the_settings(run, run_json, server, monkeypatch):
    """Check that the setting counts, as for serve and doctor."""
    monkeypatch.setenv("LOGSTORE_DATA", str(server.data))
    assert run_json("journal", "verify")[0]["directory"] == str(journal_of(server))
    assert run("journal", "dump").stdout.startswith("      position")
    assert "not both" in run("journal", "verify", journal_of(server), "--data", server.data, code=2).stderr


@pytest.mark.long
def test_verify_and_repair_of_a_journal_whose_middle_was_damaged(run, run_json, own_server):
    url, data, journal = own_server.url, own_server.data, journal_of(own_server)
    for number in range(5):
        run("produce", "t", "--url", url, input=f"record {number}\n")
    assert "A store is running" in run("journal", "repair", journal, "--yes", code=1).stderr
    own_server.kill()
    assert run_json("journal", "verify", "--data", data)[0]["damage"] is None
    assert run_json("journal", "repair", journal, "--yes")["repaired"] is False

    rows = [json.loads(line) for line in run("journal", "dump", journal, "--json").stdout.splitlines()]
    third = [row for row in rows if row["type"] == "DATA"][2]
    file = journal / third["file"]
    content = bytearray(file.read_bytes())
    at = content.find(b"record 2")
    assert at > HEADER_BYTES
    content[at] ^= 0xFF
    file.write_bytes(content)

    (report,) = run_json("journal", "verify", journal, code=1)
    assert "logstore journal repair" in report["damage"]
    assert "damaged" in run("journal", "verify", "--data", data, code=1).stdout
    assert run("journal", "dump", journal, code=1).stderr.startswith("logstore: journal file ")
    assert "--yes" in run("journal", "repair", journal, code=2).stderr

    repaired = run_json("journal", "repair", journal, "--yes")
    assert repaired["repaired"] is True
    assert repaired["position"] == third["position"]
    assert [(lost["topic"], lost["first_offset"], lost["end_offset"]) for lost in repaired["lost"]] == [("t", 2, 5)]
    assert repaired["taken_out"][0]["sealed_offset"] == 0
    assert all(Path(copy).exists() for copy in repaired["copies"])
    own_server.start()
    assert run("consume", "t", "--url", own_server.url).stdout == "record 0\nrecord 1\n"


def test_a_directory_without_a_journal(run, tmp_path):
    assert "There is no journal in" in run("journal", "dump", "--data", tmp_path, code=1).stderr
    assert "nowhere" in run("journal", "verify", tmp_path / "nowhere", code=1).stderr


def test_segment_dump(run, run_json, server, topic):
    run("produce", topic, "--partition", 0, "--key-field", "k", input='{"k":1}\n{"k":2}\n{"k":3}\n')
    run("topic", "roll", topic)
    (file,) = (server.data / "topics" / topic / "partition=0").glob("*.parquet")
    dumped = run_json("segment", "dump", file)
    footer = dumped["footer"]
    assert (footer["partition"], footer["base_offset"], footer["end_offset"]) == (0, 0, 3)
    assert [(group["first_offset"], group["last_offset"]) for group in dumped["row_groups"]] == [(0, 2)]
    assert "offsets 0 to 3 (exclusive), 3 records" in run("segment", "dump", file).stdout

    lines = run("segment", "dump", file, "--records", "-n", 2, "--json").stdout.splitlines()
    assert [(row["offset"], row["key"], row["value"]) for row in map(json.loads, lines)] == [
        (0, 1, {"k": 1}),
        (1, 2, {"k": 2}),
    ]
    heading, line = run("segment", "dump", file, "--records", "--from", 2).stdout.splitlines()
    assert heading.split() == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert (line.split()[:2], line.split()[3:]) == (["0", "2"], ["3", '{"k":3}'])


def test_dumps_give_records_by_topic_partition_and_offset(run, server, topic):
    values = [b"plain", b"\x00\xff", b"{}"]
    for partition in (0, 1):
        for value in values:
            run("produce", topic, "--partition", partition, input=value + b"\n")
        run("topic", "roll", topic)
    where = ("--data", server.data, "--records", "--topic", topic)
    for command in ("journal", "segment"):
        shown = run(
            command, "dump", *where, "--partition", 1, "--from", 1, "--to", 3, "--format", "%t %p/%o %s"
        ).stdout_bytes
        assert shown == b"%b 1/1 \x00\xff\n%b 1/2 {}\n" % (topic.encode(), topic.encode())
        rows = [json.loads(line) for line in run(command, "dump", *where, "--format", "base64").stdout.splitlines()]
        assert sorted((row["partition"], row["offset"]) for row in rows) == [(p, o) for p in (0, 1) for o in range(3)]
        assert rows[1]["value"] == "AP8="
        binary = json.loads(run(command, "dump", *where, "--json", "--from", 1, "-n", 1).stdout)
        assert (binary["value"], binary["value_format"]) == ("AP8=", "binary")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["journal", "dump", "--from", 3], "give --records"),
        (["journal", "dump", "--records", "--from", 3, "--to", 3], "it is not above --from 3"),
        (["journal", "dump", "--records", "--topic", "none of them"], "neither a topic"),
        (["journal", "dump", "--records", "--json", "--format", "csv"], "one of --json and --format"),
        (["journal", "dump", "--records", "--format", "parquet"], "consume --output"),
        (["journal", "dump", "--records", "--format", "%q"], "is no field"),
        (["segment", "dump", "--limit", 3], "give --records"),
        (["segment", "dump"], "name files"),
        (["segment", "verify"], "name files"),
        (["segment", "dump", "x.parquet", "--partition", 0], "go with --topic"),
    ],
)
def test_bad_arguments_are_reported(run, server, monkeypatch, arguments, reason):
    monkeypatch.setenv("LOGSTORE_DATA", str(server.data))
    assert reason in " ".join(run(*arguments, code=2).stderr.replace("│", "").split())


def test_a_topic_and_a_partition_that_are_not_there(run, server, topic):
    assert "no topic 'nowhere'" in run("segment", "dump", "--topic", "nowhere", "--data", server.data, code=1).stderr
    found = run("segment", "verify", "--topic", topic, "--partition", 7, "--data", server.data, code=1).stderr
    assert "partitions 0 to 1" in found


def test_segment_dump_of_something_else_is_one_line(run, tmp_path):
    other = tmp_path / "other.parquet"
    other.write_bytes(b"PAR1 no, it is not")
    assert "other.parquet" in run("segment", "dump", other, code=1).stderr
    assert "There is no file" in run("segment", "dump", tmp_path / "none", code=1).stderr


def test_dumps_show_who_sent_what(run, run_json, server, topic):
    producer = httpx.post(f"{server.url}/producers").json()
    headers = {
        "Logstore-Producer-Id": str(producer["producer_id"]),
        "Logstore-Producer-Epoch": "0",
        "Logstore-Base-Sequences": "0=0",
    }
    for named in (headers, {"Idempotency-Key": "k"}):
        body = {"records": [{"value": 1}]}
        assert httpx.post(f"{server.url}/topics/{topic}/partitions/0", json=body, headers=named).status_code == 200
    run("topic", "roll", topic)
    (file,) = (server.data / "topics" / topic / "partition=0").glob("*.parquet")
    assert "Remembered at its end: 1 producer, 1 idempotency key" in run("segment", "dump", file).stdout
    (of_producer,) = run_json("segment", "dump", file)["footer"]["producers"]
    assert of_producer[:5] == [producer["producer_id"], 0, 0, 1, 0]
    shown = run("journal", "dump", journal_of(server)).stdout
    assert f"producer {producer['producer_id']} epoch 0 sequence 0" in shown
    assert re.search(r"idempotency key [0-9a-f]{16}\n", shown)


def test_dump_counts_what_a_snapshot_remembers(run, tmp_path):
    packed = [b"".join(RememberedBatch(n, 0, 0, 1, n, 0).pack() for n in range(count)) for count in (2, 3)]

    async def scenario():
        snapshot = snapshot_frame()._replace(payload=PartitionSnapshot(0, (), 3, *packed).encode())
        async with running(tmp_path, snapshots=lambda: [snapshot]):
            pass

    asyncio.run(scenario())
    assert "sealed 0, 2 producers, 3 idempotency keys\n" in run("journal", "dump", tmp_path).stdout


@pytest.mark.parametrize("compression", Compression)
def test_record_batches_of_kafka_clients_are_dumped_and_verified(run, tmp_path, compression):
    rows = [Row(1_700_000_000_000, b"k", b"v", (("h", None),)), Row(None, None, b"", None)]
    frame = kafka_frame(7, client_batch(rows, compression=compression))
    frame = frame._replace(header=frame.header._replace(record_count=2))

    async def scenario():
        async with running(tmp_path) as (journal, _):
            await journal.append([frame])

    asyncio.run(scenario())
    assert " kafka_batch " in run("journal", "dump", tmp_path).stdout
    shown = run("journal", "dump", tmp_path, "--records", "--json").stdout.splitlines()
    found = [json.loads(line) for line in shown]
    assert [(row["offset"], row["timestamp"], row["key"], row["value"]) for row in found] == [
        (7, 1_700_000_000_000, "k", "v"),
        (8, 1_000, None, ""),
    ], "the append time of the frame"
    assert " good" in run("journal", "verify", tmp_path).stdout


def test_frames_that_a_start_refuses_are_shown_by_name(run, run_json, tmp_path):
    async def scenario():
        async with running(tmp_path) as (journal, _):
            await journal.append([data_frame(0), control_frame(1), truncate_frame(1), transactional_frame(1)])

    asyncio.run(scenario())
    _, _, control, truncation, refused = run("journal", "dump", tmp_path).stdout.splitlines()
    assert " control " in control
    assert control.endswith("  COMMIT coordinator epoch 7, producer 5 epoch 2")
    assert " truncate " in truncation
    assert truncation.endswith("  the log ends at 1")
    assert "  refused by this release, transactional" in refused
    (report,) = run_json("journal", "verify", tmp_path, code=1)
    assert "TRANSACTIONAL (4)" in report["damage"]
    assert " refused" in run("journal", "verify", tmp_path, code=1).stdout
    assert "TRANSACTIONAL (4)" in run("journal", "repair", tmp_path, "--yes", code=1).stderr
