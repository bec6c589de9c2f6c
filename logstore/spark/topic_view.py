"""A view of one topic at one moment: its offsets, and where each is read. It needs no Spark.

Rule R8, in order: (1) the ends are requested over HTTP; (2) the store's leader serves any offset of the tail for as
long as it is retained; (3) the sealed offsets and log starts come from one Delta snapshot, read after (1); (4) history
is ``start <= offset < min(sealed, end)`` of that or any later version, and the tail is the rest; if history is little,
the leader serves it also, and no version of the table is read.

A roll at any moment, even between two evaluations of a DataFrame, has no effect, because the border between the parts
was fixed when the view was made. Versions in which another writer changed records do not count as such
(``history_check``).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from logstore.client.addresses import URL_VARIABLE, environment_url
from logstore.client.admin import Admin
from logstore.errors import DataDirectoryError, InvalidRequestError, InvalidTopicError, UnknownTopicError
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.names import is_legal_name
from logstore.spark.offset_ranges import LogBounds, OffsetRange
from logstore.spark.read_plan import FileRange, ReadPlan, plan_read
from logstore.spark.time_index import first_offset_at
from logstore.table_files import TableFiles, open_table
from logstore.table_root import TableRoot, open_root

if TYPE_CHECKING:
    from logstore.delta.snapshot import TopicSnapshot
    from logstore.delta.topic_table import TopicTable
    from logstore.log.history import MissingRange

#: Seconds that a store that does not respond is asked again while a DataFrame is made.
RETRY_SECONDS = 10.0
#: The number of tables whose logs are kept in memory. With a thousand segments each takes a few MB.
_TABLES_KEPT = 16
#: A hint for a reader of records that another writer removed from the table.
MISSING_REMEDY = (
    "A store that runs commits the files again that are on disk, within seconds; otherwise restore the table to the "
    "version before, or give these records and all before them up with logstore topic delete-records"
)


@dataclass(frozen=True, slots=True)
class TopicView:
    """``bounds`` are the offsets of each partition; ``urls`` the brokers of the tail, empty for sealed history alone.
    ``log_mark`` is ``TopicTable.log_mark`` from before the snapshot was read.
    """

    topic: str
    files: TableFiles
    snapshot: "TopicSnapshot"
    bounds: tuple[LogBounds, ...]
    urls: tuple[str, ...] = ()
    log_mark: int | None = None

    def is_newest(self) -> bool:
        """Return True if the table's log has certainly not changed since ``snapshot``: one look at a directory."""
        return self.log_mark is not None and self.log_mark == _table(self.files.uri).log_mark()

    @property
    def topic_id(self) -> str:
        return str(self.snapshot.topic_id)

    def plan(self, ranges: Sequence[OffsetRange]) -> ReadPlan:
        """Return the plan to read ``ranges`` (one per partition, inside ``bounds``). Raises as ``require_whole``."""
        self.require_whole(ranges)
        sealed = {partition: state.sealed for partition, state in self.snapshot.partitions.items()}
        files = (
            FileRange(r.partition, segment.min_offset, segment.max_offset, segment.size)
            for r in ranges
            for segment in self.snapshot.segments(r.partition)
            if segment.num_records
        )
        return plan_read(ranges, sealed, files, has_store=bool(self.urls))

    def missing(self, ranges: Iterable[OffsetRange]) -> "dict[int, list[MissingRange]]":
        """Return by partition the records of ``ranges`` (one each) that another writer removed from the history."""
        from logstore.log.history import missing_records

        return missing_records(self.files, self.snapshot, {r.partition: (r.start, r.end) for r in ranges})

    def require_whole(self, ranges: Iterable[OffsetRange]) -> None:
        """Raise MissingRecordsError if ``ranges`` have ``missing`` records; also CorruptionError, OSError."""
        from logstore.log.history import require_whole

        wanted = {r.partition: (r.start, r.end) for r in ranges}
        require_whole(self.topic, self.files, self.snapshot, wanted, MISSING_REMEDY)

    @property
    def refused_files(self) -> tuple[str, ...]:
        """Names, without directories, of foreign files whose records are not in the log."""
        refused = (file for p in self.snapshot.partitions for file in self.snapshot.refused(p))
        return tuple(sorted(file.path.rpartition("/")[2] for file in refused))

    def offsets_of_times(self, times_ms: Mapping[int, int]) -> dict[int, int | None]:
        """Return by partition the first offset at or after a time (ms), None if there is none."""
        if self.urls:
            with Admin(",".join(self.urls)) as store:
                found = store.offsets_for_times({(self.topic, p): at for p, at in times_ms.items()})
            return {p: None if at is None else at.offset for (_, p), at in found.items()}
        starts = {bounds.partition: bounds.log_start_offset for bounds in self.bounds}
        return {p: first_offset_at(self.files, self.snapshot.segments(p), starts[p], at) for p, at in times_ms.items()}


