"""The evidence in a history, put together: every record that was sent, and every log as all its readers saw it.

Only events that cannot be put together are judged here. Invariants: ``Log.seen`` has one row for each offset that any
reader was shown, preferably the row of the final read; other rows at that offset are in ``differing``. A record has at
most one ``place``, preferably the final one; further places are in ``doubled``.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

import msgspec

from tests.faults.bench.history import (
    AnyEvent,
    Assigned,
    Bumped,
    DeleteRecords,
    Delta,
    Described,
    Entry,
    Event,
    Fault,
    Fetch,
    Final,
    FinalCommits,
    FinalDelta,
    Foreign,
    Group,
    GroupRestarted,
    Heal,
    Job,
    Look,
    Lost,
    Place,
    Processed,
    Produce,
    Registered,
    Replica,
    Revoked,
    Row,
    Stall,
    Start,
    Statement,
    Stream,
    TableRow,
    Topic,
)
from tests.faults.bench.statements import Changes, Moment

FOREVER = 2**63 - 1
#: Kafka's default, and the drift that two clocks of one machine may have in a run.
_DELETE_RETENTION_MS = 86_400_000
_DRIFT_MS = 1_000
#: The store repairs the loss within this time after an entry was overwritten; readers were shown that entry at most
#: this long before.
_MADE_GOOD_NS = 30_000_000_000
#: The fault is recorded a little before it happens, a look a little after.
_TELLING_NS = 1_000_000_000

E = TypeVar("E", bound=Event)
LogName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A contradiction to an invariant of the store, or of the history itself (``history``)."""

    invariant: str
    name: str
    message: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        told = "".join(f"\n    {type(e).__name__} {e.phase} {e.id} of {e.process} at {e.t}" for e in self.events)
        return f"{self.invariant} {self.name}: {self.message}{told}"


@dataclass(frozen=True, slots=True)
class Call(Generic[E]):
    """An invocation with its completion; a call without a completion is over at ``FOREVER``."""

    asked: E
    told: E | None

    @property
    def begin(self) -> int:
        return self.asked.t

    @property
    def ok(self) -> bool:
        return self.told is not None and self.told.phase == "ok"

    @property
    def moment(self) -> Moment:
        return Moment(self.asked.t, self.told.t if self.told else FOREVER)

    @property
    def events(self) -> tuple[E, ...]:
        return (self.asked,) if self.told is None or self.told is self.asked else (self.asked, self.told)


@dataclass(frozen=True, slots=True)
class TakenEntry:
    """A log entry that is gone since ``t``: other writers overwrote it (``foreign``), or a power cut came before its
    fsync.

    The store never reported an entry that a power cut takes; only other readers of the table may have seen it. A
    foreign commit may also take reported entries: ``last`` is the last version that may lack it, if a later commit may
    have been built on the entry already.
    """

    t: int
    version: int
    foreign: bool
    last: int

    def voids(self, look: Look | Entry, now: Look | Entry) -> bool:
        """Return whether what ``look`` saw of the table may be missing in ``now``."""
        return look.version >= self.version and look.t < self.t + _TELLING_NS and now.t >= self.t


