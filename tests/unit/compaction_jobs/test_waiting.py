"""The reasons to wait agree with the plans: a job becomes due at the named moment, and not before."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_jobs.planning import plan_compaction, plan_retention
from compaction_jobs.waiting import compaction_waits, instant, retention_waits, vacuum_waits
from logstore.delta.clean_files import clean_digest
from logstore.delta.removed_files import UnnamedFiles
from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.table_files import Entry
from logstore.topic_config import TopicConfig
from tests.support.partition_histories import NOW, configs, histories, segment_file

DAY_MS = 86_400_000


@given(histories(), configs, st.integers(0, 3 * NOW))
def test_retention_comes_due_when_it_says(history, config, now_ms):
    state, files = history
    if plan_retention(0, state, files, config, now_ms):
        return
    waits = retention_waits(0, state, files, config, now_ms)
    if waits.due_ms is None:
        assert plan_retention(0, state, files, config, 10 * NOW) is None
    else:
        assert waits.due_ms > now_ms
        assert plan_retention(0, state, files, config, waits.due_ms - 1) is None
        assert plan_retention(0, state, files, config, waits.due_ms)
        assert waits.segment == next(f.path for f in files if f.end_offset > state.log_start)


@given(histories(), configs)
def test_retention_comes_due_with_the_bytes_that_it_names(history, config):
    state, files = history
    config = replace(config, cleanup_policy=frozenset({"delete"}), retention_ms=-1)
    if plan_retention(0, state, files, config, NOW):
        return
    message = retention_waits(0, state, files, config, NOW).message
    if "more bytes" not in message:
        assert config.retention_bytes < 0 or not [f for f in files if f.num_records and f.end_offset > state.log_start]
        return
    missing = int(message.rpartition("keeps it until ")[2].partition(" ")[0].replace(",", ""))
    for size, due in ((missing - 1, False), (missing, True)):
        more = SegmentFile("next", size, 1, state.sealed, state.sealed + 1, state.sealed, state.sealed, NOW, NOW)
        rolled = replace(state, sealed=state.sealed + 1)
        assert bool(plan_retention(0, rolled, (*files, more), config, NOW)) == due


@given(histories(), configs, st.integers(0, 3 * NOW))
def test_compaction_comes_due_when_it_says(history, config, now_ms):
    state, files = history
    config = replace(config, cleanup_policy=frozenset({"compact"}))
    if plan_compaction(0, state, files, config, now_ms):
        return
    waits = compaction_waits(0, state, files, config, now_ms)
    if waits.due_ms is None:
        assert plan_compaction(0, state, files, config, 10 * NOW) is None
    else:
        assert waits.due_ms > now_ms
        assert plan_compaction(0, state, files, config, waits.due_ms - 1) is None
        assert plan_compaction(0, state, files, config, waits.due_ms)


def test_retention_names_the_segment_its_end_and_what_waits_behind_it():
    files = (segment_file(0, 10, 0, 5 * DAY_MS), segment_file(10, 10, 0, DAY_MS), segment_file(20, 10, 0, DAY_MS))
    config = TopicConfig.parse({"retention.ms": str(2 * DAY_MS), "retention.bytes": "25"})
    waits = retention_waits(3, PartitionState(30, 0, 0, 0, 0), files, config, 6 * DAY_MS)
    assert (waits.partition, waits.reason, waits.segment, waits.due_ms) == (3, "young", files[0].path, 7 * DAY_MS + 1)
    assert waits.message == (
        "the oldest segment (offsets 0 to 9) stays: its newest record is of 1970-01-06T00:00:00Z, so "
        "retention.ms=172800000 keeps it until 1970-01-08T00:00:01Z; retention.bytes=25 keeps it until 5 more bytes "
        "are rolled; 2 older segments wait behind it"
    )


COMPACT = {"cleanup.policy": "compact"}
OVERDUE = {**COMPACT, "max.compaction.lag.ms": str(9 * DAY_MS)}
LAG = {**COMPACT, "min.compaction.lag.ms": str(7 * DAY_MS), "min.cleanable.dirty.ratio": "0"}
RATIO = "10 of 40 bytes were never compacted, a ratio of 0.25; more than min.cleanable.dirty.ratio=0.5 is needed"
YOUNG = (
    "offsets 10 to 19) is younger than min.compaction.lag.ms=604800000: its newest record is of 1970-01-03T00:00:00Z"
)


@pytest.mark.parametrize(
    ("config", "cleaned", "reason", "message", "due_ms"),
    [
        ({}, 0, "policy", "cleanup.policy is delete", None),
        (COMPACT, 20, "clean", "nothing was rolled since the last compaction, up to offset 20", None),
        (COMPACT, 10, "ratio", RATIO, None),
        (OVERDUE, 10, "ratio", f"{RATIO}; due at 1970-01-11T00:00:01Z", 10 * DAY_MS + 1),
        (LAG, 10, "young", f"{YOUNG}; due at 1970-01-10T00:00:00Z", 9 * DAY_MS),
    ],
)
def test_compaction_names_what_it_waits_for(config, cleaned, reason, message, due_ms):
    files = (segment_file(0, 30, 0, 0), segment_file(10, 10, DAY_MS, 2 * DAY_MS))
    state = PartitionState(20, 0, 0, 0, cleaned, clean_digest(files, cleaned))
    waits = compaction_waits(0, state, files, TopicConfig.parse(config), 3 * DAY_MS)
    assert (waits.reason, waits.due_ms) == (reason, due_ms)
    assert message in waits.message


def test_an_empty_partition_waits_for_a_roll():
    state = PartitionState(0, 0, 0, 0, 0)
    config = TopicConfig.parse({"cleanup.policy": "compact,delete", "retention.ms": "1"})
    assert [w(0, state, (), config, NOW).reason for w in (retention_waits, compaction_waits)] == ["empty", "empty"]


def test_vacuum_says_which_files_wait_and_until_when():
    def files(**sizes: int) -> dict[str, Entry]:
        return {name: Entry(name, size, DAY_MS, (0, 0, 0)) for name, size in sizes.items()}

    removed = {"a": (10, 2 * DAY_MS), "b": (20, DAY_MS), "c": (1, None)}
    unnamed = UnnamedFiles(superseded=files(d=4), needed=files(e=5), others=files(f=5))
    dated, undated, superseded, others, needed = vacuum_waits(removed, unnamed, 3 * DAY_MS, 7 * DAY_MS, full=False)
    assert (dated.reason, dated.due_ms, dated.segment) == ("young", 4 * DAY_MS, "b")
    assert dated.message == (
        "2 files of 30 bytes left the table; file.delete.delay.ms=259200000 lets them go from 1970-01-05T00:00:00Z to "
        "1970-01-06T00:00:00Z"
    )
    assert undated.message == "1 file of 1 bytes left the table at a time that the log does not say"
    assert [w.reason for w in (undated, superseded, others, needed)] == ["unnamed"] * 4
    assert [w.due_ms for w in (undated, superseded, others, needed)] == [None, 8 * DAY_MS, None, None]
    went = "1 file of 5 bytes named by no commit can go from 1970-01-09T00:00:00Z on"
    assert others.message == f"{went} by a vacuum with --full"
    assert needed.message == "1 file of 5 bytes named by no commit have offsets that the table lacks, and stay"
    full = vacuum_waits({}, unnamed, 7 * DAY_MS, 7 * DAY_MS, full=True)
    assert (full[1].message, full[1].due_ms) == (went, 8 * DAY_MS)
    assert [w.reason for w in vacuum_waits({}, UnnamedFiles({}, {}, {}), 0, 0, full=False)] == ["empty"]


def test_a_time_without_a_date_is_shown_in_milliseconds():
    config = TopicConfig.parse({"retention.ms": str(2**62)})
    waits = retention_waits(0, PartitionState(10, 0, 0, 0, 0), (segment_file(0, 1, 0, 0),), config, NOW)
    assert waits.due_ms is None
    assert instant(2**62) == f"{2**62} ms"
    assert instant(253_402_300_799_999) == "9999-12-31T23:59:59Z"
