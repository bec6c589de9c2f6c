"""Errors that only the journal raises."""

from pathlib import Path

from logstore.errors import CorruptionError, DataDirectoryError, LogStoreError


class JournalRangeFreedError(LogStoreError):
    """The journal file of a location was removed: its frames are sealed, relocated or deleted. Look them up again."""

    retriable = True


class JournalCorruptionError(CorruptionError):
    """Durable bytes have changed since they were written. The good part of the journal ends at ``position``."""

    def __init__(self, path: Path, position: int, reason: str, remedy: str | None = None) -> None:
        remedy = remedy or (
            "Restore the file from a copy, or give up everything from there on (a copy is kept) with: "
            f"logstore journal repair {path.parent}"
        )
        super().__init__(
            f"journal file {path} is corrupt at journal position {position}: {reason}. Nothing was changed. {remedy}"
        )
        self.path = path
        self.position = position
        self.reason = reason


class JournalDiffersError(DataDirectoryError):
    """The journal in a directory is not the expected one. ``difference`` is ``ExpectedJournal.difference``."""

    def __init__(self, directory: Path, difference: str, remedy: str) -> None:
        super().__init__(f"The journal in {directory} is not the one that was here before: {difference}. {remedy}")
