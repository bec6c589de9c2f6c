"""The present version opens what earlier ones wrote. ``write.py`` says how the files were made; they never change."""

import base64
import json
import re
import shutil
import tarfile
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import pytest

from logstore.cli.data_directory import is_of_cluster
from logstore.cluster.embedded_cluster_state import EmbeddedClusterState
from logstore.delta.topic_table import TopicTable
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem
from logstore.inspection.journal import dump, verify
from logstore.inspection.observed_journal import ObservedJournal
from logstore.inspection.table_check import verify_topic
from logstore.inspection.table_rebuild import Known, carry_out, plan_rebuild
from logstore.journal import format_1
from logstore.journal.frame import FORMAT_VERSION, HEADER_BYTES, FrameFlags, FrameType, decode_frame_header
from logstore.journal.identity import FoundJournal
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.log.history import history_gaps
from logstore.log.journal_tail import collect_tails
from logstore.records.batch_identity import unpack_batches
from logstore.replication.protocol import split_frames
from logstore.table_files import open_table
from logstore.table_root import open_root
from logstore.topic_config import TopicConfig
from tests.api.api_client import ApiClient
from tests.golden.observed import CLOCK_MS, in_table, observed, store_at
from tests.golden.parts import (
    deterministic,
    encoded_frame,
    footer_row,
    frame_rows,
    frames,
    frames_of_format_1,
    snapshot,
    snapshot_of_format_1,
    snapshot_with_transactions,
)
from tests.golden.write import GOLDEN, journal_rows, segment_row
from tests.support.data_directory import lose_journal
from tests.support.journals import recovered_frames
from tests.support.keyed_topics import KeyedTopic
from tests.support.local_jobs import compact, retain
from tests.support.running_broker import running_broker
from tests.support.table_paths import read_footer, verify_segment

pytestmark = pytest.mark.anyio

_EMPTY = FoundJournal(Path("journal"), 0, None, is_empty=True)
#: Each directory has some of these parts, or all of them.
_PARTS = ("data", "journal", "record_batches", "refused", "segments", "cluster", "bytes")
#: In this format the keys of requests were made without a secret.
_FORMAT_1 = "journal-1"


