"""The catalogue of planted bugs: each breaks one rule of the store in this process, and the simulation has to notice.

Those that the benches of real processes plant as well are taken from there (``tests.faults.bench.mutants``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.bench import mutants
from tests.faults.cluster import mutants as cluster_mutants
from tests.simulation import bugs_of_replication as replication
from tests.simulation import bugs_of_tables as tables
from tests.simulation.process_disk import ProcessDisk
from tests.support.faulty_filesystem import kind_of


@dataclass(frozen=True, slots=True)
class Bug:
    """``seed``: of a run, with so many ``brokers``, whose first world shows it."""

    plant: Callable[[], None]
    brokers: int
    seed: int


# ---- the disk -------------------------------------------------------------------------------------------------------


def ack_before_fsync() -> None:
    """An append is acknowledged when it is written: the journal is never synced."""
    _leave_out("fdatasync", "journal")


def no_journal_directory_sync() -> None:
    """The names of new journal files are never made durable."""
    _leave_out("sync_directory", "journal")


def no_segment_sync() -> None:
    """A segment is committed, and its journal range freed, without its bytes on the disk."""
    _leave_out("fdatasync", "segment")
    _leave_out("sync_file", "segment")


def no_segment_directory_sync() -> None:
    """The name of a segment is not made durable before the commit that needs it."""
    _leave_out("sync_directory", "segment")


def no_entry_sync() -> None:
    """A commit counts when its entry is written to the log of the table, before it is durable."""
    _leave_out("fdatasync", "delta")
    _leave_out("sync_file", "delta")
    _leave_out("sync_directory", "delta")


def fsync_again() -> None:
    """A failed fsync is tried again, and believed."""
    sync = ProcessDisk.fdatasync

    def twice(self: ProcessDisk, fd: int) -> None:
        try:
            sync(self, fd)
        except OSError:
            sync(self, fd)

    ProcessDisk.fdatasync = twice  # type: ignore[method-assign]


def _leave_out(call: str, kind: str) -> None:
    """Let ``call`` do nothing for files of a kind."""
    real = getattr(ProcessDisk, call)

    def of_others(self: ProcessDisk, place: Any, *args: Any) -> None:
        path = Path(self._where(place)) if isinstance(place, int) else place
        if kind_of(path) != kind:
            real(self, place, *args)

    setattr(ProcessDisk, call, of_others)


# ---- the log --------------------------------------------------------------------------------------------------------


def high_watermark_before_durable() -> None:
    """Readers are shown records, and producers are answered, when they are queued for the journal."""
    from logstore.log.partition_log import PartitionLog

    track = PartitionLog.track

    def early(self: PartitionLog, frame: Any) -> None:
        track(self, frame)
        self.require_leader().advance(frame.header.end_offset)

    PartitionLog.track = early  # type: ignore[method-assign]


def damaged_frames_count() -> None:
    """A frame of the journal counts whatever its checksum says."""
    from logstore.journal import scan

    scan.crc32c = lambda *_: 0  # type: ignore[attr-defined]


_ON_ONE_NODE = {
    ack_before_fsync: 1,
    no_journal_directory_sync: 1,
    no_segment_sync: 1,
    no_segment_directory_sync: 1,
    no_entry_sync: 1,
    fsync_again: 2,
    high_watermark_before_durable: 1,
    damaged_frames_count: 1,
    mutants.free_journal_before_commit: 1,
    mutants.reuse_offsets_after_restart: 1,
    mutants.forget_sequences: 1,
    mutants.append_time_goes_back: 1,
    mutants.forget_commits_at_start: 1,
    mutants.forget_offsets_at_start: 1,
    tables.erase_from_no_journal: 4,
    tables.erase_from_no_old_file: 4,
    tables.erase_the_first_of_several: 4,
    tables.erase_neighbours: 4,
    tables.compact_to_the_first: 4,
    tables.roll_loses_a_row: 4,
    tables.find_the_next_offset_by_time: 4,
    tables.skip_the_end_of_history: 4,
    tables.delete_records_in_memory: 4,
    tables.refuse_what_is_stored: 4,
    tables.alter_in_memory: 4,
    tables.delete_the_name_alone: 4,
    tables.leave_small_files_unsynced: 4,
}
_IN_A_CLUSTER = {
    cluster_mutants.count_the_leader_alone: 4,
    cluster_mutants.join_wherever_it_is: 1,
    cluster_mutants.tell_the_end_at_once: 2,
    cluster_mutants.lead_without_producers: 1,
    cluster_mutants.append_times_of_its_own: 2,
    replication.snapshots_know_no_producers: 4,
}
#: By name.
BUGS: dict[str, Bug] = {
    plant.__name__: Bug(plant, brokers, seed)
    for brokers, bugs in ((1, _ON_ONE_NODE), (3, _IN_A_CLUSTER))
    for plant, seed in bugs.items()
}


def plant(name: str) -> None:
    """Break this process for good. KeyError for a bug that is not there."""
    BUGS[name].plant()
