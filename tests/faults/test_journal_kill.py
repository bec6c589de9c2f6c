"""kill -9 of a real process at each named point of the journal: what was acknowledged is there after a restart."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.journal.frame import FrameType
from tests.support.journal_process import PARTITIONS, SLOW_PARTITION, payload_of
from tests.support.journals import new_journal

POINTS = ["journal.written", "journal.synced", "journal.file_created", "journal.snapshotted", "journal.file_freed"]


def _run(directory: Path, fault: str, rounds: int = 60) -> tuple[int, list[list[int]]]:
    """The process's exit code, and the offsets acknowledged per partition."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.support.journal_process", str(directory), str(rounds)],
        env=os.environ | {"LOGSTORE_FAULT": fault},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    acked: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for line in result.stdout.decode().splitlines():
        partition, offset = map(int, line.split())
        acked[partition].append(offset)
    return result.returncode, acked


def _check(directory: Path, acked: list[list[int]]) -> list[int]:
    """All that was acknowledged and not released is in the journal, once or as a copy; the ends per partition."""

    async def read():
        journal = new_journal(directory)
        frames = [f for f in journal.recover() if f.header.type is FrameType.DATA]
        payloads = [journal.read(f.location) for f in frames]
        await journal.close()
        return payloads

    found: list[set[int]] = [set() for _ in range(PARTITIONS)]
    for header, payload in asyncio.run(read()):
        assert payload == payload_of(header.partition, header.base_offset)
        found[header.partition].add(header.base_offset)
    for partition, offsets in enumerate(acked):
        # The process released all but the last three of these, at most.
        needed = offsets if partition == SLOW_PARTITION else offsets[-3:]
        assert set(needed) <= found[partition]
        if offsets:
            assert max(found[partition]) <= offsets[-1] + 1, "at most the one that was on its way"
    return [max(offsets, default=-1) + 1 for offsets in found]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point_again_and_again(tmp_path, point):
    directory = tmp_path / "0"
    acked: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for count in (1, 2, 7):
        code, more = _run(directory, f"{point}:{count}:kill")
        assert code == -signal.SIGKILL, f"{point} was not reached {count} times"
        for known, new in zip(acked, more, strict=True):
            known.extend(new)
        ends = _check(directory, acked)
        for known, end in zip(acked, ends, strict=True):
            # What was on its way and is there counts from now on: the next process goes on behind it.
            known.extend(range(len(known), end))
    code, more = _run(directory, "", rounds=5)
    assert code == 0
    for known, new in zip(acked, more, strict=True):
        assert new[0] == len(known)
        known.extend(new)
    _check(directory, acked)


def test_killed_in_recovery_twice(tmp_path):
    directory = tmp_path / "0"
    code, acked = _run(directory, "journal.written:9:kill")
    assert code == -signal.SIGKILL
    for _ in range(2):
        assert _run(directory, "journal.recovery_half:1:kill")[0] == -signal.SIGKILL
    ends = _check(directory, acked)
    assert all(end >= len(offsets) > 0 for end, offsets in zip(ends, acked, strict=True))
