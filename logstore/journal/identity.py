"""Compares the identity of a journal, from the headers of its files, with the file beside the journal.

The file beside it (``meta.json``, ``broker.json`` on one node) may be on another disk, and a disk may be missing, be
replaced, or come back as an older image. A journal is the expected one if its newest file has the directory id of the
file beside it, and if it reaches at least to the durable position that was last written there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID


class JournalIdentity(NamedTuple):
    """Two fields in the header of a journal file. ``incarnation`` is the number of the broker's start that began the
    file.
    """

    directory_id: UUID
    incarnation: int


@dataclass(frozen=True, slots=True)
class FoundJournal:
    """The journal in a directory, as a start reads it.

    ``end`` is the journal position after its last good frame. ``identity`` is that of the newest file; None if there
    is no file (``is_empty``), or if an earlier release wrote it.
    """

    directory: Path
    end: int
    identity: JournalIdentity | None
    is_empty: bool

    @property
    def incarnation(self) -> int:
        """The number of the start that began the newest file; 0 without an identity."""
        return 0 if self.identity is None else self.identity.incarnation


@dataclass(frozen=True, slots=True)
class ExpectedJournal:
    """The journal that belongs in the directory.

    ``durable_end`` is a position up to which it was durable. It is None if no file of this identity was ever begun; any
    journal is then the expected one.
    """

    directory_id: UUID
    durable_end: int | None

    def difference(self, found: FoundJournal) -> str | None:
        """Return how ``found`` differs from the expected journal; None if it does not."""
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

    def is_begun_in(self, found: FoundJournal) -> bool:
        """Return whether a start with this directory id has begun a file of ``found``, and has recorded that it did.

        If not, other starts wrote the whole journal, and it may lack any of their frames. A file of an earlier release
        has no directory id, and counts as one of this directory.
        """
        if found.identity is None:
            return True
        return self.durable_end is not None and found.identity.directory_id == self.directory_id


class JournalRecord(Protocol):
    """The file beside a journal, as the journal writes it."""

    @property
    def identity(self) -> JournalIdentity:
        """The identity for the headers of new files."""

    def record(self, durable_end: int) -> None:
        """Record durably that the journal is durable up to this position. Blocking; raises OSError."""
