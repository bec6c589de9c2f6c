"""The data directory of a store: as a kill would leave it, or without its journal."""

import contextlib
import shutil
from pathlib import Path


def copy_of_one_moment(source: Path, target: Path) -> None:
    """Copy the directory as it is at one moment. The broker's threads keep writing, so only a copy without a change
    counts.
    """
    while True:
        before = _listing(source)
        with contextlib.suppress(shutil.Error):
            shutil.copytree(source, target)
            if _listing(source) == before:
                return
        shutil.rmtree(target)


def lose_journal(data: Path) -> None:
    """Remove the journal of a stopped store of one node, and the file beside it: the next start continues from the
    tables, as after a restore of only the tables.
    """
    shutil.rmtree(data / "brokers" / "0" / "journal")
    (data / "brokers" / "0" / "broker.json").unlink()


def _listing(directory: Path) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found[path] = (status.st_size, status.st_mtime_ns)
    return found
