"""Records, beside a journal, how far it is durable. It has a separate thread, so that no append waits for that disk.

Invariants: a position is written only after the sync that it describes, and positions never fall. Nothing is
acknowledged until a start has written its first position: otherwise a journal that is lost then could not be
distinguished from a new one. Nothing is written once a lock is lost.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from logstore.errors import StorageError
from logstore.journal.identity import JournalRecord
from logstore.threads import threads

_log = structlog.get_logger(__name__)


class PositionRecorder:
    def __init__(self, directory: Path, record: JournalRecord, require_lock: Callable[[], None]) -> None:
        self._directory = directory
        self._record = record
        self._require_lock = require_lock
        self._thread = threads().disk_thread("journal-position")
        self._has_begun = False
        # True if the last attempt succeeded.
        self._is_written = False

    def write(self, durable_end: int, file_id: int, begin: int) -> "asyncio.Future[bool]":
        """Write the arguments of ``JournalRecord.record``, after all earlier ones; return whether they are written.

        Raises LockLostError, and StorageError if the first position cannot be written. If a later one cannot be
        written, this is logged, and the previous position stays.
        """
        return self._thread.run(self._write, durable_end, file_id, begin)

    async def written(self) -> None:
        """Wait until everything submitted so far was written, or has failed."""
        await self._thread.run(lambda: None)

    def _write(self, durable_end: int, file_id: int, begin: int) -> bool:
        self._require_lock()
        try:
            self._record.record(durable_end, file_id, begin)
        except OSError as e:
            if not self._has_begun:
                raise StorageError(
                    f"cannot write down how far the journal at {self._directory} is durable: {e}. Nothing is "
                    "acknowledged before that: check the disk of the file beside the journal, and restart"
                ) from e
            if self._is_written:  # log it once, not every second
                _log.warning("journal_position_not_recorded", directory=str(self._directory), reason=str(e))
            self._is_written = False
            return False
        self._has_begun = self._is_written = True
        return True

    def close(self) -> None:
        """Write all positions that were submitted. Blocking."""
        self._thread.close()
