"""The clock of a job for deletions: never ahead of the storage's clock.

A job may run on another machine than the store and its storage, with a clock of its own that is wrong. A time that both
clocks have reached has passed: at worst something is deleted later, never earlier.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from logstore.clock import SystemClock
from logstore.errors import storage_error


@dataclass(frozen=True, slots=True)
class StorageClock(SystemClock):
    """The time of the file system that holds ``directory``, from a file made in it. Blocking; StorageError."""

    directory: Path

    def now_ms(self) -> int:
        own = SystemClock.now_ms(self)
        try:
            # An empty file gets its time even on a full disk.
            with tempfile.TemporaryFile(dir=self.directory) as file:
                return min(own, os.fstat(file.fileno()).st_mtime_ns // 1_000_000)
        except OSError as error:
            raise storage_error(f"asking {self.directory} for the time", error) from error