def of_part(part: str) -> pytest.MarkDecorator:
    """Run a test for each directory that has the part."""
    found = sorted(path.parent for path in GOLDEN.glob(f"*/{part}.json"))
    return pytest.mark.parametrize("golden", found, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def expected(golden: Path) -> dict[str, Any]:
    return _json(golden, "data")


@pytest.fixture
def data(golden: Path, tmp_path: Path) -> Path:
    with tarfile.open(golden / "data.tar.gz") as packed:
        packed.extractall(tmp_path, filter="tar")  # the archive keeps the mode of the secret
    return tmp_path / "data"


def _json(golden: Path, name: str) -> Any:
    return json.loads((golden / f"{name}.json").read_text())


def _stored(partition: int, offset: int) -> dict[str, Any]:
    return {"partition": partition, "offset": offset, "error_code": None, "error": None}


def test_there_are_golden_files() -> None:
    found = {path.parent.name: set() for path in GOLDEN.glob("*/*.json")}
    for path in GOLDEN.glob("*/*.json"):
        found[path.parent.name].add(path.stem)
    assert found["2026-11-22"] == {"data", "journal", "segments", "bytes"}
    assert found["journal-1"] == {"data", "journal", "segments", "cluster", "bytes"}
    assert found["cluster-2"] == {"cluster"}
    assert found["journal-3"] == {"journal", "refused", "bytes"}
    assert found["journal-4"] == {"data", "journal", "refused", "bytes"}
    assert found["segments-3"] == {"data", "segments"}
    assert set().union(*found.values()) == set(_PARTS)


@of_part("data")
@pytest.mark.parametrize("now_ms", [CLOCK_MS, None], ids=["then", "today"])
async def test_a_store_answers_what_was_stored(data: Path, expected: dict[str, Any], now_ms: int | None) -> None:
    """Check the same again after a roll and another start, when all records are in tables."""
    facts = {name: expected[name] for name in ("topics", "groups")}
    async with store_at(data, now_ms) as api:
        assert await observed(api) == facts
        assert (await api.get("/health/ready")).json()["problems"] == []
        for topic in facts["topics"]:
            assert (await api.post(f"/topics/{topic}/roll")).is_success
    async with store_at(data, now_ms) as api:
        assert await observed(api) == facts


@of_part("data")
async def test_stored_batches_are_found_whole(data: Path) -> None:
    """Verify tables with checkpoints, compacted and cut files, and the journal."""
    tails = collect_tails(ObservedJournal(data / "brokers" / "0" / "journal" / "0").frames())
    root = open_root(data)
    for name in root.tables():
        assert verify_topic(root.open(name), {"": tails}).problems == [], name


@of_part("data")
async def test_every_table_is_rebuilt_from_its_files(data: Path, expected: dict[str, Any]) -> None:
    """Rebuild the lost logs, although compaction and retention have left replaced files on the disk."""
    tails = collect_tails(ObservedJournal(data / "brokers" / "0" / "journal" / "0").frames())
    root = open_root(data)
    for name in root.tables():
        before = TopicTable.open(root.open(name)).snapshot()
        shutil.rmtree(data / "topics" / name / "_delta_log")
        known = Known(
            topic_id=before.topic_id,
            partitions=before.num_partitions,
            configs=before.config_overrides,
            log_starts={partition: state.log_start for partition, state in before.partitions.items()},
        )
        carry_out(root, plan_rebuild(root.open(name), tails, known, {}))
        after = TopicTable.open(root.open(name)).snapshot()
        assert after.paths == before.paths, name
        # The digest, and a compaction that found nothing to remove, are only in the log, so the compaction is repeated.
        known = {
            p: replace(s, clean_digest=0, cleaned=min(s.cleaned, after.partitions[p].cleaned)) if s.clean_digest else s
            for p, s in before.partitions.items()
        }
        assert {p: replace(s, rewrite=0) for p, s in after.partitions.items()} == {
            p: replace(s, rewrite=0) for p, s in known.items()
        }, name
    async with store_at(data, CLOCK_MS) as api:
        assert await observed(api) == {name: expected[name] for name in ("topics", "groups")}


@of_part("data")
async def test_a_store_knows_again_what_it_has_stored(golden: Path, data: Path, expected: dict[str, Any]) -> None:
    """Repeat batches of idempotent producers and requests with a key, which tables and the journal remember."""
    async with store_at(data) as api:
        before = await observed(api)
        for sent in expected["repeated"]:
            if golden.name == _FORMAT_1 and "Idempotency-Key" in sent["headers"]:
                continue  # the next test
            answer = await api.post(sent["path"], content=base64.b64decode(sent["body"]), headers=sent["headers"])
            assert (answer.status_code, answer.json()) == (200, sent["answer"])
        assert await observed(api) == before
        # The next batch is accepted, a batch after a gap is not.
        of_producers = [sent for sent in expected["repeated"] if "Logstore-Base-Sequences" in sent["headers"]]
        assert of_producers
        for sent in of_producers:
            headers = sent["headers"] | {"Logstore-Base-Sequences": "0=1000"}
            answer = await api.post(sent["path"], content=base64.b64decode(sent["body"]), headers=headers)
            assert answer.status_code == 409, answer.text
        last = of_producers[-1]
        sequence = int(last["headers"]["Logstore-Base-Sequences"].removeprefix("0="))
        count = len(json.loads(base64.b64decode(last["body"]))["records"])
        headers = last["headers"] | {"Logstore-Base-Sequences": f"0={sequence + count}"}
        answer = await api.post(last["path"], content=base64.b64decode(last["body"]), headers=headers)
        assert answer.status_code == 200, answer.text
        topic = last["path"].split("/")[2]
        assert answer.json()["offsets"][0]["offset"] == before["topics"][topic]["partitions"][0]["end"]


@pytest.mark.parametrize("golden", [GOLDEN / _FORMAT_1])
@pytest.mark.parametrize("without_journal", [False, True])
async def test_requests_with_a_key_are_refused_while_keys_of_format_1_are_remembered(
    data: Path, expected: dict[str, Any], without_journal: bool
) -> None:
    """Find the keys in the journal of format 1, in today's journal, or in the tables, depending on the start."""
    keyed = [sent for sent in expected["repeated"] if "Idempotency-Key" in sent["headers"]]
    assert len(keyed) == 2

    async def answers(api: ApiClient) -> list[httpx.Response]:
        bodies = (base64.b64decode(sent["body"]) for sent in keyed)
        return [
            await api.post(sent["path"], content=body, headers=sent["headers"])
            for sent, body in zip(keyed, bodies, strict=True)
        ]

    for _ in range(2):
        async with store_at(data) as api:
            assert await observed(api) == {name: expected[name] for name in ("topics", "groups")}
            for answer in await answers(api):
                assert answer.status_code == 429, answer.text
                assert "from before the store's secret was lost" in answer.text
                assert int(answer.headers["Retry-After"]) > 0
            assert await observed(api) == {name: expected[name] for name in ("topics", "groups")}
        if without_journal:
            lose_journal(data)
    for _ in range(2):
        async with store_at(data, CLOCK_MS + TopicConfig.parse({}).idempotency_window_ms) as api:
            found = [(answer.status_code, answer.json()) for answer in await answers(api)]
            assert [status for status, _ in found] == [200, 200]
            assert found == [(answer.status_code, answer.json()) for answer in await answers(api)]


@pytest.mark.parametrize("golden", [GOLDEN / _FORMAT_1])
def test_keys_of_format_1_are_found_in_snapshots_and_in_frames(data: Path) -> None:
    tails = collect_tails(ObservedJournal(data / "brokers" / "0" / "journal" / "0").frames()).values()
    in_snapshots = [unpack_batches(tail.snapshot.idempotency_keys) for tail in tails if tail.snapshot is not None]
    sealed, unsealed = (blake2b(key, digest_size=8).digest() for key in (b"sealed-key", b"tail-key"))
    assert {(key.owner, key.epoch) for keys in in_snapshots for key in keys} == {(int.from_bytes(sealed, "little"), -1)}
    found = {(batch.owner, batch.epoch) for tail in tails for batch in tail.batches() if batch.epoch < 0}
    assert found == {(int.from_bytes(unsealed, "little"), -1)}


@of_part("data")
async def test_a_store_continues_where_the_log_ended(data: Path, expected: dict[str, Any]) -> None:
    async with store_at(data) as api:
        for name, topic in expected["topics"].items():
            body = {"records": [{"key": "k", "value": "new"}]}
            for partition, found in enumerate(topic["partitions"]):
                answer = await api.post(f"/topics/{name}/partitions/{partition}", json=body)
                assert answer.json()["offsets"] == [_stored(partition, found["end"])], answer.text


@of_part("data")
def test_a_plain_reader_sees_what_was_sealed(data: Path, expected: dict[str, Any]) -> None:
    assert {name: in_table(data, name) for name in expected["topics"]} == expected["tables"]
    assert any(expected["tables"].values())


@of_part("data")
async def test_a_data_directory_of_any_release_continues_with_todays_rolls_and_jobs(
    data: Path, expected: dict[str, Any]
) -> None:
    """Work with names of several releases side by side, and through starts without a journal."""
    facts = expected["topics"]
    rounds = 2
    for round_ in range(rounds):
        async with store_at(data) as api:
            for topic, partition in _partitions(facts):
                body = {"records": [{"key": f"new {round_}", "value": "new"}]}
                assert (await api.post(f"/topics/{topic}/partitions/{partition}", json=body)).is_success
        # The stop has rolled the records.
        for topic in (name for name in facts if name != "__consumer_offsets"):
            table = TopicTable(open_table(data / "topics" / topic))
            names = [file.path for p in table.snapshot().partitions for file in table.snapshot().segments(p)]
            assert any(path.count("-") == 3 for path in names), "a name that tells its end"
            keyed = KeyedTopic(data, topic, table)
            if facts[topic]["configs"].get("cleanup.policy") == "compact":
                table.alter_config({"min.cleanable.dirty.ratio": "0"})
                assert compact(keyed, CLOCK_MS).versions
            retain(keyed, CLOCK_MS)
            snapshot = table.snapshot()
            assert [history_gaps(snapshot, p) for p in snapshot.partitions] == [[]] * snapshot.num_partitions
        lose_journal(data)
    async with store_at(data) as api:
        assert (await api.get("/health/ready")).json()["problems"] == []
        now = (await observed(api))["topics"]
    for topic, partition in _partitions(facts):
        before, after = (found[topic]["partitions"][partition] for found in (facts, now))
        assert after["end"] == before["end"] + rounds
        left = [row for row in before["records"] if row[0] >= after["log_start"]]
        if topic != "compacted":
            assert after["records"][: len(left)] == left
        elif left:
            assert {row[0] for row in after["records"]} <= {row[0] for row in left} | {before["end"], before["end"] + 1}


def _partitions(topics: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the partitions of topics that users made."""
    names = (name for name in topics if name != "__consumer_offsets")
    return [(name, partition) for name in names for partition in range(len(topics[name]["partitions"]))]


@of_part("journal")
def test_a_journal_is_read_frame_by_frame(golden: Path, tmp_path: Path) -> None:
    rows = [_with_later_fields(row) for row in _json(golden, "journal")]
    assert frame_rows(dump(golden / "journal")) == rows
    later = {"CONTROL", "TRUNCATE"} if _version(golden) >= 3 else set()
    assert {row["type"] for row in rows} == {"DATA", "SNAPSHOT"} | later
    assert {(row["relocated"], row["log_append_time"]) for row in rows} == {
        (False, False),
        (True, False),
        (True, True),
    }
    report = verify(golden / "journal")
    assert (report.frames, report.damage) == (len(rows), None)

    copy = tmp_path / "journal"
    copy.mkdir()
    for path in (golden / "journal").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    found = [
        (frame.header.type.name, frame.header.base_offset, tuple(frame.location)) for frame in recovered_frames(copy)
    ]
    assert found == [(row["type"], row["base_offset"], (row["position"], row["length"])) for row in rows]


#: These are the values for a footer that was written before the fields existed.
_UNTOLD: dict[str, Any] = {"producers_forgotten_up_to": None, "log_append_times": [], "columns": None}
#: These are the values for a snapshot or a footer that was written before the fields existed.
_WITHOUT_TRANSACTIONS: dict[str, Any] = {"open_transactions": [], "markers": []}


@of_part("segments")
def test_segments_are_read_row_by_row(golden: Path) -> None:
    segments = _json(golden, "segments")
    for segment in segments.values():
        segment["footer"] = _WITHOUT_TRANSACTIONS | _UNTOLD | segment["footer"]
    assert {path: segment_row(golden / "segments" / path) for path in segments} == segments
    for path in segments:
        verify_segment(golden / "segments" / path)
        footer = read_footer(golden / "segments" / path)
        assert footer_row(footer) == segments[path]["footer"]
    if golden.name == "segments-3":
        footers = [segment["footer"] for segment in segments.values()]
        assert any(not segment["row_groups"] for segment in segments.values()), "one without a record"
        assert any(footer["markers"] and footer["open_transactions"] for footer in footers)
        assert {footer["operation"] for footer in footers} == {"roll", "key-compaction"}
    if golden.name == "append-times":
        assert any(segment["footer"]["log_append_times"] for segment in segments.values())


def _with_later_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return a dumped frame of an earlier release with the fields that dumps have had since then."""
    row = dict(row)
    if "producer_id" in row:
        producer_id, epoch, sequence, key = (
            row.pop(f) for f in ("producer_id", "producer_epoch", "base_sequence", "idempotency_key_hash")
        )
        row["identity"] = [key or producer_id, epoch, sequence] if key or epoch >= 0 else None
    if row["snapshot"] is not None:
        row["snapshot"] = _WITHOUT_TRANSACTIONS | row["snapshot"]
    return {"transactional": False, "control": None, "honoured": True} | row


@of_part("bytes")
def test_the_same_bytes_are_written_for_the_same_input(golden: Path) -> None:
    """Write the keys of group offsets and of idempotent requests, which later reads compare byte by byte. If the golden
    files have the present version of the journal, write frames and headers as well.
    """
    written = _json(golden, "bytes")
    if not _is_of_this_version(golden):
        written = {name: data for name, data in written.items() if not name.startswith(_VERSIONED)}
    if golden.name == _FORMAT_1:
        del written["idempotency key"], written["fingerprint"]
    assert written
    assert deterministic().items() >= written.items()


# Beginnings of the names in ``bytes.json`` of bytes that hold the journal's version.
_VERSIONED = ("file header", "mark", "frame ")


def _version(golden: Path) -> int:
    return base64.b64decode(_json(golden, "bytes")["file header"])[8]


def _is_of_this_version(golden: Path) -> bool:
    return _version(golden) == FORMAT_VERSION


@of_part("bytes")
def test_frames_are_decoded(golden: Path) -> None:
    written = _json(golden, "bytes")
    payloads = []
    is_format_1 = golden.name == _FORMAT_1
    for number, (frame, place) in enumerate(frames_of_format_1() if is_format_1 else frames()):
        if f"frame {number}" not in written:
            assert not _is_of_this_version(golden)
            continue
        data = base64.b64decode(written[f"frame {number}"])
        stored = decode_frame_header(data, 0, place["position"], place["file_id"])
        assert stored is not None
        assert (stored.header, stored.durable_end) == (frame.header, place["durable_end"])
        if frame.header.takes_offsets:
            (copied,) = split_frames(data)  # as a follower takes it from a leader's journal
            assert copied.header == frame.header._replace(flags=frame.header.flags & ~FrameFlags.RELOCATED)
        payloads.append(data[HEADER_BYTES:])
        if frame.header.type is not FrameType.SNAPSHOT:
            assert payloads[-1] == bytes(frame.payload)
        if _is_of_this_version(golden):
            assert encoded_frame(frame, place) == data
    if is_format_1:
        assert PartitionSnapshot.decode(format_1.snapshot_payload(payloads[6])) == snapshot_of_format_1()
    else:
        assert PartitionSnapshot.decode(payloads[6]) == snapshot()
    if _is_of_this_version(golden):
        assert PartitionSnapshot.decode(payloads[7]) == snapshot_with_transactions()


@of_part("record_batches")
def test_record_batches_of_kafka_clients_are_read(golden: Path, tmp_path: Path) -> None:
    found = _json(golden, "record_batches")
    directory = golden / "record_batches"
    assert frame_rows(dump(directory)) == found["frames"]
    assert [row["type"] for row in found["frames"]] == ["KAFKA_BATCH"] * 7 + ["DATA"]
    assert verify(directory).damage is None
    assert journal_rows(directory) == found["records"]
    assert len(found["records"]) == 24
    shutil.copytree(directory, tmp_path / "journal")
    assert len(recovered_frames(tmp_path / "journal")) == 8


@of_part("cluster")
async def test_a_cluster_file_of_any_version_is_read(golden: Path, tmp_path: Path) -> None:
    """Read the file; ``tests/cluster/test_registration.py`` starts a broker of a cluster on it."""
    expected = _json(golden, "cluster")
    shutil.copytree(golden / "cluster", tmp_path, dirs_exist_ok=True)
    for name, cluster_id in expected.items():
        assert is_of_cluster(tmp_path / name) == (name == "cluster")
        coordinator = EmbeddedClusterState(tmp_path / name, 0, FileSystem())
        if name == "cluster":
            with pytest.raises(DataDirectoryError, match="belongs to a cluster"):
                await coordinator.start(lambda _: _EMPTY)
        else:
            await coordinator.start(lambda _: _EMPTY)
            assert coordinator.cluster_id == cluster_id
            await coordinator.stop()


@of_part("refused")
async def test_unknown_features_are_refused_by_name(golden: Path, tmp_path: Path) -> None:
    expected = _json(golden, "refused")
    if expected.pop("KAFKA_BATCH", None):
        assert verify(golden / "refused" / "KAFKA_BATCH").damage is None, "honoured since"
    assert expected.keys() == {"TRANSACTIONAL"}
    for name, rows in expected.items():
        assert frame_rows(dump(golden / "refused" / name)) == rows
        (refused,) = [row for row in rows if not row["honoured"]]
        message = f"position {refused['position']} .* {name} .*which this release does not serve.* start that one"
        damage = verify(golden / "refused" / name).damage
        assert damage is not None
        assert re.search(message, damage.message)
        journal = tmp_path / name / "brokers" / "0" / "journal" / "0"
        shutil.copytree(golden / "refused" / name, journal)
        before = {path.name: path.read_bytes() for path in journal.glob("*.log")}
        with pytest.raises(DataDirectoryError, match=message):
            async with running_broker(tmp_path / name):
                pass
        assert {path.name: path.read_bytes() for path in journal.glob("*.log")} == before
