"""Faults and their places: named points of the store and calls of its file-system seam, each for its n-th time.

A point is a step that the store names (``delta.committed``) or a call on one kind of file (``journal.write_at``). The
faults of a point:

* ``kill``: SIGKILL ends the process there, before the call;
* ``power``: the machine dies there, and all unsynced bytes are gone;
* ``torn``: the process dies in the middle of a write, whose beginning is stored;
* ``short``: the beginning of a write is stored, then the disk is full;
* ``EIO``, ``ENOSPC``: the call fails and has done nothing. A failed sync has not synced.

``each:1:EIO`` is a fault of every operation at each of its calls in turn, except those that would stop the journal.
"""

import errno
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.support.faulty_filesystem import FaultyFileSystem, kill

#: Calls that fail on a full disk. A sync can also fail so, but the result is the same as with EIO.
_TAKES_SPACE: Final = frozenset({"create", "allocate", "write_at", "make_directory", "rename", "link"})
_CALLS: Final = _TAKES_SPACE | {
    "open_read",
    "open_write",
    "read_at",
    "read_into",
    "stat",
    "names",
    "remove_tree",
    "truncate",
    "fdatasync",
    "fsync",
    "sync_file",
    "sync_directory",
    "unlink",
}
#: This many bytes of a torn or short write are stored: a frame's header and some of its payload.
_WRITTEN: Final = 300


class FailPoints(FaultyFileSystem):
    """A file system that also counts every point as ``any``, for death at the n-th of all of them.

    After ``fail_each`` a repeated operation fails at its first call, then at its second, and so on; the caller
    announces each try with ``attempt``, with each number twice: an attempt may leave the next one less to do.
    """

    def __init__(self, root: Path | None = None) -> None:
        super().__init__(root)
        self._each = ""
        self._until_failure = 0

    @classmethod
    def under(cls, data: Path, faults: "Sequence[Fault]") -> Self:
        """Return the disk below ``data``, which is kept for a power cut if one of the faults needs that."""
        return cls(data if any(fault.action == "power" for fault in faults) else None)

    def fail_each(self, action: str) -> None:
        self._each = action

    def attempt(self, number: int) -> None:
        """Let the ``number``-th call from here on fail."""
        self._until_failure = number

    def _strike(self, names: Collection[str]) -> None:
        self.hits["any"] += 1
        for name in names if self._each else ():
            fault = Fault(name, 1, self._each)
            # A file is written in many small pieces, of which only some fail.
            often = name == "segment.write_at" and self.hits[name] % 9 != 1
            if self._each in actions_at(name) and not fault.is_final and not often:
                self._until_failure -= 1
                if self._until_failure == 0:
                    fault.order(self)
        super()._strike((*names, "any"))


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    point: str
    nth: int
    action: str

    def __str__(self) -> str:
        return f"{self.point}:{self.nth}:{self.action}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        point, nth, action = text.split(":")
        return cls(point, int(nth), action)

    @property
    def kills(self) -> bool:
        return self.action in {"kill", "power", "torn"}

    @property
    def is_final(self) -> bool:
        """True if it ends the process, or stops its journal until a restart, as a lock that cannot be checked does."""
        stops_journal = self.point.startswith("journal.") or self.point == "lock.stat"
        return self.kills or (stops_journal and self.action == "EIO")

    def order(self, filesystem: FailPoints) -> None:
        """Activate the fault from now on: earlier calls do not count."""
        if self.point == "each":
            filesystem.fail_each(self.action)
            return
        match self.action:
            case "kill":
                filesystem.at(self.point, kill, nth=self.nth)
            case "power":

                def lose_power(point: str) -> None:
                    filesystem.power_cut(random.Random(0), strict=True)
                    kill(point)

                filesystem.at(self.point, lose_power, nth=self.nth)
            case "torn":
                filesystem.fail(self.point, nth=self.nth, written=_WRITTEN, dies=True)
            case "short":
                filesystem.fail(self.point, errno.ENOSPC, nth=self.nth, written=_WRITTEN)
            case _:
                filesystem.fail(self.point, getattr(errno, self.action), nth=self.nth)


def actions_at(point: str) -> tuple[str, ...]:
    """Return the faults that are possible at a point; none for a name that is no point."""
    _, dot, call = point.rpartition(".")
    if not dot:
        return ()  # a call on any file: it is also counted by its kind
    if call not in _CALLS:
        return ("kill", "power")
    actions = ["kill", "EIO"]
    if call in _TAKES_SPACE:
        actions.append("ENOSPC")
    if call == "write_at":
        actions += ["torn", "short"]
    return tuple(actions)


def is_named(point: str) -> bool:
    """Return whether a point is a step that the store names."""
    _, dot, call = point.rpartition(".")
    return bool(dot) and call not in _CALLS
