"""Journals that are not the ones that stood there: gone, older, cut, damaged or another's, while the file beside stays.

``home`` is the log directory of a broker that does not run.
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
    """The directory of the journal's files."""
    return home / "journal" / "0"


def durable_end(home: Path) -> int:
    """The position up to which the journal was durable, as the file beside it says; 0 if it says nothing."""
    directory = read_directory(home)
    return 0 if directory is None else directory.durable_end or 0


def found_in(journal: Path) -> FoundJournal:
    """The journal as a start reads it."""
    scan = JournalScan(journal, local_filesystem())
    for _ in scan.frames():
        pass
    for file in scan.verdict.files:
        file.close()
    return scan.verdict.found(journal)


def difference(home: Path) -> str | None:
    """How a start finds that the journal in ``home`` differs; None if it does not."""
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
    """Put a copy of the files of another journal in the place of this one."""
    lose(home)
    shutil.copytree(other, journal_of(home), ignore=shutil.ignore_patterns(NAME))


def replace_with_a_strangers(home: Path) -> None:
    """Put the journal of a store that nobody here knows in the place of this one. Not inside an event loop."""

    async def write() -> None:
        async with running(journal_of(home), record=MemoryRecord(uuid4(), 1)) as (journal, _):
            await journal.append([data_frame(offset) for offset in range(10)])

    leave_empty(home)
    asyncio.run(write())


def cut(home: Path) -> None:
    """Take bytes that were durable off the end of the newest file."""
    newest = max(journal_of(home).glob("*.log"))
    start = int(newest.stem)
    keep = HEADER_BYTES + (durable_end(home) - start - HEADER_BYTES) // 2
    with newest.open("r+b") as file:
        file.truncate(max(0, keep))


def damage(home: Path, chance: random.Random) -> None:
    """Change a bit of a frame that was durable, and is not the last one."""
    observed = ObservedJournal(journal_of(home))
    frames = [location for _, location, _ in observed.frames()]
    position, length = chance.choice(frames[:-1])
    start, path = max(file for file in observed.files if file[0] <= position)
    flip_bit(path, position - start + chance.randrange(length), chance.randrange(8))


def move_away(home: Path, aside: Path) -> None:
    """Take the names of the files from a store that may be running; ``aside`` has the files from then on."""
    aside.mkdir()
    # A running store may begin one more file; not after the last one has lost its name.
    while files := sorted(journal_of(home).glob("*.log")):
        for file in files:
            file.rename(aside / file.name)


def put_back(home: Path, aside: Path) -> None:
    """Put the files of ``move_away`` back. The store has ended."""
    for file in aside.iterdir():
        file.rename(journal_of(home) / file.name)
    aside.rmdir()


def content_of(directory: Path) -> dict[str, bytes]:
    """All files below, byte for byte; without locks, which each start makes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != NAME
    }
