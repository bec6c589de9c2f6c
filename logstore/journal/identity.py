"""The identity of a journal: what the heads of its files say, against what the file beside the journal says.

The file beside it (``meta.json``, ``broker.json`` on one node) may lie on another disk, and a disk may be missing, be
replaced, or come back as an older image. A journal is the one that stood here if its newest file has the directory id
that stands beside it, and if it reaches at least to the position that was durable when that was last written down.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID


class JournalIdentity(NamedTuple):
    """The head of a journal file has both. ``incarnation`` is the start of the broker that began the file."""

    directory_id: UUID
    incarnation: int


@dataclass(frozen=True, slots=True)
class FoundJournal:
    """The journal in a directory, as a start reads it.

    ``end`` is the journal position behind its last good frame. ``identity`` is that of the newest file; None if there
    is no file (``is_empty``), or if an earlier release wrote it.
    """

    directory: Path
    end: int
    identity: JournalIdentity | None
    is_empty: bool

    @property
    def incarnation(self) -> int:
        """The start that began the newest file; 0 without an identity."""
        return 0 if self.identity is None else self.identity.incarnation


@dataclass(frozen=True, slots=True)
class ExpectedJournal:
    """The journal that stood here. ``durable_end`` is a position up to which it was durable; None if no file of this
    identity was ever begun: any journal is then the one that is expected.
    """

    directory_id: UUID
    durable_end: int | None

    def difference(self, found: FoundJournal) -> str | None:
        """Say how ``found`` differs from the journal that stood here; None if it is that one."""
        if self.durable_end is None:
            return None
        if found.is_empty:
            return f"it has no files, and it was durable up to position {self.durable_end}"
        if found.identity is None:
            return "an earlier release wrote its newest file, and this release has written to it since"
        if found.identity.directory_id != self.directory_id:
            return f"it is that of the directory id {found.identity.directory_id}, and not of {self.directory_id}"
        if found.end < self.durable_end:
            return (
                f"it ends at position {found.end}, and it was durable up to {self.durable_end}: it is an older copy, "
                "or it lost its end"
            )
        return None


class JournalRecord(Protocol):
    """The file beside a journal, as the journal writes it."""

    @property
    def identity(self) -> JournalIdentity:
        """The identity for the heads of new files."""

    def record(self, durable_end: int) -> None:
        """Write down, durably, that the journal is durable up to this position. Blocking; raises OSError."""
