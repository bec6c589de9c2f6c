"""The guarantees of the simulated world: one seed is one history, planted bugs are noticed, faults can be left out."""

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.runs import WORLD_S, prepare
from tests.simulation.shrinking import fewest
from tests.simulation.story import story
from tests.simulation.world import simulate


def command(*options: str, hash_seed: int = 0) -> tuple[int, dict[str, Any], str]:
    """Return the exit code of ``python -m tests.simulation``, the JSON in the last line of its output, and its
    messages.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
    )
    assert ended.returncode in (0, 1), ended.stderr[-3000:]
    return ended.returncode, json.loads(ended.stdout.splitlines()[-1]), ended.stderr


@pytest.mark.parametrize("brokers", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_seed_is_a_history(brokers: int) -> None:
    one, same, other = (simulate(seed, brokers=brokers, virtual_seconds=6) for seed in ("7.0", "7.0", "7.1"))
    assert not one.anomalies
    assert one.acknowledged > 100
    assert (one.digest, one.events, one.faults) == (same.digest, same.events, same.faults)
    assert one.digest != other.digest


@pytest.mark.parametrize("brokers", [1, 3])
def test_every_way_to_the_store_is_taken(brokers: int) -> None:
    outcome = simulate("7.0", brokers=brokers, virtual_seconds=6)
    done = {(event["process"].partition("-")[0], event["op"]) for event in outcome.history if event["phase"] == "ok"}
    assert done >= {(name, "produce") for name in ("producer", "httpproducer", "kafkaproducer")}
    assert done >= {("member", op) for op in ("assigned", "processed", "fetch", "commit")}
    assert len(done & {(name, "commit") for name in ("reader", "httpreader", "kafkareader")}) == 2


_KINDS = (
    *("kill", "kill_at_a_call", "power_cut", "stop", "journal_error", "table_error", "full_disk", "slow_disk"),
    *("journal_bit_flip", "segment_bit_flip", "clock_drift"),
    *(
        "clock_step",
        "stall",
        "kill_all",
        "lose_journal",
        "lose_disk",
        "cut_off",
        "cut_off_and_kill",
        "cut_from_brokers",
        "cut_from_zookeeper",
    ),
    *("break_connections", "zookeeper_down", "zookeeper_elects", "zookeeper_splits", "session_ends", "client_ends"),
    "answers_lost",
    "break_clients",
)
_SHORTEST = "cut_off_and_kill"


@pytest.mark.parametrize(
    "kind", [kind if kind == _SHORTEST else pytest.param(kind, marks=pytest.mark.long) for kind in _KINDS]
)
def test_a_cluster_is_well_after_faults_of_each_kind(kind: str) -> None:
    outcome = simulate("3.0", brokers=3, virtual_seconds=5, kind=kind)
    assert outcome.anomalies == []
    assert outcome.faults.total() > outcome.faults["terminate"] == 3 or kind == "stop"
    assert outcome.acknowledged > 50


def test_others_write_erase_and_administer_meanwhile() -> None:
    outcome = simulate("7.0", virtual_seconds=12)
    assert outcome.anomalies == []
    told = {(event["op"], event.get("how") or event.get("kind")) for event in outcome.history if event["phase"] == "ok"}
    assert ("statement", "erase") in told
    assert ("fault", "create") in told
    assert any(op == "job" for op, _ in told)


@pytest.mark.long
def test_faults_are_left_out_and_the_others_stay() -> None:
    whole = simulate("7.0", virtual_seconds=4)
    kept = frozenset(whole.struck[1:3])
    assert len(kept) == 2
    fewer = simulate("7.0", virtual_seconds=4, only=kept)
    assert set(fewer.struck) <= kept
    assert f"{len(fewer.struck)} faults" in story(fewer)


def test_faults_that_do_not_matter_are_left_out() -> None:
    asked: list[list[int]] = []

    def shows(faults: list[int]) -> bool:
        asked.append(faults)
        return {3, 11} <= set(faults)

    assert fewest(list(range(16)), shows, lambda: False) == [3, 11]
    assert fewest(list(range(16)), shows, lambda: True) == list(range(16))


@pytest.mark.system
@pytest.mark.long
@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("seed", range(1, 21))
def test_a_seed_is_a_history_in_every_process(seed: int, brokers: int) -> None:
    told = [
        command("--seed", str(seed), "--brokers", str(brokers), "--events", "4000", hash_seed=hash_seed)[1]
        for hash_seed in (1, 2)
    ]
    assert told[0]["digest"] == told[1]["digest"]
    assert told[0]["anomalies"] == told[1]["anomalies"] == []


@pytest.mark.parametrize(
    "seed",
    [
        # A leader retried a change of its ISR at once, again and again, and simulated time stopped.
        pytest.param("77.1", marks=pytest.mark.long),
        # acks=0 for partitions without a leader left a task that never ended, which was reported.
        pytest.param("501.29", marks=pytest.mark.long),
        # A former leader that did not reach ZooKeeper deleted records, and the new leader returned them for a second.
        "51.1",
    ],
)
def test_a_world_in_which_something_was_wrong_is_well(seed: str) -> None:
    assert simulate(seed, brokers=3).anomalies == []


def test_a_broker_starts_while_another_one_deletes_a_topic() -> None:
    """Keep a start from failing where it read a topic's table before, and finds it gone when it looks again."""
    outcome = simulate("2.0", brokers=3, kind="lose_disk")
    assert outcome.anomalies == []
    assert outcome.faults["disk_lost"] > 3


@pytest.mark.system
@pytest.mark.long
def test_the_command_tells_the_story_of_a_planted_bug() -> None:
    bug = BUGS["ack_before_fsync"]
    code, told, said = command("--brokers", str(bug.brokers), "--bug", "ack_before_fsync", "--seed", str(bug.seed))
    assert code == 1
    assert told["anomalies"]
    assert "What is wrong:" in said


_SOONEST = "ack_before_fsync"


@pytest.mark.system
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == _SOONEST else pytest.mark.long)
        for name, bug in BUGS.items()
        if bug.seed is not None
    ],
)
def test_a_planted_bug_is_noticed(name: str) -> None:
    bug = BUGS[name]
    world = f"{bug.seed}.0"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare, (name,)) as pool:
        seen = pool.submit(simulate, world, brokers=bug.brokers, virtual_seconds=WORLD_S, kind=bug.kind)
        assert seen.result(timeout=400).anomalies
