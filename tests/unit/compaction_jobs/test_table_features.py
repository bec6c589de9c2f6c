"""Jobs on tables with features of another writer: deletion vectors, append-only, row ids, in-commit timestamps."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import TopicReport
from logstore.segments.reader import read_row_group, row_groups
from logstore.table_root import open_root
from tests.support import deletion_vectors as vectors
from tests.support import table_features as features
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.table_paths import path_of

DAY_MS = 86_400_000


def topic_of(tmp_path: Path, **config: object) -> KeyedTopic:
    """Create four segments of five records, with keys a to e, and offsets as values."""
    topic = KeyedTopic.create(tmp_path, "users", **config)
    for start in range(0, 20, 5):
        topic.roll({0: [Record(b"abcde"[at : at + 1], b"%d" % (start + at), start + at) for at in range(5)]})
    return topic


def ran(topic: KeyedTopic, job: str, *, later_ms: int = 1000) -> TopicReport:
    with job_context(time.time_ns() // 1_000_000 + later_ms) as context:
        (report,) = run_job(job, topics_of(job, open_root(topic.data), [], {}), context).topics
    assert report.error is None, report.error
    return report


def served(topic: KeyedTopic) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for segment in topic.table.snapshot().segments(0):
        for group in row_groups(topic.table.files, segment.path):
            batch = read_row_group(topic.table.files, segment.path, group.index)
            found |= zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return found


def test_retention_passes_over_deleted_rows(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, retention_ms=1)
    vectors.delete(path_of(topic.table), [3, 7, 19])
    ran(topic, "retention")
    snapshot = topic.table.snapshot()
    assert snapshot.partitions[0].log_start == 20
    assert served(topic) == {}
    # The last file keeps the partition's state, but not its records.
    assert [file.end_offset for file in snapshot.segments(0)] == [20]


def test_retention_cuts_a_file_with_a_vector_at_the_log_start(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    vectors.delete(path_of(topic.table), [3, 7, 9])
    topic.table.advance_log_start({0: 8}, {0: 1})
    ran(topic, "retention")
    assert list(served(topic)) == [8, *range(10, 20)]
    assert topic.table.snapshot().vectors == ()


def test_key_compaction_takes_a_deleted_record_for_none(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
    vectors.delete(path_of(topic.table), [15])
    vectors.update(path_of(topic.table), [16], b"new")
    ran(topic, "compact")
    # The update changed the record's key.
    expected = {10: b"10", 11: b"11", 16: b"new", 17: b"17", 18: b"18", 19: b"19"}
    assert served(topic) == expected
    assert topic.table.snapshot().vectors == ()
    # A row that is deleted below the clean point makes its file dirty again.
    vectors.delete(path_of(topic.table), [17])
    topic.roll({0: [Record(b"x", b"20", 20)]})
    ran(topic, "compact")
    del expected[17]
    assert served(topic) == {**expected, 20: b"20"}


def test_merge_writes_files_with_vectors_again(tmp_path: Path) -> None:
    topic = KeyedTopic.create(tmp_path, "users")
    for start in range(40):
        topic.roll({0: [Record(b"k", b"%d" % start, start)]})
    vectors.delete(path_of(topic.table), [3])
    vectors.update(path_of(topic.table), [5], b"new")
    expected = served(topic)
    assert (len(expected), expected[5]) == (39, b"new")
    ran(topic, "merge")
    assert served(topic) == expected
    assert topic.table.snapshot().vectors == ()
    assert len(topic.table.snapshot().segments(0)) < 40


@pytest.mark.parametrize("job", ["retention", "compact"])
def test_an_append_only_table_keeps_its_records(tmp_path: Path, job: str) -> None:
    policy = {"retention": "delete", "compact": "compact"}[job]
    topic = topic_of(tmp_path, retention_ms=1, cleanup_policy=policy, min_cleanable_dirty_ratio=0.01)
    features.turn_on(path_of(topic.table), "appendOnly")
    version = topic.table.snapshot().version
    report = ran(topic, job)
    assert [(wait.reason, "delta.appendOnly" in wait.message) for wait in report.waiting] == [("append-only", True)]
    assert topic.table.snapshot().version == version
    assert len(served(topic)) == 20


def test_an_append_only_table_is_merged(tmp_path: Path) -> None:
    topic = KeyedTopic.create(tmp_path, "users")
    for start in range(40):
        topic.roll({0: [Record(b"k", b"%d" % start, start)]})
    features.turn_on(path_of(topic.table), "appendOnly")
    assert ran(topic, "merge").versions
    assert len(served(topic)) == 40


def test_vacuum_keeps_the_files_of_vectors_that_count(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, file_delete_delay_ms=0)
    table = path_of(topic.table)

    def there() -> set[str]:
        return {path.relative_to(table).as_posix() for path in table.rglob("*.bin")}

    vectors.delete(table, [3], prefix="ab")
    first = there()
    vectors.delete(table, [4], prefix="ab")
    second = there() - first
    (table / "ab" / f"deletion_vector_{'0' * 8}-0000-4000-8000-{'0' * 12}.bin").write_bytes(b"of no commit")
    unnamed = there() - first - second
    assert ran(topic, "vacuum").deleted_files == 1  # of the vector that the second one replaced
    assert there() == second | unnamed
    assert list(served(topic)) == [0, 1, 2, *range(5, 20)]
    features.turn_on(table, "vacuumProtocolCheck")
    ran(topic, "vacuum", later_ms=8 * DAY_MS)
    assert there() == second


# ---- what commits of ours have -------------------------------------------------------------------------------------


def entry(topic: KeyedTopic, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in topic.log_entry(version)]


def test_row_ids_are_given_once(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
    features.turn_on(path_of(topic.table), "rowTracking")
    topic.roll({0: [Record(b"f", b"20", 20), Record(b"g", b"21", 21)]})
    rolled = entry(topic, topic.table.snapshot().version)
    (add,) = [line["add"] for line in rolled if "add" in line]
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (60, topic.table.snapshot().version)
    (domain,) = [line["domainMetadata"] for line in rolled if "domainMetadata" in line]
    assert (domain["domain"], domain["removed"]) == ("delta.rowTracking", False)
    assert json.loads(domain["configuration"]) == {"rowIdHighWaterMark": 61}
    assert rolled[0]["commitInfo"]["tags"] == {"delta.rowTracking.preserved": "true"}
    ran(topic, "compact")
    compacted = entry(topic, topic.table.snapshot().version)
    first = [line["add"]["baseRowId"] for line in compacted if "add" in line]
    assert min(first) == 62
    removed = {line["remove"]["path"]: line["remove"].get("baseRowId") for line in compacted if "remove" in line}
    assert removed.get(add["path"], 60) == 60
    assert compacted[0]["commitInfo"]["tags"] == {"delta.rowTracking.preserved": "false"}
    # The ids survive a checkpoint.
    topic.table.checkpoint()
    before = topic.table.snapshot()
    for path in (path_of(topic.table) / "_delta_log").glob("*.json"):
        if int(path.stem) < before.version:
            path.unlink()
    topic.roll({0: [Record(b"h", b"22", 22)]})
    (later,) = [line["add"] for line in entry(topic, topic.table.snapshot().version) if "add" in line]
    highest = json.loads(before.table.domains["delta.rowTracking"])["rowIdHighWaterMark"]
    assert later["baseRowId"] == highest + 1
    ids = [(file.row_ids[0], file.num_records) for file in topic.table.snapshot().table.files if file.num_records]
    given = [(first, count) for first, count in ids if first is not None]
    assert len(given) == len({first for first, _ in given}) > 1


def test_in_commit_timestamps_rise_and_come_first(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    features.turn_on(path_of(topic.table), "inCommitTimestamp")
    enabled = topic.table.snapshot().version
    future = time.time_ns() // 1_000_000 + 10 * DAY_MS
    head = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "inCommitTimestamp": future}}
    (path_of(topic.table) / "_delta_log" / f"{enabled + 1:020d}.json").write_text(json.dumps(head))
    topic.roll({0: [Record(b"f", b"20", 20)]})
    topic.table.alter_config({"retention.ms": "7"})
    topic.table.checkpoint()
    topic.roll({0: [Record(b"f", b"21", 21)]})
    times = [entry(topic, enabled + at)[0]["commitInfo"]["inCommitTimestamp"] for at in range(2, 5)]
    assert times == [future + 1, future + 2, future + 3]
    assert DeltaTable(topic.table.files.uri).version() == enabled + 4
