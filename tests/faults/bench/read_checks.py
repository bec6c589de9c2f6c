"""Answers to readers over time: B4, B5 (offset by time), C2, D1, D5, I3.

One sweep per log over invocations and completions: everything shown before a call began bounds the answer to that call.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final as Constant

import msgspec

from tests.faults.bench.evidence import Anomaly, Call, Evidence, Log, LogName, ranges
from tests.faults.bench.history import DeleteRecords, Fetch, Final, OffsetForTime, Registered, Row
from tests.faults.bench.statements import Moment

#: Names of readers with Kafka's protocol begin with this.
KAFKA_READER: Constant = "kafka-reader-"

Reading = Call[Fetch] | Call[Final] | Call[OffsetForTime]


@dataclass(frozen=True, slots=True)
class Floor:
    """The bounds when a call began: an end ``acknowledged``, an end shown to readers, and a log start."""

    acknowledged: int = 0
    end: int = 0
    log_start: int = 0


@dataclass(frozen=True, slots=True)
class _Shown:
    t: int
    floor: Floor
    #: Another writer replaced an entry of the table: a log start that was in it is not known any more.
    forgets_start: bool = False


def check_reads(evidence: Evidence) -> Iterator[Anomaly]:
    shown, readings, changes = _shown(evidence), _readings(evidence), _leader_changes(evidence)
    for name in readings:
        log = evidence.log(*name)
        for call, floor in _sweep(shown[name], readings[name]):
            match call.asked, call.told:
                case Fetch() as asked, Fetch() as told:
                    if asked.process.startswith(KAFKA_READER):
                        told = _with_the_end_of_its_records(call, told, changes[name])
                    yield from _check_ends(log, told, floor, told.records)
                    yield from _check_fetch(log, asked, told, floor)
                case _, Final() as told:
                    yield from _check_ends(log, told, floor, told.rows)
                case OffsetForTime() as asked, OffsetForTime() as told if log.final is not None:
                    yield from _check_time(log, asked, told, floor)
                case _:
                    pass


def _shown(evidence: Evidence) -> dict[LogName, list[_Shown]]:
    shown: dict[LogName, list[_Shown]] = defaultdict(list)
    for name, log in evidence.logs.items():
        for batch in log.batches:
            call, end = batch.request.call, batch.base + batch.count
            taken = (sent.acknowledged for sent in batch.request.records if sent.acknowledged)
            if call.told and any(partition == log.partition for partition, _ in taken):
                shown[name].append(_Shown(call.told.t, Floor(acknowledged=end, end=end)))
        shown[name] += [_Shown(t, Floor(), forgets_start=True) for t in log.topic.overwrites]
    for fetch in evidence.calls(Fetch):
        if fetch.ok and fetch.told:
            floor = Floor(end=fetch.told.high_watermark, log_start=fetch.told.log_start)
            shown[fetch.asked.topic, fetch.asked.partition].append(_Shown(fetch.told.t, floor))
    for deletion in evidence.calls(DeleteRecords):
        if deletion.ok and deletion.told:
            floor = Floor(log_start=deletion.told.log_start)
            shown[deletion.asked.topic, deletion.asked.partition].append(_Shown(deletion.told.t, floor))
    for look in evidence.looks:
        for partition, sealed in look.sealed.items():
            shown[look.topic, partition].append(_Shown(look.t, Floor(end=sealed)))
    if evidence.two_stores:
        for known in shown.values():
            known[:] = [replace(k, t=evidence.known_to_all(k.t)) for k in known]
    return shown


def _readings(evidence: Evidence) -> dict[LogName, list[Reading]]:
    readings: dict[LogName, list[Reading]] = defaultdict(list)
    calls: list[Reading] = [*evidence.calls(Fetch), *evidence.calls(Final), *evidence.calls(OffsetForTime)]
    for call in calls:
        if call.ok:
            readings[call.asked.topic, call.asked.partition].append(call)
    return readings


def _leader_changes(evidence: Evidence) -> dict[LogName, list[Moment]]:
    """Return the times within which another leader, or another epoch, began."""
    known: dict[str, Registered] = {}
    changes: dict[LogName, list[Moment]] = defaultdict(list)
    for told in evidence.singles(Registered):
        before, known[told.topic] = known.get(told.topic), told
        pairs = zip(before.partitions if before else (), told.partitions, strict=False)  # the number may have grown
        for partition, (one, other) in enumerate(pairs):
            if one[:2] != other[:2]:
                changes[told.topic, partition].append(Moment(told.seen_until, told.t))
    return changes


def _with_the_end_of_its_records(call: Reading, told: Fetch, changes: Sequence[Moment]) -> Fetch:
    """Return the fetch with the end that belongs to its records.

    librdkafka keeps the high watermark of the last answer, whichever broker sent it. A new leader that has no records
    for the reader yet may send a lower one, after the answer of the former leader that had them.
    """
    if any(change.begin <= told.t and call.begin <= change.end for change in changes):
        return msgspec.structs.replace(told, high_watermark=max(told.high_watermark, told.next_offset))
    return told


def _sweep(shown: list[_Shown], readings: list[Reading]) -> Iterator[tuple[Reading, Floor]]:
    shown.sort(key=lambda known: known.t)
    at = acknowledged = end = log_start = 0
    for call in sorted(readings, key=lambda call: call.begin):
        while at < len(shown) and shown[at].t < call.begin:
            known = shown[at]
            at += 1
            acknowledged = max(acknowledged, known.floor.acknowledged)
            end = max(end, known.floor.end)
            log_start = 0 if known.forgets_start else max(log_start, known.floor.log_start)
        yield call, Floor(acknowledged, end, log_start)


def _check_ends(log: Log, told: Fetch | Final, floor: Floor, rows: Sequence[Row]) -> Iterator[Anomaly]:
    end = told.high_watermark
    if end < floor.acknowledged:
        where = f"{log.name} ends at {end}, {floor.acknowledged - 1} was acknowledged before"
        yield Anomaly("B4", "end below an acknowledged record", where, (told,))
    elif end < floor.end:
        yield Anomaly("B4", "high watermark fell", f"{log.name}: {end}, was {floor.end}", (told,))
    if told.log_start < floor.log_start:
        yield Anomaly("B4", "log start fell", f"{log.name}: {told.log_start}, was {floor.log_start}", (told,))
    elif isinstance(told, Fetch) and rows and rows[0][0] < floor.log_start:
        where = f"{log.name}: offset {rows[0][0]} was given, the log started at {floor.log_start} before"
        yield Anomaly("I3", "read below the log start", where, (told,))


def _check_fetch(log: Log, asked: Fetch, told: Fetch, floor: Floor) -> Iterator[Anomaly]:
    offsets = [row[0] for row in told.records]
    where = f"{log.name} from {asked.offset}"
    if any(a >= b for a, b in pairwise(offsets)) or (offsets and offsets[0] < asked.offset):
        yield Anomaly("C2", "rows out of order", f"{where}: offsets {offsets[:20]}", (asked, told))
        return
    if offsets and offsets[-1] >= told.high_watermark:
        message = f"{where}: offset {offsets[-1]}, the high watermark is {told.high_watermark}"
        yield Anomaly("D1", "read above the high watermark", message, (asked, told))
        return
    least = offsets[-1] + 1 if offsets else asked.offset
    if not least <= told.next_offset <= max(told.high_watermark, asked.offset):
        message = f"{where}: {told.next_offset} after {ranges(offsets)}, the high watermark is {told.high_watermark}"
        yield Anomaly("C2", "wrong next offset", message, (asked, told))
        return
    if told.next_offset == asked.offset < min(floor.end, told.high_watermark) and not offsets:
        message = f"{where}: nothing, though it had a record before (end {floor.end})"
        yield Anomaly("D5", "acknowledged record is not given", message, (asked, told))
        return
    if len(offsets) == told.next_offset - asked.offset:
        return
    if log.topic.compacted and log.topic.undone(asked.t):
        # Commits of other writers undid a compaction: its removed records have come back.
        return
    given = set(offsets)
    if log.topic.compacted:
        candidates = log.surviving(max(asked.offset, told.log_start), told.next_offset)
    else:
        candidates = list(range(max(asked.offset, told.log_start), told.next_offset))
    moment = Call(asked, told).moment
    skipped = [
        offset
        for offset in candidates
        if offset not in given and log.exists(offset) and not log.changes.may_lack(offset, moment)
    ]
    if skipped:
        message = f"{where} to {told.next_offset}: {ranges(skipped)} left out"
        yield Anomaly("C2", "existing record skipped", message, (asked, told))


def _check_time(log: Log, asked: OffsetForTime, told: OffsetForTime, floor: Floor) -> Iterator[Anomaly]:
    """Check that the answer is the smallest offset with that timestamp or a later one, of all records that surely
    existed.
    """
    timestamp = asked.timestamp
    if (log.topic.compacted or not log.topic.retained) and log.topic.undone(asked.t):
        return
    at = bisect_left(log.latest_timestamps, timestamp)
    due = log.offsets[at] if at < len(log.offsets) else None
    where = f"{log.name} at {timestamp}: {told.offset}"
    events = (asked, told)
    if told.offset is not None:
        row = log.seen.get(told.offset)
        if told.offset < floor.log_start:
            yield Anomaly(
                "B5", "offset by time is wrong", f"{where}, the log starts at {floor.log_start}", (asked, told)
            )
            return
        if told.offset >= log.end:
            yield Anomaly("B5", "offset by time is wrong", f"{where}, the log ends at {log.end}", events)
            return
        if row is not None and row[1] < timestamp:
            yield Anomaly("B5", "offset by time is wrong", f"{where} has {row[1]}", events)
            return
    if due is not None and due < floor.end and (told.offset is None or told.offset > due):
        yield Anomaly("B5", "offset by time is wrong", f"{where}, {due} has {log.rows[due][1]}", events)
