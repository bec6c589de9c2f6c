"""The history of a run of the fault bench: one JSON line per invocation and per completion of an operation.

This module owns the format: a type per operation, tagged by ``op``. ``Recorder`` appends to one file, from any thread
and any process; a line is one ``write`` to a file opened with O_APPEND, so lines never mix. It checks each line against
its type, so that a mistake in the workload fails there and not as an anomaly. ``t`` is the machine's monotonic clock,
taken before an invocation is sent and after a completion has come: the event lies between the two.
"""

import itertools
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

Phase = Literal["invoke", "ok", "fail", "info"]

#: record id, key, value (None = tombstone), timestamp in ms (None = append time)
SentRecord = tuple[str, str | None, str | None, int | None]
#: partition, offset; None for a record that was not stored according to the answer
Place = tuple[int, int]
#: offset, timestamp in ms, record id (None: no such header), key, value
Row = tuple[int, int, str | None, str | None, str | None]
TopicPartition = tuple[str, int]
#: partition, then as ``Row``
TableRow = tuple[int, int, int, str | None, str | None, str | None]

#: leader (-1: none), leader epoch, in-sync replicas, replicas
RegisteredPartition = tuple[int, int, list[int], list[int]]
#: base offset, record count, leader epoch, a digest of the header's other logical fields and the payload, and one of
#: the rows
ReplicaFrame = tuple[int, int, int, str, str]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", gc=False):
    """One event: ``id`` joins a completion to its invocation, which has the request; the completion has the outcome."""

    t: int
    process: str
    phase: Phase
    id: str
    #: The status of an HTTP answer that is an error.
    status: int = 0
    error_code: int = 0


class Topic(Event, tag="topic", frozen=True, kw_only=True):
    topic: str
    partitions: int
    configs: dict[str, str] = {}
    now_ms: int = 0


class Produce(Event, tag="produce", frozen=True, kw_only=True):
    topic: str = ""
    partition: int | None = None
    acks: int | str = 1
    format: str = ""
    #: Calls with the same pipeline keep their order in each log, also while several are under way.
    pipeline: str = ""
    records: list[SentRecord] = []
    #: None for a record that was refused, or whose place is not known: then its position is among ``unknown``.
    places: list[Place | None] | None = None
    unknown: list[int] = []


class Fetch(Event, tag="fetch", frozen=True, kw_only=True):
    topic: str = ""
    partition: int = 0
    offset: int = 0
    records: list[Row] = []
    next_offset: int = 0
    high_watermark: int = 0
    log_start: int = 0


class OffsetForTime(Event, tag="offset_for_time", frozen=True, kw_only=True):
    topic: str = ""
    partition: int = 0
    timestamp: int = 0
    offset: int | None = None


class DeleteRecords(Event, tag="delete_records", frozen=True, kw_only=True):
    topic: str = ""
    partition: int = 0
    before_offset: int = 0
    log_start: int = 0


class Commit(Event, tag="commit", frozen=True, kw_only=True):
    group: str = ""
    topic: str = ""
    offsets: dict[int, int] = {}


class Committed(Event, tag="committed", frozen=True, kw_only=True):
    group: str = ""
    topic: str = ""
    offsets: dict[int, int] = {}


class Group(Event, tag="group", frozen=True, kw_only=True):
    """A consumer group whose members are processes of the bench; members are named by their ``process``."""

    group: str
    topics: list[str]
    session_ms: int


class Assigned(Event, tag="assigned", frozen=True, kw_only=True):
    """An assignment, which the member records in its rebalance listener; ``revoked`` and ``lost`` are recorded there as
    well.
    """

    group: str
    partitions: list[TopicPartition]


class Revoked(Event, tag="revoked", frozen=True, kw_only=True):
    group: str
    partitions: list[TopicPartition]


class Lost(Event, tag="lost", frozen=True, kw_only=True):
    group: str
    partitions: list[TopicPartition]


class Processed(Event, tag="processed", frozen=True, kw_only=True):
    """Offsets and record ids that a member has processed, before it commits them."""

    group: str
    topic: str
    partition: int
    rows: list[tuple[int, str | None]]


#: The process of a stall that stops all processes.
MACHINE = "machine"


