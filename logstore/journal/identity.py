"""Compares the identity of a journal, from the headers of its files, with the file beside the journal.

The file beside it (``meta.json``, ``broker.json`` on one node) may be on another disk, and a disk may be missing, be
replaced, or come back as an older image, or as the image of a time that a restore has undone. A journal is the
expected one if its newest file has the directory id of the file beside it, if one of its files is the recorded one, and
if it reaches at least from the recorded begin to the recorded durable position.
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
    is no file (``is_empty``), or if an earlier release wrote it. ``files`` are (first position, file id), oldest first.
    """

    directory: Path
    end: int
    identity: JournalIdentity | None
    is_empty: bool
    files: tuple[tuple[int, int], ...] = ()

    @property
    def incarnation(self) -> int:
        """The number of the start that began the newest file; 0 without an identity."""
        return 0 if self.identity is None else self.identity.incarnation


@dataclass(frozen=True, slots=True)
class ExpectedJournal:
    """The journal that belongs in the directory.

    ``durable_end`` is a position up to which it was durable; 0 before its first file. It is None if that is not known,
    because there is no record, or one of an earlier release; any journal is then the expected one, but if
    ``has_started``, there must be one. ``file_id`` is that of the file that contains ``durable_end``, and ``begin`` the
    first position that was not freed; both are None where an earlier release wrote the record.
    """

    directory_id: UUID
    durable_end: int | None
    file_id: int | None = None
    begin: int | None = None
    has_started: bool = False

    def difference(self, found: FoundJournal) -> str | None:
        """Return how ``found`` differs from the expected journal; None if it does not."""
        if found.is_empty and self.durable_end:
            return f"it has no files, and it was durable up to position {self.durable_end}"
        if found.is_empty and self.durable_end is None and self.has_started:
            return "it has no files, and this directory was in use before"
        if found.is_empty or self.durable_end is None:
            return None
        if (other := self._other_identity(found)) is not None:
            return other
        if found.end < self.durable_end:
            return (
                f"it ends at position {found.end}, and it was durable up to {self.durable_end}: it is an older copy, "
                "or it lost its end"
            )
        if self.file_id is not None and all(file_id != self.file_id for _, file_id in found.files):
            return (
                f"the file that was its newest at position {self.durable_end} is not in it: it is a copy from a time "
                "before the directory was restored"
            )
        if self.begin is not None and found.files[0][0] > self.begin:
            return (
                f"it begins at position {found.files[0][0]}, and nothing from {self.begin} on was freed: its oldest "
                "files are missing"
            )
        return None

    def _other_identity(self, found: FoundJournal) -> str | None:
        """Return why ``found`` has another identity; None if its newest file has this one, or is the recorded file."""
        if self.is_recorded(found):
            return None
        if found.identity is None:
            return "an earlier release wrote its newest file, and this release has written to it since"
        if found.identity.directory_id != self.directory_id:
            return f"it is that of the directory id {found.identity.directory_id}, and not of {self.directory_id}"
        return None

    def is_recorded(self, found: FoundJournal) -> bool:
        """Return whether the recorded file is the newest one of ``found``, whoever wrote it: a start or a repair has
        accepted it as it is.
        """
        return self.file_id is not None and bool(found.files) and found.files[-1][1] == self.file_id

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

    def record(self, durable_end: int, file_id: int, begin: int) -> None:
        """Record durably up to where the journal is durable, the id of the file that contains this position, and the
        first position that is not freed. Blocking; raises OSError.
        """
