"""``journal repair`` and ``topic rebuild``, killed at each call on the file system, also by a loss of power.

After each kill nothing that existed before is lost, and the same command comes to the same end.
"""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore.delta.topic_table import TopicTable
from logstore.errors import StorageError
from logstore.filesystem import FileSystem
from logstore.inspection.journal import repair, verify
from logstore.inspection.observed_journal import ObservedJournal
from logstore.inspection.table_check import verify_topic
from logstore.inspection.table_rebuild import Known, carry_out, plan_rebuild
from logstore.journal.journal_file import list_files
from logstore.table_root import open_root
from tests.support.damage import flip_bit
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.journals import data_frame, offsets, running
from tests.support.topics import create_topic, log_entry, roll, write_segment

_CALLS = ("make_directory", "create", "write_at", "fdatasync", "fsync", "truncate", "close")
_NAMES = ("sync_file", "sync_directory", "rename", "unlink")
REBUILD_POINTS = ("rebuild.staged", "rebuild.set_aside", "rebuild.renamed")


def killed_anywhere(
    whole: Path, act: Callable[[FileSystem, Path], object], *, power: bool
) -> Iterator[tuple[Path, str]]:
    """Yield copies of ``whole`` on which ``act`` was killed, each at another call, and the call."""
    for call in (*_CALLS, *_NAMES, *REBUILD_POINTS):
        for nth in range(1, 30):
            copy = Path(shutil.copytree(whole, whole.with_name(f"{call}-{nth}")))
            disk = FaultyFileSystem(copy if power else None)
            disk.crash_at(call, nth)
            with contextlib.suppress(OSError, StorageError):
                act(disk, copy)
            if not disk.crashed:
                break
            if power:
                disk.power_cut(random.Random(nth), strict=nth % 2 == 1)
            yield copy, f"{call} {nth}"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return a journal with offsets 0 to 7 in four files; the damage is in the second."""
    directory = tmp_path / "whole"
    directory.mkdir()

    async def scenario() -> None:
        async with running(directory, file_bytes=1500) as (journal, _):
            for number in range(8):
                await journal.append([data_frame(number, b"%d" % number * 500)])

    asyncio.run(scenario())
    files = list_files(directory, FileSystem())
    assert len(files) == 4
    flip_bit(files[1][1], -100)
    return directory


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_journal_repair(journal: Path, power: bool) -> None:
    before = {path.name: path.read_bytes() for path in journal.iterdir()}
    ended = Path(shutil.copytree(journal, journal.with_name("ended")))
    assert repair(ended) is not None
    expected = offsets(list(ObservedJournal(ended).frames()))
    assert expected == [0, 1, 2]
    kills = 0
    for copy, where in killed_anywhere(journal, lambda disk, path: repair(path, disk), power=power):
        kills += 1
        after = [path.read_bytes() for path in copy.iterdir()]
        assert all(content in after for content in before.values()), where
        repair(copy)
        assert verify(copy).damage is None, where
        assert offsets(list(ObservedJournal(copy).frames())) == expected, where
    assert kills >= 10


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a topic of 40 records in two partitions, with a file that no log names, and a damaged log."""
    whole = tmp_path / "whole"
    whole.mkdir()
    table = create_topic(whole, partitions=2)
    for base in (0, 10):
        for partition in (0, 1):
            roll(table, partition, base, base + 10, epoch=1)
    write_segment(table, 0, 0, 10)
    entry = log_entry(table, 2)
    entry.write_bytes(entry.read_bytes().replace(b'"size":', b'"size":1'))
    return whole


def rebuild(disk: FileSystem | None, data: Path) -> None:
    """Rebuild as the command does, which continues from what an earlier run left."""
    root = open_root(data, disk)
    files = root.open("events")
    if (aside := root.log_set_aside("events")) is not None:
        files.put_back(aside)
    carry_out(root, plan_rebuild(files, {}, Known(), {}))


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_topic_rebuild(data: Path, power: bool) -> None:
    old = {path.name: path.read_bytes() for path in (data / "topics" / "events" / "_delta_log").iterdir()}
    kills = renewed = 0
    for copy, where in killed_anywhere(data, rebuild, power=power):
        kills += 1
        table = copy / "topics" / "events"
        logs = [path for path in table.iterdir() if path.name.startswith("_delta_log")]
        contents = [{path.name: path.read_bytes() for path in log.iterdir()} for log in logs]
        assert old in contents, where
        root = open_root(copy)
        files = root.open("events")
        if len(logs) == 1:
            rebuild(None, copy)
        else:
            renewed += 1
        root.recover()
        report = verify_topic(files, {})
        assert (report.problems, report.records) == ([], 40), where
        assert TopicTable.open(files).snapshot().partitions[1].sealed == 20
    assert kills >= 15
    assert renewed
