"""Committed offsets: durable and whole (G3), never beyond what a client has read (G4), nothing skipped (G5).

A group's offset of a partition is a register. A read may show a commit that began before the read was over, unless
another commit lies wholly between the two. A commit without an answer certainly took effect once a read has shown it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from tests.faults.bench.evidence import FOREVER, Anomaly, Call, Evidence, ranges
from tests.faults.bench.history import AnyEvent, Commit, Committed, Fetch, FinalCommits

GroupTopic = tuple[str, str]


def check_commits(evidence: Evidence) -> Iterator[Anomaly]:
    histories: dict[GroupTopic, _Group] = defaultdict(_Group)
    for call in evidence.calls(Commit):
        if call.told is None or call.told.phase != "fail":
            end = evidence.effect_end(call)
            write = _Write(call, end, end if call.ok else FOREVER)
            histories[call.asked.group, call.asked.topic].writes.append(write)
    reads: list[Call[Committed] | Call[FinalCommits]] = [*evidence.calls(Committed), *evidence.calls(FinalCommits)]
    for read in reads:
        if read.ok:
            histories[read.asked.group, read.asked.topic].reads.append(read)
    for name, group in histories.items():
        yield from _check_register(name, group)
    yield from _check_positions(evidence)


# ---- G3 -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Write:
    """A write that had no effect by ``end`` has none later; at ``done`` it certainly had its effect."""

    call: Call[Commit]
    end: int
    done: int


@dataclass(eq=False)
class _Group:
    writes: list[_Write] = field(default_factory=list)
    reads: list[Call[Committed] | Call[FinalCommits]] = field(default_factory=list)

    @cached_property
    def of_value(self) -> dict[tuple[int, int | None], list[_Write]]:
        """Commits of an offset to a partition, by their beginnings; the key None is the beginning, without a commit."""
        found: dict[tuple[int, int | None], list[_Write]] = defaultdict(list)
        for write in sorted(self.writes, key=lambda write: write.call.begin):
            for partition, offset in write.call.asked.offsets.items():
                found[partition, offset].append(write)
        return found

    def candidates(self, partition: int, offset: int | None, before: int) -> list[_Write]:
        known = self.of_value.get((partition, offset), [])
        return known[: bisect_left(known, before, key=lambda write: write.call.begin)]


def _check_register(name: GroupTopic, group: _Group) -> Iterator[Anomaly]:
    for read in group.reads:
        assert read.told is not None
        for place in read.told.offsets.items():
            shown = group.candidates(*place, read.told.t)
            if len(shown) == 1:
                shown[0].end = min(shown[0].end, read.told.t)
                shown[0].done = min(shown[0].done, read.told.t)
    partitions = {p for write in group.writes for p in write.call.asked.offsets}
    over = {partition: _Over(group, partition) for partition in partitions}
    ends = {key: list(accumulate((w.end for w in writes), max)) for key, writes in group.of_value.items()}
    for read in group.reads:
        assert read.told is not None
        found = []
        for partition in sorted({*partitions, *read.told.offsets}):
            offset: int | None = read.told.offsets.get(partition)
            shown = group.candidates(partition, offset, read.told.t)
            latest = ends[partition, offset][len(shown) - 1] if shown else -1
            where = f"group {name[0]}, {name[1]}-{partition}: {offset}"
            if offset is not None and not shown:
                found.append(Anomaly("G3", "offset was never committed", where, read.events))
            elif latest < over[partition].last_begin(read.begin):
                lost = over[partition].last(read.begin)
                message = f"{where}, but {lost.call.asked.offsets[partition]} was committed after that"
                what = "commit is lost" if offset is None else "committed offset went back"
                found.append(Anomaly("G3", what, message, (*lost.call.events, *read.events)))
        yield from found or _check_torn(name, group, read)


class _Over:
    """Commits to a partition by the time when they were done, with the latest beginning among those done."""

    def __init__(self, group: _Group, partition: int) -> None:
        writes = [write for write in group.writes if partition in write.call.asked.offsets]
        self._writes = sorted(writes, key=lambda write: write.done)
        self._begins = list(accumulate((write.call.begin for write in self._writes), max))

    def last_begin(self, before: int) -> int:
        count = bisect_left(self._writes, before, key=lambda write: write.done)
        return self._begins[count - 1] if count else -1

    def last(self, before: int) -> _Write:
        begin = self.last_begin(before)
        return next(write for write in self._writes if write.call.begin == begin)


def _check_torn(name: GroupTopic, group: _Group, read: Call[Committed] | Call[FinalCommits]) -> Iterator[Anomaly]:
    """Check that a read that shows a commit in one partition shows nothing older in its other partitions."""
    assert read.told is not None
    offsets = read.told.offsets
    for partition, offset in offsets.items():
        shown = group.candidates(partition, offset, read.told.t)
        if len(shown) != 1:
            continue
        commit = shown[0].call
        for other in commit.asked.offsets:
            others = group.candidates(other, offsets.get(other), read.told.t)
            # The end of a write is set by a read that has shown it, perhaps by this read: so the commit itself does not
            # count as older.
            if all(write.call.begin < commit.begin and write.end < commit.begin for write in others):
                where = f"group {name[0]}, {name[1]}: {offset} of partition {partition}, not that of {other}"
                yield Anomaly("G3", "commit of several partitions is torn", where, (*commit.events, *read.events))
                return


# ---- G4, G5 ---------------------------------------------------------------------------------------------------------


def client_of(event: AnyEvent) -> str:
    """Return the client of an event: one that continues under a new name (``reader.2``, ``reader+``) is the same."""
    return event.process.partition(".")[0].partition("+")[0]


@dataclass(slots=True)
class _Reading:
    """Offset ranges that a client has fetched from a partition, and the furthest position that it was given."""

    fetched: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0


def _check_positions(evidence: Evidence) -> Iterator[Anomaly]:
    timeline: list[tuple[int, Call[Any]]] = []
    timeline += [(call.begin, call) for call in evidence.calls(Commit)]
    timeline += [(call.told.t, call) for call in evidence.calls(Committed) if call.ok and call.told]
    timeline += [(call.told.t, call) for call in evidence.calls(Fetch) if call.ok and call.told]
    timeline.sort(key=lambda item: item[0])
    readings: dict[tuple[str, str, int], _Reading] = defaultdict(_Reading)
    committed: dict[tuple[str, str, int], tuple[int, Call[Any]]] = {}
    members: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    readers = {(client_of(call.asked), call.asked.topic) for call in evidence.calls(Fetch)}
    for _, call in timeline:
        asked, client = call.asked, client_of(call.asked)
        if isinstance(asked, Fetch):
            assert isinstance(call.told, Fetch)
            reading = readings[client, asked.topic, asked.partition]
            reading.fetched.append((asked.offset, call.told.next_offset))
            reading.position = max(reading.position, call.told.next_offset)
        elif isinstance(asked, Committed):
            assert call.told is not None
            for partition, offset in call.told.offsets.items():
                reading = readings[client, asked.topic, partition]
                reading.position = max(reading.position, offset)
        elif (client, asked.topic) in readers:
            for partition, offset in asked.offsets.items():
                key = asked.group, asked.topic, partition
                members[key].add(client)
                if call.ok and offset >= committed.get(key, (0, call))[0]:
                    committed[key] = offset, call
                position = max(readings[client, asked.topic, partition].position, _reset(evidence, key))
                if offset > position:
                    where = f"{client} committed {offset} of {asked.topic}-{partition}, had read up to {position}"
                    yield Anomaly("G4", "commit beyond the position", where, call.events)
    for key, (offset, commit) in committed.items():
        _, topic, partition = key
        fetched = sorted(r for client in members[key] for r in readings[client, topic, partition].fetched)
        unread = _unread(evidence, topic, partition, fetched, offset)
        if unread:
            where = f"group {key[0]} committed {offset} of {topic}-{partition}, no member has fetched {ranges(unread)}"
            yield Anomaly("G5", "records skipped by a commit", where, commit.events)


def _reset(evidence: Evidence, key: tuple[str, str, int]) -> int:
    """Return the furthest position to which a reader below the log start may have been sent.

    A run that broke off has no final read, so that nobody knows how far the log start moved.
    """
    log = evidence.log(*key[1:])
    if not log.loses_prefix:
        return 0
    return log.final.log_start if log.final is not None else FOREVER


def _unread(evidence: Evidence, topic: str, partition: int, fetched: list[tuple[int, int]], end: int) -> list[int]:
    """Return offsets of the final read in no fetched range, from the first fetched one up to ``end``."""
    log, unread = evidence.log(topic, partition), []
    at = fetched[0][0] if fetched else end
    for begin, following in fetched:
        unread += log.surviving(at, min(begin, end))
        at = max(at, following)
    return unread + log.surviving(at, end)
