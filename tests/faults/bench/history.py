"""The history of a run of the fault bench: one JSON line per invocation and per completion of an operation.

Owns the format: a type per operation, tagged by ``op``. ``Recorder`` appends, from any thread and any process, to one
file; a line is one ``write`` to a file opened with O_APPEND, so lines never mix. It checks each line against its type,
so that a mistake in the workload fails there and not as an anomaly. ``t`` is the machine's monotonic clock, taken
before an invocation is sent and after a completion has come: the event lies within the interval of the two.
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
#: partition, offset; None for a record that the answer says was not stored
Place = tuple[int, int]
#: offset, timestamp in ms, record id (None: the header is not there), key, value
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
    """``id`` joins a completion to its invocation. An invocation has the request, a completion the outcome."""

    t: int
    process: str
    phase: Phase
    id: str
    #: Of an HTTP answer other than a good one.
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
    #: Calls with the same one keep their order in each log, also while several are under way.
    pipeline: str = ""
    records: list[SentRecord] = []
    #: None for a record that was refused, or of which nobody knows: then its position is among ``unknown``.
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
    """Told by the member, in its rebalance listener, as are ``revoked`` and ``lost``."""

    group: str
    partitions: list[TopicPartition]


class Revoked(Event, tag="revoked", frozen=True, kw_only=True):
    group: str
    partitions: list[TopicPartition]


class Lost(Event, tag="lost", frozen=True, kw_only=True):
    group: str
    partitions: list[TopicPartition]


class Processed(Event, tag="processed", frozen=True, kw_only=True):
    """Offsets and record ids that a member is done with, before it commits them."""

    group: str
    topic: str
    partition: int
    rows: list[tuple[int, str | None]]


#: Of a stall of all processes.
MACHINE = "machine"


class Stall(Event, tag="stall", frozen=True, kw_only=True):
    """The process of a member, or the ``MACHINE``, did not run from ``since`` until now."""

    since: int


class Described(Event, tag="described", frozen=True, kw_only=True):
    """A group as the store describes it: the partitions of each member, by process. ``live`` at the end of a run: the
    members that there are, none of which comes or goes any more.
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
    """The rows that a Delta reader that is not ours saw in one version, from each partition's ``since`` on."""

    topic: str
    version: int = -1
    sealed: dict[int, int] = {}
    log_start: dict[int, int] = {}
    cleaned: dict[int, int] | None = None
    #: Of the active files, by partition.
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
    """``topic`` and ``version`` belong to an ``overwrite`` (``quiet`` if no other commit to that table was under way)
    and to an ``entry_lost`` (the entry that a power cut took). ``offset_ms`` is the step of a ``clock`` fault,
    ``member`` the process of a group's member that the fault is about, ``broker`` that of a cluster; ``topic`` and
    ``moved`` the partition whose replicas a ``move`` takes elsewhere.
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
    """Versions of a table from ``version`` on hold changes of other writers. Told again with ``until`` at the end."""

    topic: str
    version: int
    until: int | None = None


class Statement(Event, tag="statement", frozen=True, kw_only=True):
    """A DELETE, UPDATE or MERGE of another writer, or the RESTORE that takes one back. ``rows`` as they were before.
    The completion comes when readers are served what it left; ``fail``: it changed nothing.
    """

    topic: str
    partition: int
    how: str = ""
    rows: list[Row] = []
    #: By offset, the value afterwards; the other ``rows`` are gone.
    values: dict[int, str] = {}
    #: Of its commit.
    version: int = -1


class Registered(Event, tag="registered", frozen=True, kw_only=True):
    """A topic's document in ZooKeeper, which was ``mzxid`` from ``t`` on at the latest. The one before was there still
    when it was read at ``seen_until``. Told again with the same ``mzxid`` at the end of a run.
    """

    topic: str
    mzxid: int
    partitions: list[RegisteredPartition] = []
    seen_until: int = 0


class Replica(Event, tag="replica", frozen=True, kw_only=True):
    """The frames of a partition that count in a broker's journal, as they lay on its disk while no broker ran, and
    those that truncations took out of it. ``sealed``: what is below is in the table.
    """

    broker: int
    topic: str
    partition: int
    sealed: int
    #: The same for all that was read while no broker ran; it rises.
    look: int
    frames: list[ReplicaFrame] = []
    removed: list[ReplicaFrame] = []
    #: Damage of the journal.
    error: str = ""


class Probe(Event, tag="probe", frozen=True, kw_only=True):
    """A request to one broker that is not sent on: a record with acks=1, or (``record_id`` empty) the end offset."""

    broker: int = 0
    topic: str = ""
    partition: int = 0
    record_id: str = ""
    offset: int = -1


class Bumped(Event, tag="bumped", frozen=True, kw_only=True):
    """An idempotent producer of librdkafka's begins to go on in the next epoch of its producer id."""

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
    """``invoke`` and ``complete`` a call, or ``tell`` what has no beginning; appends to the file at ``path``.

    Several recorders, also of several processes, may share a file. Fields may be more than the type has;
    msgspec.ValidationError if one does not fit it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Not a bare descriptor: a thread that outlives its run must not write into the file that gets the number next.
        self._file = path.open("ab", buffering=0)
        # Unique over all processes of a run, also those that have the id of one that died.
        self._prefix = f"{os.getpid()}-{time.monotonic_ns():x}"
        self._numbers = itertools.count()

    def invoke(self, process: str, op: str, **fields: Any) -> str:
        """Before the request is sent. Gives the id of the call, for its completion."""
        return self.tell(process, op, "invoke", **fields)

    def complete(self, number: str, process: str, op: str, phase: Phase, **fields: Any) -> None:
        """After the outcome is known."""
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
    """All events of the files by rising ``t``. ValueError names a line that is no event.

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
    """Events that may still be plain JSON objects. msgspec.ValidationError."""
    return [event if isinstance(event, Event) else msgspec.convert(event, AnyEvent, str_keys=True) for event in events]


def merge(*histories: Iterable[AnyEvent]) -> list[AnyEvent]:
    """Events of several histories by rising ``t``."""
    return sorted(itertools.chain(*histories), key=lambda event: event.t)