class Stall(Event, tag="stall", frozen=True, kw_only=True):
    """The process of a member, or the ``MACHINE``, did not run from ``since`` until now."""

    since: int


class Described(Event, tag="described", frozen=True, kw_only=True):
    """A group as the store describes it: the partitions of each member, by process.

    ``live`` are the members at the end of a run, when none joins or leaves any more.
    """

    group: str = ""
    state: str = ""
    generation: int = -1
    members: dict[str, list[TopicPartition]] = {}
    live: list[str] | None = None


class GroupRestarted(Event, tag="group_restarted", frozen=True, kw_only=True):
    """The store was killed and started under a settled group, which is settled again with the same members."""

    group: str
    before: int
    after: int


class Look(Event, frozen=True, kw_only=True):
    """The rows that an independent Delta reader saw in one version, from each partition's ``since`` on."""

    topic: str
    version: int = -1
    sealed: dict[int, int] = {}
    log_start: dict[int, int] = {}
    cleaned: dict[int, int] | None = None
    #: The size of the active files, by partition.
    bytes: dict[int, int] = {}
    since: dict[int, int] = msgspec.field(default_factory=dict, name="from")
    rows: list[TableRow] = []
    error: str = ""


class Delta(Look, tag="delta", frozen=True, kw_only=True):
    pass


class FinalDelta(Look, tag="final_delta", frozen=True, kw_only=True):
    pass


class Stream(Event, tag="stream", frozen=True, kw_only=True):
    """The rows of one topic in a batch of a streaming query; ``info`` is an error that ended the query."""

    query: str
    topic: str
    batch: int = -1
    rows: list[TableRow] = []
    error: str = ""


class Entry(Event, tag="entry", frozen=True, kw_only=True):
    topic: str
    version: int
    sha256: str


class Job(Event, tag="job", frozen=True, kw_only=True):
    job: str = ""
    topics: list[str] = []


class Fault(Event, tag="fault", frozen=True, kw_only=True):
    """A fault; its kind decides which of the fields are set.

    ``topic`` and ``version`` belong to an ``overwrite`` (``quiet`` if no other commit to that table was under way) and
    to an ``entry_lost`` (the entry that a power cut took). ``offset_ms`` is the step of a ``clock`` fault, ``member``
    the process of the affected group member, ``broker`` the affected broker of a cluster; ``topic`` and ``moved`` are
    the partition whose replicas a ``move`` reassigns.
    """

    kind: str
    topic: str | None = None
    moved: int = -1
    version: int | None = None
    quiet: bool = False
    offset_ms: int = 0
    member: str = ""
    broker: int = 0


class Foreign(Event, tag="foreign", frozen=True, kw_only=True):
    """Versions of a table from ``version`` on hold changes of other writers. It is recorded again with ``until`` at the
    end.
    """

    topic: str
    version: int
    until: int | None = None


class Statement(Event, tag="statement", frozen=True, kw_only=True):
    """A DELETE, UPDATE or MERGE of another writer, or the RESTORE that undoes one; ``rows`` as they were before.

    The completion comes when readers are served the result; ``fail``: it changed nothing.
    """

    topic: str
    partition: int
    how: str = ""
    rows: list[Row] = []
    #: The values afterwards, by offset; the other ``rows`` are deleted.
    values: dict[int, str] = {}
    #: The version of its commit.
    version: int = -1


class Registered(Event, tag="registered", frozen=True, kw_only=True):
    """A topic's document in ZooKeeper, whose ``mzxid`` was current from ``t`` on at the latest.

    The document before it still existed when it was read at ``seen_until``. It is recorded again with the same
    ``mzxid`` at the end of a run.
    """

    topic: str
    mzxid: int
    partitions: list[RegisteredPartition] = []
    seen_until: int = 0


class Replica(Event, tag="replica", frozen=True, kw_only=True):
    """The frames of a partition that count in a broker's journal, and those that truncations removed.

    They are read from its disk while no broker runs. ``sealed``: offsets below it are in the table.
    """

    broker: int
    topic: str
    partition: int
    sealed: int
    #: The same number for everything that was read while no broker ran; it rises.
    look: int
    frames: list[ReplicaFrame] = []
    removed: list[ReplicaFrame] = []
    #: Damage that was found in the journal.
    error: str = ""


