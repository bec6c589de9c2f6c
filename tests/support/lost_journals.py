"""Journals that differ from the expected one: lost, older, cut, damaged or foreign, while the file beside them stays.

``home`` is the log directory of a stopped broker.
"""

import asyncio
import random
import shutil
from pathlib import Path
from uuid import uuid4

from logstore.cluster.log_directory import read_directory
from logstore.filesystem import local_filesystem
from logstore.inspection.observed_journal import ObservedJournal
from logstore.journal.frame import HEADER_BYTES
from logstore.journal.identity import FoundJournal
from logstore.journal.scan import JournalScan
from logstore.lock_file import NAME
from tests.support.damage import flip_bit
from tests.support.journals import MemoryRecord, data_frame, running


def journal_of(home: Path) -> Path:
    """Return the directory of the journal's files."""
    return home / "journal" / "0"


def durable_end(home: Path) -> int:
    """Return the position up to which the journal was durable, from the file beside it; 0 if that has none."""
    directory = read_directory(home)
    return 0 if directory is None else directory.durable_end or 0


def found_in(journal: Path) -> FoundJournal:
    """Return the journal as a start reads it."""
    scan = JournalScan(journal, local_filesystem())
    for _ in scan.frames():
        pass
    for file in scan.verdict.files:
        file.close()
    return scan.verdict.found(journal)


def difference(home: Path) -> str | None:
    """Return how the journal in ``home`` differs for a start; None if it does not."""
    directory = read_directory(home)
    assert directory is not None
    return directory.expected.difference(found_in(journal_of(home)))


def lose(home: Path) -> None:
    """Remove the directory ``journal``."""
    shutil.rmtree(home / "journal")


def leave_empty(home: Path) -> None:
    """Leave an empty directory, as where a file system is not mounted."""
    lose(home)
    journal_of(home).mkdir(parents=True)


def put_in_place(home: Path, other: Path) -> None:
    """Replace this journal by a copy of another journal's files."""
    lose(home)
    shutil.copytree(other, journal_of(home), ignore=shutil.ignore_patterns(NAME))


def replace_with_a_strangers(home: Path) -> None:
    """Replace this journal by that of an unknown store. Not inside an event loop."""

    async def write() -> None:
        async with running(journal_of(home), record=MemoryRecord(uuid4(), 1)) as (journal, _):
            await journal.append([data_frame(offset) for offset in range(10)])

    leave_empty(home)
    asyncio.run(write())


def cut(home: Path) -> None:
    """Cut durable bytes off the end of the newest file."""
    newest = max(journal_of(home).glob("*.log"))
    start = int(newest.stem)
    keep = HEADER_BYTES + (durable_end(home) - start - HEADER_BYTES) // 2
    with newest.open("r+b") as file:
        file.truncate(max(0, keep))


def damage(home: Path, chance: random.Random) -> None:
    """Change a bit of a durable frame that is not the last one."""
    observed = ObservedJournal(journal_of(home))
    frames = [location for _, location, _ in observed.frames()]
    position, length = chance.choice(frames[:-1])
    start, path = max(file for file in observed.files if file[0] <= position)
    flip_bit(path, position - start + chance.randrange(length), chance.randrange(8))


def move_away(home: Path, aside: Path) -> None:
    """Rename the files of a store that may be running; from then on ``aside`` has them."""
    aside.mkdir()
    # A running store may begin one more file, but not after the last one has lost its name.
    while files := sorted(journal_of(home).glob("*.log")):
        for file in files:
            file.rename(aside / file.name)


def put_back(home: Path, aside: Path) -> None:
    """Put the files of ``move_away`` back. The store has ended."""
    for file in aside.iterdir():
        file.rename(journal_of(home) / file.name)
    aside.rmdir()


def content_of(directory: Path) -> dict[str, bytes]:
    """Return all files below, byte for byte, without the locks that each start makes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != NAME
    }
