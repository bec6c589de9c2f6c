"""The journal of a broker at its start: locked, and read to its end before anyone counts on the broker."""

import functools
from collections.abc import Sequence

from logstore.clock import Clock
from logstore.errors import StorageError
from logstore.filesystem import FileSystem
from logstore.journal.identity import FoundJournal
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.limits import JOURNAL_FILE_BYTES, MIB
from logstore.lock_file import LockFile, require_all
from logstore.log.journal_tail import JournalTail, collect_tails
from logstore.settings import Settings


class OpenedJournal:
    """A journal to be opened. Call ``read`` once, then pass it to ``Broker.start``. ``release`` ends what ``read``
    began.
    """

    def __init__(self, settings: Settings, filesystem: FileSystem, clock: Clock, *, recent_bytes: int = 0) -> None:
        """Prepare the journal; ``recent_bytes`` of the newest frames are kept in memory, for followers."""
        self._filesystem = filesystem
        self._directory = settings.log_directory / "journal" / "0"
        self.locks: list[LockFile] = []
        """The locks without which nothing is acknowledged: the cluster state's, and the journal's own."""
        self.tails: dict[PartitionKey, JournalTail] = {}
        """What the journal has of each partition."""
        self.journal = Journal(
            self._directory,
            filesystem=filesystem,
            clock=clock,
            file_bytes=min(JOURNAL_FILE_BYTES, max(MIB, settings.journal_max_bytes // 32)),
            require_lock=functools.partial(require_all, self.locks),
            recent_bytes=recent_bytes,
        )

    def read(self, locks: Sequence[LockFile]) -> FoundJournal:
        """Read the journal without a change. Blocking.

        ``locks`` are the cluster state's. Raises DataDirectoryError if another process has the journal, CorruptionError
        if stored bytes have changed since they were written, and StorageError.
        """
        try:
            self._filesystem.make_directory(self._directory)
        except OSError as e:
            raise StorageError(
                f"cannot make the journal directory {self._directory}: {e.strerror}; check the disk, and that it is "
                "mounted"
            ) from e
        # The journal's own lock keeps other processes away even if the cluster state's lock was removed.
        self.locks += [*locks, LockFile.acquire(self._directory, self._filesystem)]
        try:
            self.tails = collect_tails(self.journal.recover())
        except BaseException:
            self.release()
            raise
        return self.journal.found

    def take_tails(self) -> dict[PartitionKey, JournalTail]:
        """Return what the journal has of each partition, and keep nothing of it."""
        tails, self.tails = self.tails, {}
        return tails

    def release(self) -> None:
        """Release the journal's own lock. Close the files of a journal that was not started."""
        self.journal.abandon()
        if self.locks:
            self.locks[-1].release()
