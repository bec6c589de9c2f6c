"""Key compaction and vacuum, killed at each of their steps; key compaction by a real Spark, killed while it writes.

The table is then as before the job or as after it; in both cases it has the last record of each key (I1). A store
starts on it, and the next run of the job does the rest.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.faults.fail_points.fault import Fault
from tests.faults.fail_points.zygote import ROOT, Zygote
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.table_paths import path_of

#: Spark is killed with all of its processes as soon as it begins a file, because the driver has no step there.
WRITING: Final = "writing"
VACUUMED: Final = "vacuum.deleted"
STEPS: Final = (
    "segment.opened",
    "segment.half",
    "segment.finished",
    "job.written",
    "delta.opened",
    "delta.checked",
    "delta.committed",
    "delta.synced",
    VACUUMED,
)
_COMMITTED: Final = frozenset({"delta.committed", "delta.synced"})
_KEYS: Final = 7
_RECORDS: Final = 50


def kill_jobs(directory: Path, zygote: Zygote, points: Sequence[str]) -> Iterator[Fault]:
    """Kill a job at one of ``points`` after another of one topic's life; yield each fault that struck.

    Raises AssertionError if the table is wrong.
    """
    config = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "file_delete_delay_ms": 0}
    topic = KeyedTopic.create(directory / "data", "t", **config)
    for point in points:
        _roll(topic)
        if point == VACUUMED:
            assert _run(topic, "compact") == 0
        before = topic.contents()
        job = "vacuum" if point == VACUUMED else "compact"
        assert _run(topic, job, point) == -signal.SIGKILL, f"the job did not come to {point}"
        after = topic.contents()
        assert after == (_last(before) if point in _COMMITTED else before), f"killed at {point}: {after}"
        _check_store(directory, zygote, after)
        yield Fault(point, 1, "kill")
    _roll(topic)
    before = topic.contents()
    assert _run(topic, "compact") == 0
    assert _run(topic, "vacuum") == 0
    assert topic.contents() == _last(before)
    # Files that were written and not committed are left to a full vacuum, after days.
    snapshot = topic.table.snapshot()
    assert not {str(file.relative_to(path_of(topic.table))) for file in _files(topic)} & snapshot.log.removals().keys()
    _check_store(directory, zygote, topic.contents())


def _roll(topic: KeyedTopic) -> None:
    now_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        topic.roll({0: [Record(b"%d" % (n % _KEYS), os.urandom(8).hex().encode(), now_ms) for n in range(_RECORDS)]})


def _last(records: dict[int, Record]) -> dict[int, Record]:
    offset_of = {record.key: offset for offset, record in records.items()}
    return {offset: records[offset] for offset in sorted(offset_of.values())}


def _files(topic: KeyedTopic) -> set[Path]:
    return set(path_of(topic.table).glob("partition=*/*.parquet"))


def _run(topic: KeyedTopic, name: str, point: str = "") -> int:
    """Run the job, killed at ``point``; return its exit code."""
    from_outside = point == WRITING
    options = ["--spark-above", "0"] if from_outside else []
    command = [sys.executable, "-m", "tests.support.faulty_server", "job", name, "--topic", topic.name, *options]
    faults = f"point {point} kill" if point and not from_outside else ""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOGSTORE_FAULTS": faults}
    files = _files(topic)
    job = subprocess.Popen(
        [*command, "--data", str(topic.data)],
        cwd=topic.data,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while from_outside and job.poll() is None and files == _files(topic):
            time.sleep(0.001)
    finally:
        if from_outside:
            os.killpg(job.pid, signal.SIGKILL)
    return job.wait(600)


def _check_store(directory: Path, zygote: Zygote, records: dict[int, Record]) -> None:
    """Check that a store on the table serves the same records as a Delta reader."""
    ended = zygote.run("recover", directory, faults=["none:1:kill"])
    assert ended.code == 0, ended.said
    found = json.loads((directory / "history.jsonl").read_text().splitlines()[-1])
    told = found["topics"]["t"]["partitions"][0]["rows"]
    assert told == [[offset, (record.value or b"").decode()] for offset, record in records.items()]
