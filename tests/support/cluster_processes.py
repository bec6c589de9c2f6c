"""A real ``logstore cluster start`` or ``logstore serve --brokers`` in a separate process."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from tests.support.server_process import ROOT

#: Sessions of brokers: a dead broker is back after six seconds at most.
SESSION_MS = 4_000


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "logstore.cli", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "LOGSTORE_ZOOKEEPER_SESSION_TIMEOUT_MS": str(SESSION_MS)}
    return {**os.environ, **own, **more}


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Return all processes below ``pid``."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(parent, []).append(int(status.parent.name))
    found: set[int] = set()
    wanted = [pid]
    while wanted:
        children = parents.get(wanted.pop(), [])
        found.update(children)
        wanted += children
    return found


def zookeeper_pid(pid: int, data: Path | None = None) -> int:
    """Return the ZooKeeper among the processes below ``pid``: the one on ``data`` if there may be several."""

    def is_wanted(one: int) -> bool:
        try:
            program, _, arguments = Path(f"/proc/{one}/cmdline").read_bytes().partition(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return program.endswith(b"java") and (data is None or bytes(data) in arguments)

    (found,) = filter(is_wanted, descendants(pid))
    return found


class ClusterProcess:
    """A command whose first printed line is ``first_line``. When the block ends, the process and all below it are
    ended.
    """

    def __init__(self, directory: Path, *arguments: object, **more: str) -> None:
        """Start the command; ``more`` are variables of its environment."""
        self.log = directory / "cluster-command.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command(*arguments),
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # so that `select` sees every line
                cwd=directory,
                env=environment(**more),
            )
        self.first_line = self._line()

    def _line(self, seconds: float = 240) -> str:
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.process.stdout], [], [], 0.2)[0]:
                line = self.process.stdout.readline().decode()
                assert line, self.log.read_text()[-4000:]
                return line
        self.kill()
        raise AssertionError(f"nothing was printed in {seconds} seconds: {self.log.read_text()[-4000:]}")

    @property
    def entry(self) -> dict[str, Any]:
        return json.loads(self.first_line)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
