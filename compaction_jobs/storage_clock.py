"""The clock of a job for deletions: never ahead of the storage's clock.

A job may run on another machine than the store and its storage, with a wrong clock. A time that both clocks have
reached has passed: at worst something is deleted later, never earlier.
"""

from dataclasses import dataclass

from logstore.clock import SystemClock
from logstore.errors import storage_error
from logstore.table_root import TableRoot


@dataclass(frozen=True, slots=True)
class StorageClock(SystemClock):
    """The time of the storage that holds the tables of ``root``. It blocks, and raises StorageError."""

    root: TableRoot

    def now_ms(self) -> int:
        own = SystemClock.now_ms(self)
        try:
            return min(own, self.root.now_ms())
        except OSError as error:
            raise storage_error(f"asking {self.root.data} for the time", error) from error
