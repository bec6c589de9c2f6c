"""The time that a job goes by when it deletes: never ahead of the storage's.

A job may run on another machine than the store and its storage, with a clock of its own that is wrong. What both clocks
have reached has surely passed: at worst something is deleted later, never earlier.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from logstore.clock import SystemClock
from logstore.errors import storage_error


@dataclass(frozen=True, slots=True)
class StorageClock(SystemClock):
    """Of the file system that holds ``directory``, which stamps what is made in it. Blocking; StorageError."""

    directory: Path

    def now_ms(self) -> int:
        own = SystemClock.now_ms(self)
        try:
            # Making it stamps it, also on a disk without room for a byte.
            with tempfile.TemporaryFile(dir=self.directory) as file:
                return min(own, os.fstat(file.fileno()).st_mtime_ns // 1_000_000)
        except OSError as error:
            raise storage_error(f"asking {self.directory} for the time", error) from error