@dataclass(slots=True)
class TopicFacts:
    """Values that a topic's configuration ever had, and the entries of its table that were ``taken``."""

    name: str
    #: The numbers of partitions that it had, with the time when each was first reported.
    partitions: dict[int, int] = field(default_factory=dict)
    compacted: bool = False
    retained: bool = True
    delete_retention_ms: float = _DELETE_RETENTION_MS
    timestamp_types: set[str] = field(default_factory=set)
    #: The least that retention by size alone leaves of a partition; None if other things remove records.
    retention_bytes: int | None = None
    #: The time by the wall clock when the topic was created.
    made_ms: int = 0
    taken: list[TakenEntry] = field(default_factory=list)

    @property
    def overwrites(self) -> list[int]:
        """Return the times when other writers took entries that readers had already been shown."""
        return [entry.t for entry in self.taken if entry.foreign]

    def undone(self, t: int) -> bool:
        """Return whether records that a job had removed before a read at ``t`` may have come back."""
        return any(abs(t - overwritten) < _MADE_GOOD_NS for overwritten in self.overwrites)

    def holed(self, look: Look) -> bool:
        """Return whether a version may lack what an overwritten entry had added."""
        return any(e.foreign and e.version <= look.version <= e.last and look.t >= e.t for e in self.taken)

    def add(self, topic: Topic) -> None:
        configs = topic.configs
        policy = configs.get("cleanup.policy", "delete")
        self.partitions.setdefault(topic.partitions, topic.t)
        self.compacted |= "compact" in policy
        limits = (configs.get("retention.ms", "-1"), configs.get("retention.bytes", "-1"))
        self.retained &= "delete" not in policy or all(int(limit) < 0 for limit in limits)
        by_size_alone = policy == "delete" and int(limits[0]) < 0 <= int(limits[1])
        self.retention_bytes = int(limits[1]) if by_size_alone else None
        self.made_ms = topic.now_ms
        delete_retention_ms = float(configs.get("delete.retention.ms", _DELETE_RETENTION_MS))
        self.delete_retention_ms = min(self.delete_retention_ms, delete_retention_ms)
        self.timestamp_types.add(configs.get("message.timestamp.type", "CreateTime"))

    def has(self, partition: int, t: int) -> bool:
        """Return whether the topic had the partition at ``t``."""
        return any(told <= t and partition < count for count, told in self.partitions.items())

    def keeps(self, timestamp_type: str) -> bool:
        return self.timestamp_types == {timestamp_type}


@dataclass(slots=True, eq=False)
class Request:
    """A request: after ``end`` it has no effect any more; if ``told`` is None it is in flight to the end of the run."""

    call: Call[Produce]
    end: int
    refused: bool
    records: list["Sent"] = field(default_factory=list)

    @property
    def asked(self) -> Produce:
        return self.call.asked


