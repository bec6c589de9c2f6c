import multiprocessing
import os
from pathlib import Path

import pytest

from logstore.errors import DataDirectoryError, LockLostError
from logstore.filesystem import FileSystem
from logstore.lock_file import LockFile


def _hold(directory: Path, held: "multiprocessing.synchronize.Event", end: "multiprocessing.synchronize.Event") -> None:
    lock = LockFile.acquire(directory, FileSystem())
    held.set()
    end.wait(120)
    lock.release()


@pytest.mark.system
def test_a_lock_excludes_other_processes_until_it_is_released_and_the_refusal_names_its_holder(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    held, end = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_hold, args=(tmp_path, held, end))
    other.start()
    assert held.wait(120)
    with pytest.raises(DataDirectoryError, match=rf"Another process is serving .* \(pid {other.pid} on "):
        LockFile.acquire(tmp_path, FileSystem())
    end.set()
    other.join(120)
    LockFile.acquire(tmp_path, FileSystem()).release()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_whose_name_was_taken_away_is_lost(tmp_path: Path, replaced: bool) -> None:
    lock = LockFile.acquire(tmp_path, FileSystem())
    assert lock.held
    lock.require()
    lock.path.unlink()
    if replaced:
        lock.path.write_bytes(b"")
    assert not lock.held
    with pytest.raises(LockLostError, match="removed or replaced"):
        lock.require()
    lock.release()
    assert not lock.held


def test_the_number_of_a_removed_lock_is_not_given_to_the_next_one_while_it_is_open(tmp_path: Path) -> None:
    """Keep the file open: ext4 uses a free inode again at once, so the comparison needs this one to stay in use."""
    lock = LockFile.acquire(tmp_path, FileSystem())
    for _ in range(20):
        lock.path.unlink()
        os.close(os.open(lock.path, os.O_CREAT | os.O_WRONLY))
        assert not lock.held
    lock.release()


def test_a_lock_taken_between_open_and_lock_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    real, calls = fcntl.flock, []

    def flock(fd: int, how: int) -> None:
        if not calls:
            (tmp_path / "lock").unlink()
        calls.append(how)
        real(fd, how)

    monkeypatch.setattr("logstore.filesystem.fcntl.flock", flock)
    lock = LockFile.acquire(tmp_path, FileSystem())
    assert lock.held
    assert len(calls) == 2
    lock.release()