def view_through_store(store: Admin, topic: str) -> TopicView:
    """Return a view up to the current high watermarks.

    Raises InvalidTopicError, UnknownTopicError, DataDirectoryError (the topic's data is not visible from here),
    CorruptionError, and the errors of ``Admin``.
    """
    _check_topic_name(topic)
    described = store.describe_by_leaders(topic)
    files = open_table(described.location)
    invisible = DataDirectoryError(
        f"topic {topic} is stored at {described.location}, which is not visible from here: mount it where Spark runs, "
        "under the name that the store's setting data_location gives it"
    )
    if not files.exists():
        # This raises UnknownTopicError if the topic was deleted meanwhile.
        store.describe_topic(topic)
        raise invisible
    mark, snapshot = _marked_snapshot(files)
    if str(snapshot.topic_id) != described.topic_id:
        raise DataDirectoryError(
            f"{files} holds another topic {topic} than the store at {', '.join(store.urls)} serves (topic id "
            f"{snapshot.topic_id}, not {described.topic_id}): the data of another store, or of a topic that was just "
            "made again"
        )
    bounds = []
    for p in described.partitions:
        log_start = max(p.log_start_offset, snapshot.partitions[p.partition].log_start)
        bounds.append(LogBounds(p.partition, log_start, max(p.last_stable_offset, log_start)))
    return TopicView(topic, files, snapshot, tuple(bounds), store.addresses, mark)


def view_of_storage(storage: str | os.PathLike[str], topic: str) -> TopicView:
    """Return a view of the sealed history in a data root.

    Raises InvalidTopicError, UnknownTopicError, DataDirectoryError, CorruptionError.
    """
    _check_topic_name(topic)
    root = storage_root(storage)
    files = root.open(topic)
    if not files.exists():
        raise UnknownTopicError(f"there is no topic {topic} in {os.fspath(storage)} ({files})")
    mark, snapshot = _marked_snapshot(files)
    partitions = sorted(snapshot.partitions.items())
    bounds = tuple(LogBounds(p, state.log_start, max(state.sealed, state.log_start)) for p, state in partitions)
    return TopicView(topic, files, snapshot, bounds, log_mark=mark)


def storage_root(storage: str | os.PathLike[str]) -> TableRoot:
    """Return the tables of a data root. Raises DataDirectoryError if it is missing: unmounted, it has lost no topic."""
    root = open_root(storage)
    if not root.exists():
        raise DataDirectoryError(f"option storage: there is no data root of a store at {os.fspath(storage)}")
    return root


def check_source(bootstrap: str | None, storage: str | os.PathLike[str] | None) -> None:
    """Raise InvalidRequestError if both are given."""
    if bootstrap is not None and storage is not None:
        raise InvalidRequestError("give bootstrap (a running store) or storage (its data root), not both")


def connect(bootstrap: str | None, client_id: str) -> Admin:
    """Connect to the store at ``bootstrap``, else at LOGSTORE_URL. Raises InvalidRequestError without either."""
    bootstrap = bootstrap or environment_url()
    if not bootstrap:
        raise InvalidRequestError(
            f'give bootstrap="host:port" (or set {URL_VARIABLE}) for a running store, '
            'or storage="<data root>" to read without one'
        )
    return Admin(bootstrap, client_id=client_id, default_api_timeout_ms=int(1000 * RETRY_SECONDS))


def _check_topic_name(topic: str) -> None:
    if not is_legal_name(topic, TOPIC_NAME_LENGTH_MAX):
        raise InvalidTopicError(f"{topic!r} cannot be a topic's name: 1 to 249 of A-Z a-z 0-9 . _ -, not . or ..")


def _marked_snapshot(files: TableFiles) -> tuple[int | None, "TopicSnapshot"]:
    table = _table(files.uri)
    return table.log_mark(), table.snapshot()


@lru_cache(_TABLES_KEPT)
def _table(uri: str) -> "TopicTable":
    """Return a table that caches what it has read of its log, so that the next snapshot reads only new entries."""
    from logstore.delta.topic_table import TopicTable

    # TopicTable.open would make durable what it sees, but a reader may have the data mounted read-only.
    return TopicTable(open_table(uri))
