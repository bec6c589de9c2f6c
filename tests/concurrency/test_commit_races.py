"""Many committers at once, in threads and in processes: each version is written once, each range is committed once."""

import hashlib
import json
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from logstore.delta.log_entries import list_log
from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitConflictError
from logstore.table_files import open_table
from tests.support.table_paths import path_of
from tests.support.topics import create_topic, log_entry, offsets_in_table, roll_part

PARTITIONS = 2
STEP = 5
END = 40


def roll_in_competition(path: Path, seed: int) -> int:
    """Roll both partitions to END, a step at a time, in competition; return the number of ranges won."""
    table = TopicTable.open(open_table(path))
    won = 0
    while True:
        states = table.snapshot().partitions
        behind = [p for p in range(PARTITIONS) if states[p].sealed < END]
        if not behind:
            return won
        chosen = behind[seed % len(behind) :]
        parts = [roll_part(table, p, states[p].sealed, states[p].sealed + STEP) for p in chosen]
        try:
            won += len(table.commit_roll(parts).committed)
        except CommitConflictError:
            continue


def check(table: TopicTable, won: list[int]) -> None:
    assert sum(won) == PARTITIONS * END // STEP
    for partition in range(PARTITIONS):
        assert offsets_in_table(table, partition) == list(range(END))
        assert len(table.snapshot().segments(partition)) == END // STEP
    entries = list_log(table.files).entries
    assert sorted(entries) == list(range(len(entries)))


def test_threads_race(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=PARTITIONS)
    barrier = threading.Barrier(4)

    def run(seed: int) -> int:
        barrier.wait()
        return roll_in_competition(path_of(table), seed)

    with ThreadPoolExecutor(4) as pool:
        check(table, list(pool.map(run, range(4))))


@pytest.mark.system
def test_processes_race(tmp_path: Path) -> None:
    """Spawn the processes: delta-rs must not be used in a fork of a process that has used it."""
    table = create_topic(tmp_path, partitions=PARTITIONS)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        check(table, list(pool.map(roll_in_competition, [path_of(table)] * 2, range(2))))


def test_threads_share_one_table(tmp_path: Path) -> None:
    """Share one instance, which serialises its commits: no attempt is lost against another thread of the process."""
    table = create_topic(tmp_path, partitions=8)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda p: table.commit_roll([roll_part(table, p, 0, 10)]), range(8)))
    assert sorted(result.version for result in results) == list(range(1, 9))
    assert [result.refused for result in results] == [{}] * 8


def test_changes_of_every_kind_race_and_none_is_lost(tmp_path: Path) -> None:
    table = create_topic(tmp_path, partitions=PARTITIONS)
    hashes: dict[int, str] = {}
    stop = threading.Event()

    def alter() -> None:
        other = TopicTable.open(open_table(table.files.uri))
        for n in range(8):
            other.alter_config({f"key.{n}": str(n)})

    def watch() -> None:
        """Check that an entry of the log never changes once it exists."""
        while not stop.is_set():
            for version in list_log(table.files).entries:
                digest = hashlib.sha256(log_entry(table, version).read_bytes()).hexdigest()
                assert hashes.setdefault(version, digest) == digest

    with ThreadPoolExecutor(4) as pool:
        watching = pool.submit(watch)
        working = [pool.submit(alter), *(pool.submit(roll_in_competition, path_of(table), n) for n in range(2))]
        won = [future.result() for future in working][1:]
        stop.set()
        watching.result()
    check(table, [n for n in won if n is not None])
    assert table.snapshot().config_overrides == {f"key.{n}": str(n) for n in range(8)}
    for version in list_log(table.files).entries:
        assert all(json.loads(line) for line in log_entry(table, version).read_text().splitlines())


@pytest.mark.parametrize("writers", [3])
def test_readers_always_see_whole_rolls(tmp_path: Path, writers: int) -> None:
    table = create_topic(tmp_path, partitions=PARTITIONS)
    stop = threading.Event()
    seen: list[tuple[int, int]] = []

    def read() -> None:
        reader = TopicTable.open(open_table(table.files.uri))
        while not stop.is_set():
            snapshot = reader.snapshot()
            for partition, state in snapshot.partitions.items():
                files = snapshot.segments(partition)
                assert [f.min_offset for f in files] == list(range(0, state.sealed, STEP))
            seen.append((snapshot.partitions[0].sealed, snapshot.partitions[1].sealed))

    with ThreadPoolExecutor(writers + 1) as pool:
        reading = pool.submit(read)
        won = [f.result() for f in [pool.submit(roll_in_competition, path_of(table), n) for n in range(writers)]]
        stop.set()
        reading.result()
    check(table, won)
    assert seen == sorted(seen)