class Probe(Event, tag="probe", frozen=True, kw_only=True):
    """A request to one broker that is not forwarded: a record with acks=1, or (``record_id`` empty) the end offset."""

    broker: int = 0
    topic: str = ""
    partition: int = 0
    record_id: str = ""
    offset: int = -1


class Bumped(Event, tag="bumped", frozen=True, kw_only=True):
    """An idempotent producer of librdkafka begins to continue in the next epoch of its producer id."""

    reason: str = ""


class Heal(Event, tag="heal", frozen=True, kw_only=True):
    pass


class Start(Event, tag="start", frozen=True, kw_only=True):
    pass


class Final(Event, tag="final", frozen=True, kw_only=True):
    topic: str
    partition: int
    log_start: int
    high_watermark: int
    rows: list[Row] = []


class FinalCommits(Event, tag="final_commits", frozen=True, kw_only=True):
    group: str = ""
    topic: str = ""
    offsets: dict[int, int] = {}


AnyEvent = (
    Topic
    | Produce
    | Fetch
    | OffsetForTime
    | DeleteRecords
    | Commit
    | Committed
    | Group
    | Assigned
    | Revoked
    | Lost
    | Processed
    | Stall
    | Described
    | GroupRestarted
    | Delta
    | FinalDelta
    | Stream
    | Entry
    | Job
    | Fault
    | Foreign
    | Statement
    | Registered
    | Replica
    | Bumped
    | Probe
    | Heal
    | Start
    | Final
    | FinalCommits
)


class Recorder:
    """Records events to the file at ``path``: ``invoke`` and ``complete`` for a call, ``tell`` for a single event.

    Several recorders, also of several processes, may share a file. The given fields may be more than the type has.
    Raises msgspec.ValidationError if a field does not fit the type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # A bare descriptor would not do: a thread that outlives its run must not write into the file that gets the
        # number next.
        self._file = path.open("ab", buffering=0)
        # The prefix is unique over all processes of a run, even if one has the id of a process that died.
        self._prefix = f"{os.getpid()}-{time.monotonic_ns():x}"
        self._numbers = itertools.count()

    def invoke(self, process: str, op: str, **fields: Any) -> str:
        """Record a call before the request is sent; return the id of the call, for its completion."""
        return self.tell(process, op, "invoke", **fields)

    def complete(self, number: str, process: str, op: str, phase: Phase, **fields: Any) -> None:
        """Record the outcome of a call, once it is known."""
        self._write(process, op, phase, number, fields)

    def tell(self, process: str, op: str, phase: Phase = "ok", **fields: Any) -> str:
        number = f"{self._prefix}-{next(self._numbers)}"
        self._write(process, op, phase, number, fields)
        return number

    def _write(self, process: str, op: str, phase: Phase, number: str, fields: dict[str, Any]) -> None:
        event = {"t": time.monotonic_ns(), "process": process, "op": op, "phase": phase, "id": number, **fields}
        line = msgspec.json.encode(event) + b"\n"
        msgspec.json.decode(line, type=AnyEvent)
        written = self._file.write(line)
        if written != len(line):
            raise OSError(f"{written} of {len(line)} bytes of a history line were written")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_history(*paths: Path) -> list[AnyEvent]:
    """Return all events of the files by rising ``t``. Raises ValueError with the line that is not an event.

    A killed recorder leaves a last line without its end; that line is left out.
    """
    decoder = msgspec.json.Decoder(AnyEvent)
    events: list[AnyEvent] = []
    for path in paths:
        *lines, _cut_off = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                events.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}:{number} is no event of a history: {error}") from error
    return merge(events)


def typed(events: Iterable[AnyEvent | Mapping[str, Any]]) -> list[AnyEvent]:
    """Return events from events and plain JSON objects. Raises msgspec.ValidationError."""
    return [event if isinstance(event, Event) else msgspec.convert(event, AnyEvent, str_keys=True) for event in events]


def merge(*histories: Iterable[AnyEvent]) -> list[AnyEvent]:
    """Return the events of several histories by rising ``t``."""
    return sorted(itertools.chain(*histories), key=lambda event: event.t)