@dataclass(slots=True, eq=False)
class Sent:
    """A record: ``acknowledged`` and found (``place``), or ``refused``, which means certainly not stored."""

    id: str
    key: str | None
    value: str | None
    timestamp_ms: int | None
    request: Request
    acknowledged: Place | None = None
    refused: bool = False
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The part of a request in one partition: ``count`` records from ``base`` on; ``whole`` if each place is known."""

    request: Request
    base: int
    count: int
    whole: bool


@dataclass(slots=True, eq=False)
class Differing:
    """The ``event`` that showed ``row`` where ``Log.seen`` has another row."""

    event: Fetch | Look | Stream
    row: Row


class Log:
    """A partition: ``rows`` of the final read, records ``acknowledged`` and ``inferred`` (from others of the batch)."""

    def __init__(self, topic: TopicFacts, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.final: Final | None = None
        self.rows: dict[int, Row] = {}
        self.seen: dict[int, Row] = {}
        self.seen_in: dict[int, Fetch | Look | Stream] = {}
        self.differing: list[Differing] = []
        self.acknowledged: dict[int, Sent] = {}
        self.inferred: dict[int, Sent] = {}
        self.batches: list[Batch] = []
        #: Rows that are no record of this log: each is reported once.
        self.strange: set[int] = set()
        #: The furthest start that a delete-records asked for; None if there was none.
        self.deleted_to: int | None = None
        #: Changes by statements of other writers; all other rows here are as they were before these.
        self.changes = Changes()

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.partition}"

    @property
    def loses_prefix(self) -> bool:
        return not self.topic.retained or self.deleted_to is not None

    def take(self, row: Row, event: Fetch | Look | Stream) -> None:
        known = self.seen.get(row[0])
        if known is None:
            self.seen[row[0]] = row
            self.seen_in[row[0]] = event
        elif known != row:
            self.differing.append(Differing(event, row))

    def exists(self, offset: int) -> bool:
        """Return whether a record is known to have existed, as far as the final read does not contradict it."""
        if offset in self.rows:
            return True
        denied = self.final is not None and (offset >= self.final.log_start or self.topic.compacted)
        if denied and not self.changes.ends_gone(offset):
            return False
        return offset in self.seen or offset in self.acknowledged

    @cached_property
    def offsets(self) -> list[int]:
        """Return the offsets of the final rows, rising."""
        return sorted(self.rows)

    def surviving(self, begin: int, end: int) -> list[int]:
        """Return the offsets of final rows in [begin, end)."""
        return self.offsets[bisect_left(self.offsets, begin) : bisect_left(self.offsets, end)]

    @cached_property
    def latest_timestamps(self) -> list[int]:
        """Return the greatest timestamp up to each of ``offsets``."""
        return list(accumulate((self.rows[offset][1] for offset in self.offsets), max))

    @cached_property
    def end(self) -> int:
        return self.final.high_watermark if self.final else FOREVER

    def record_at(self, offset: int) -> tuple[str | None, str | None, Sent | None] | None:
        """Return key, value and record that are known to have been at the offset."""
        sent = self.acknowledged.get(offset) or self.inferred.get(offset)
        if sent:
            return sent.key, sent.value, sent
        row = self.seen.get(offset)
        return (row[3], row[4], None) if row and offset not in self.strange else None

    @cached_property
    def offsets_of_keys(self) -> dict[str, list[int]]:
        """Return the offsets, rising, at which records of each key are known to have been."""
        found: dict[str, list[int]] = defaultdict(list)
        for offset in sorted(self.seen.keys() | self.acknowledged.keys() | self.inferred.keys()):
            record = self.record_at(offset)
            if record and record[0] is not None:
                found[record[0]].append(offset)
        return found


class Evidence:
    """The evidence of a history, whose events may be in any order. ``anomalies`` has what could not be put together."""

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        self.anomalies: list[Anomaly] = []
        self.topics: dict[str, TopicFacts] = {}
        self.logs: dict[LogName, Log] = {}
        self.sent: dict[str, Sent] = {}
        self.requests: list[Request] = []
        self.doubled: list[tuple[Sent, Log, int]] = []
        #: Records that may be stored and were never seen, by topic.
        self.unplaced: dict[str, list[Sent]] = defaultdict(list)
        self._by_type: dict[type, list[Call[Any]]] = defaultdict(list)
        ordered = sorted(events, key=lambda event: event.t)
        self._pair(ordered)
        self.starts = [start.t for start in self.singles(Start)]
        self.faults = self.singles(Fault)
        self.heals = self.singles(Heal)
        self._find_changes()
        self._undo_changes()
        self.looks = [self._look_before_changes(look) for look in self._find_looks()]
        self.two_stores = self._find_two_stores()
        self.clock_slack_ms = _DRIFT_MS + sum(abs(fault.offset_ms) for fault in self.faults)
        self._find_topics()
        for call in self.calls(Produce):
            self._add_request(call)
        self._find_rows()
        self._find_places()
        for request in self.requests:
            self._find_batches(request)

    def calls(self, kind: type[E]) -> list[Call[E]]:
        return self._by_type[kind]

    def singles(self, kind: type[E]) -> list[E]:
        """Return the completed events of this kind."""
        return [call.told for call in self.calls(kind) if call.told and call.ok]

    def answered(self) -> Iterator[Call[Any]]:
        """Yield all calls that have a completion."""
        return (call for calls in list(self._by_type.values()) for call in calls if call.told)

    def log(self, topic: str, partition: int) -> Log:
        found = self.logs.get((topic, partition))
        if found is None:
            found = self.logs[topic, partition] = Log(self.topic(topic), partition)
        return found

    def topic(self, name: str) -> TopicFacts:
        return self.topics.setdefault(name, TopicFacts(name))

    def report(self, invariant: str, name: str, message: str, *events: Event | None) -> None:
        self.anomalies.append(Anomaly(invariant, name, message, tuple(event for event in events if event)))

    # ---- putting together -------------------------------------------------------------------------------------------

    def _pair(self, events: list[AnyEvent]) -> None:
        single = (
            *(Topic, Entry, Fault, Foreign, Heal, Start, Final, Delta, FinalDelta, FinalCommits, Job, Stream),
            *(Group, Assigned, Revoked, Lost, Processed, Stall, Described, GroupRestarted),
            *(Bumped, Registered, Replica),
        )
        asked: dict[str, AnyEvent] = {}
        for event in events:
            if event.phase == "invoke":
                if event.id in asked:
                    self.report("history", "id used twice", event.id, event)
                asked[event.id] = event
                continue
            invoked = asked.pop(event.id, None)
            if invoked is None and not isinstance(event, single):
                self.report("history", "completion without invocation", event.id, event)
            elif invoked is not None and type(invoked) is not type(event):
                self.report("history", "completion of another operation", event.id, invoked, event)
            else:
                self._by_type[type(event)].append(Call(invoked or event, event))
        for invoked in asked.values():
            self._by_type[type(invoked)].append(Call(invoked, None))

    def _find_looks(self) -> list[Look]:
        """Return looks at versions of the store alone, by time. Versions of other writers do not count until undone."""
        foreign: dict[tuple[str, int], int] = {}
        for event in self.singles(Foreign):
            foreign[event.topic, event.version] = FOREVER if event.until is None else event.until
        looks: list[Look] = [*self.singles(Delta), *self.singles(FinalDelta)]
        own = [
            look
            for look in looks
            if not any(t == look.topic and since <= look.version < until for (t, since), until in foreign.items())
        ]
        return sorted(own, key=lambda look: look.t)

    # ---- statements of other writers --------------------------------------------------------------------------------

    def _find_changes(self) -> None:
        for call in self.calls(Statement):
            if call.told is None or call.told.phase != "fail":
                served, version = (FOREVER, None) if call.told is None else (call.told.t, call.told.version)
                self.log(call.asked.topic, call.asked.partition).changes.add(call.asked, served, version)

    def _undo_changes(self) -> None:
        """Set each row that was read back to its value before the statements; the changes are judged only here."""
        for at, call in enumerate(self.calls(Fetch)):
            if call.ok and call.told and call.told.records:
                log = self.log(call.asked.topic, call.asked.partition)
                rows = self._before_changes(log, call.told.records, call.moment, call.told)
                self._by_type[Fetch][at] = Call(call.asked, msgspec.structs.replace(call.told, records=rows))
        for at, read in enumerate(self.calls(Final)):
            log = self.log(read.asked.topic, read.asked.partition)
            final = msgspec.structs.replace(
                read.asked, rows=self._before_changes(log, read.asked.rows, read.moment, read.asked)
            )
            self._by_type[Final][at] = Call(final, final)

    def _look_before_changes(self, look: Look) -> Look:
        moment = Moment(look.t, look.t, look.version)
        by_partition: dict[int, list[Row]] = defaultdict(list)
        for partition, *row in look.rows:
            by_partition[partition].append((row[0], row[1], row[2], row[3], row[4]))
        told: list[TableRow] = []
        for partition, rows in by_partition.items():
            before = self._before_changes(self.log(look.topic, partition), rows, moment, look)
            told += [(partition, *row) for row in before]
        return msgspec.structs.replace(look, rows=told)

    def _before_changes(self, log: Log, rows: list[Row], moment: Moment, event: Event) -> list[Row]:
        if not log.changes:
            return rows
        wrong: dict[str, list[str]] = defaultdict(list)
        before = []
        for row in rows:
            offset, value = row[0], row[4]
            if offset not in log.changes or value not in log.changes.values(offset):
                before.append(row)
                continue
            allowed = log.changes.may_be(offset, moment)
            if value not in allowed:
                name = "deleted record is back" if allowed == {None} else "record is not as a statement left it"
                wrong[name].append(f"offset {offset} is {value!r}, not of {allowed}")
            before.append((*row[:4], log.changes.before(offset)))
        for name, found in wrong.items():
            self.report("I5", name, f"{log.name}: {len(found)} of {len(rows)} rows, first {found[0]}", event)
        return before

    def _find_two_stores(self) -> list[tuple[int, int]]:
        """Return when a second store may have run beside the one that readers ask, until that one was restarted."""
        begins = [fault.t for fault in self.faults if fault.kind == "lock"]
        return [(t, next((start for start in self.starts if start > t), FOREVER)) for t in begins]

    def known_to_all(self, t: int) -> int:
        """Return the time from which every reader is shown everything that any reader was shown at ``t``."""
        return next((end for begin, end in self.two_stores if begin <= t < end), t)

    def _find_topics(self) -> None:
        for topic in self.singles(Topic):
            self.topic(topic.topic).add(topic)
        for fault in self.faults:
            if fault.kind in {"overwrite", "entry_lost"} and fault.topic is not None and fault.version is not None:
                self.topic(fault.topic).taken.append(self._taken(fault, fault.topic, fault.version))
        for call in self.calls(DeleteRecords):
            if call.told and call.told.phase == "fail":
                continue
            log = self.log(call.asked.topic, call.asked.partition)
            asked = FOREVER if call.asked.before_offset < 0 else call.asked.before_offset
            log.deleted_to = max(asked, log.deleted_to or 0)

    def _taken(self, fault: Fault, topic: str, version: int) -> TakenEntry:
        foreign, last = fault.kind == "overwrite", -1
        if foreign and not fault.quiet:
            told = (e.version for e in self.singles(Entry) if e.topic == topic and e.t < fault.t + _MADE_GOOD_NS)
            last = max(told, default=-1)
        return TakenEntry(fault.t, version, foreign, last)

    def effect_end(self, call: Call[E]) -> int:
        """Return when a call is over on the server's side as well: it was answered, or its server has ended.

        A start is recorded a little after the server accepts calls: only the second start after the outcome certainly
        belongs to another server.
        """
        if call.told is None:
            return FOREVER
        if call.told.phase != "info":
            return call.told.t
        later = bisect_right(self.starts, call.told.t) + 1
        return self.starts[later] if later < len(self.starts) else FOREVER

    def _add_request(self, call: Call[Produce]) -> None:
        asked, told = call.asked, call.told
        end = FOREVER if told is not None and told.unknown else self.effect_end(call)
        request = Request(call, end, told is not None and told.phase == "fail")
        self.requests.append(request)
        places = told.places if told and told.phase == "ok" else None
        if places is not None and len(places) != len(asked.records):
            self.report("A3", "answer of another length", f"{len(places)} places, {len(asked.records)} records", told)
            places = None
        for at, (record_id, key, value, timestamp_ms) in enumerate(asked.records):
            sent = Sent(record_id, key, value, timestamp_ms, request, None, request.refused)
            request.records.append(sent)
            if record_id in self.sent:
                self.report("history", "record sent twice", record_id, asked)
            self.sent[record_id] = sent
            place = places[at] if places is not None else None
            if places is not None and told is not None and place is None:
                sent.refused = at not in told.unknown
            if place is None:
                continue
            log = self.log(asked.topic, place[0])
            other = log.acknowledged.get(place[1])
            if place[1] < 0 or (asked.partition is not None and place[0] != asked.partition):
                self.report("A3", "answer with an impossible place", f"{record_id} at {place}", *call.events)
            elif other is not None:
                message = f"{log.name} offset {place[1]}: {other.id} and {record_id}"
                self.report("B1", "two acknowledged records at an offset", message, other.request.call.told, told)
            else:
                sent.acknowledged = place
                log.acknowledged[place[1]] = sent

    def _find_rows(self) -> None:
        for final in self.singles(Final):
            log = self.log(final.topic, final.partition)
            log.final = final
            offsets = [row[0] for row in final.rows]
            if any(a >= b for a, b in pairwise(offsets)):
                self.report("C2", "rows out of order", f"final read of {log.name}", final)
            log.rows = {row[0]: row for row in final.rows}
            log.seen = dict(log.rows)
        for call in self.calls(Fetch):
            if call.ok and call.told:
                log = self.log(call.asked.topic, call.asked.partition)
                for row in call.told.records:
                    log.take(row, call.told)
        for stream in self.singles(Stream):
            for table_row in stream.rows:
                self.log(stream.topic, table_row[0]).take(table_row[1:], stream)
        for look in reversed(self.looks):
            for table_row in look.rows:
                self.log(look.topic, table_row[0]).take(table_row[1:], look)

    def _find_places(self) -> None:
        for final in (True, False):
            for (_, partition), log in self.logs.items():
                for offset, row in (log.rows if final else log.seen).items():
                    if not final and offset in log.rows:
                        continue
                    sent = self.sent.get(row[2]) if row[2] is not None else None
                    if sent is None or sent.request.asked.topic != log.topic.name:
                        continue
                    if sent.place is None:
                        sent.place = (partition, offset)
                    else:
                        self.doubled.append((sent, log, offset))

    @cached_property
    def routes(self) -> dict[tuple[str, str, str], int]:
        """Return the partition of the first record without a named partition, by topic, format and key."""
        found: dict[tuple[str, str, str], int] = {}
        for sent in self.sent.values():
            asked, place = sent.request.asked, sent.acknowledged or sent.place
            if asked.partition is None and sent.key is not None and place is not None:
                found.setdefault((asked.topic, asked.format, sent.key), place[0])
        return found

    def _partition_of(self, sent: Sent, sticky: int | None) -> int | None:
        asked = sent.request.asked
        if sent.acknowledged is not None:
            return sent.acknowledged[0]
        if asked.partition is not None:
            return asked.partition
        if sent.place is not None:
            return sent.place[0]
        if self.topic(asked.topic).partitions.keys() == {1}:
            return 0
        return sticky if sent.key is None else self.routes.get((asked.topic, asked.format, sent.key))

    def _find_batches(self, request: Request) -> None:
        placed = (s.acknowledged or s.place for s in request.records if s.key is None)
        sticky = next((place[0] for place in placed if place), None)
        parts: dict[int | None, list[Sent]] = defaultdict(list)
        for sent in request.records:
            if not sent.refused:
                parts[self._partition_of(sent, sticky)].append(sent)
        topic = request.asked.topic
        # They lie between the others of their request, in an unknown partition.
        unknown = parts.pop(None, [])
        self.unplaced[topic] += unknown
        for partition, part in parts.items():
            assert partition is not None
            places = ((at, sent.acknowledged or sent.place) for at, sent in enumerate(part))
            found = {at: place[1] for at, place in places if place is not None and place[0] == partition}
            if found:
                self._add_batch(self.log(topic, partition), request, part, found, len(unknown))
            else:
                self.unplaced[topic] += part

    def _add_batch(self, log: Log, request: Request, part: list[Sent], found: dict[int, int], unknown: int) -> None:
        """Add ``part`` of a request with the ``found`` offsets of some; up to ``unknown`` more may lie between them."""
        bases = [offset - at for at, offset in found.items()]
        first, last = min(found.values()), max(found.values())
        if len(set(bases)) == 1:
            log.batches.append(Batch(request, bases[0], len(part), whole=len(found) == len(part) and not unknown))
            sure = range(len(part)) if not unknown else range(min(found), max(found))
            log.inferred.update({bases[0] + at: part[at] for at in sure if at not in found})
            found = {**found, **dict.fromkeys(sure, 0)}
        else:
            log.batches.append(Batch(request, first, last - first + 1, whole=False))
            rising = all(a <= b for a, b in pairwise(bases)) and bases[-1] - bases[0] <= unknown
            if not rising and not self._explained(part, found):
                message = f"{log.name}: the records of a request, in its order, are at {list(found.values())}"
                self.report("C1", "batch order broken", message, *request.call.events)
        self.unplaced[request.asked.topic] += [sent for at, sent in enumerate(part) if at not in found]

    def _explained(self, part: list[Sent], found: dict[int, int]) -> bool:
        """Return whether one of the records is stored twice, which is reported for itself, and no place is missing."""
        return any(sent in part for sent, _, _ in self.doubled) and len(found) == len(part)


def ranges(offsets: Iterable[int]) -> str:
    """Return rising offsets as text: ``3, 5-9``."""
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in _runs(offsets))


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for offset in offsets:
        if last is not None and offset == last + 1:
            last = offset
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = offset
    if first is not None and last is not None:
        yield first, last
