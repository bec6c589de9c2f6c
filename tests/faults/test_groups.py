"""Consumer groups of real processes in the fault bench: killed, fenced, added and closed, on topics that grow."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from logstore.errors import LogStoreError, RebalanceInProgressError
from tests.faults.bench.bench import SHARED, TOPICS, Bench, Load, Report
from tests.faults.bench.group_member import Positions, Teller
from tests.faults.bench.groups import (
    CONSUMER,
    COOPERATIVE,
    KAFKA_CONSUMER,
    KAFKA_COOPERATIVE,
    MIXED,
    MIXED_COOPERATIVE,
    RANGE,
)
from tests.faults.bench.history import Recorder
from tests.faults.bench.schedule import GROUPED, faults

pytestmark = pytest.mark.system

LITTLE = Load(SHARED, producers=1, readers=0, pause_s=0.05, large=0.0, jobs=(), observed=False, groups=(CONSUMER,))
ALL = Load((*SHARED, TOPICS[0]), producers=2, readers=1, pause_s=0.05, groups=(RANGE, COOPERATIVE, CONSUMER))
#: Faults of the store, under live members.
OF_THE_STORE = ("kill", "terminate", "power_cut", "pause", "slow_fsync", "disk_full")


@pytest.mark.long
def test_a_group_whose_members_come_and_go(tmp_path: Path) -> None:
    """Strike all kinds but the restart of the store."""
    report = run(tmp_path, ("member_kill", "member_fence", "member_add", "grow"), 1, LITTLE, pace=0.1)
    assert report.moves["consumer"] >= 6


@pytest.mark.long
def test_groups_with_kafkas_protocol(tmp_path: Path) -> None:
    kinds = (*(kind for kind in GROUPED if kind != "kill_when_settled"), "kill", "pause")
    load = replace(LITTLE, producers=2, groups=(KAFKA_COOPERATIVE, KAFKA_CONSUMER, CONSUMER))
    report = run(tmp_path, kinds, 1, load, pace=0.3)
    assert all(report.moves[group.name] >= 6 for group in load.groups)


@pytest.mark.long
def test_groups_of_both_protocols_that_change_their_kind(tmp_path: Path) -> None:
    kinds = (*(kind for kind in GROUPED if kind != "kill_when_settled"), "kill", "pause")
    load = replace(LITTLE, producers=2, groups=(MIXED, MIXED_COOPERATIVE))
    report = run(tmp_path, kinds, 2, load, pace=0.3)
    assert all(report.moves[group.name] >= 6 for group in load.groups)


@pytest.mark.long
def test_groups_of_all_protocols_with_the_faults_of_members_and_of_the_store(tmp_path: Path) -> None:
    report = run(tmp_path, (*GROUPED, *OF_THE_STORE), 2, ALL, pace=0.3)
    assert all(report.moves[group.name] > 12 for group in ALL.groups)


def test_a_member_commits_again_what_a_commit_has_not_stored(tmp_path: Path) -> None:
    """Commit again as long as the member owns the partition."""
    asked: list[tuple[str, dict[int, int]]] = []
    refuses = True

    def commit(topic: str, offsets: dict[int, int]) -> None:
        asked.append((topic, offsets))
        if refuses:
            raise RebalanceInProgressError("finish that, then commit")

    with Recorder(tmp_path / "history.jsonl") as recorder:
        positions = Positions(Teller(recorder, "m", "g"))
        positions.processed("a", 0, [(4, "r4"), (5, "r5")])
        positions.processed("a", 1, [(7, "r7")])
        positions.processed("b", 0, [(9, "r9")])
        positions.commit(commit, LogStoreError)
        positions.forget([("a", 1), ("c", 0)])
        refuses = False
        positions.commit(commit, LogStoreError)
        positions.commit(commit, LogStoreError)
    assert asked == [("a", {0: 6, 1: 8}), ("b", {0: 10}), ("a", {0: 6}), ("b", {0: 10})]


def run(directory: Path, kinds: Sequence[str], rounds: int, load: Load, *, pace: float) -> Report:
    """Strike each kind once a round; nothing may be wrong."""
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    report = Bench(directory, seed, load).run(islice(faults(seed, kinds, pace=pace), rounds * len(kinds)))
    print(report)
    assert not report.anomalies
    assert all(report.faults[kind] >= rounds for kind in kinds)
    return report
