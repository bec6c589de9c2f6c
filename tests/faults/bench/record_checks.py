"""Records against what was sent and against the final read: A1 to A5, B1, B2, B5 (timestamps), D1, D3, I1, I3."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from tests.faults.bench.evidence import Anomaly, Evidence, Log, Sent, ranges
from tests.faults.bench.history import Bumped, Look, Row
from tests.faults.bench.statements import Moment

# The reason that librdkafka gives (rd_kafka_handle_idempotent_Produce_error).
_SKIPPED = "skipped sequence numbers"


def check_records(evidence: Evidence) -> Iterator[Anomaly]:
    for log in evidence.logs.values():
        yield from _check_rows(evidence, log)
    yield from _check_places(evidence)
    yield from _check_routes(evidence)
    for log in evidence.logs.values():
        yield from _check_differing(evidence, log)
        if log.final is not None:
            yield from _check_bounds(log)
            yield from _check_lost(evidence, log)
        yield from _check_append_times(evidence, log)


# ---- each row by itself ---------------------------------------------------------------------------------------------


def _check_rows(evidence: Evidence, log: Log) -> Iterator[Anomaly]:
    for offset, row in log.seen.items():
        found = _judge(evidence, log, offset, row)
        if found is not None:
            log.strange.add(offset)
            invariant, name, message = found
            told = log.seen_in.get(offset, log.final)
            yield Anomaly(invariant, name, f"{log.name} offset {offset}: {message}", (told,) if told else ())


def _judge(evidence: Evidence, log: Log, offset: int, row: Row) -> tuple[str, str, str] | None:
    _, timestamp_ms, record_id, key, value = row
    acknowledged = log.acknowledged.get(offset)
    sent = evidence.sent.get(record_id) if record_id is not None else None
    if sent is None:
        if acknowledged is not None and (acknowledged.key, acknowledged.value) == (key, value):
            return "A1", "acknowledged record changed", f"header of {acknowledged.id} is {record_id!r}"
        return "A5", "invented record", f"{row} was never sent"
    asked = sent.request.asked
    if asked.topic != log.topic.name or (asked.partition is not None and asked.partition != log.partition):
        return "A5", "wrong partition", f"{sent.id} was sent to {asked.topic}-{asked.partition}"
    if sent.refused:
        partial = "" if sent.request.refused else " in an answer that took others"
        return ("A3" if partial else "A2"), "refused record is stored", f"{sent.id} was refused{partial}"
    if (sent.key, sent.value) != (key, value):
        how = f"{sent.id} was sent as {(sent.key, sent.value)}, is {(key, value)}"
        if acknowledged is sent:
            return "A1", "acknowledged record changed", how
        return "A5", "record changed", how
    if sent.timestamp_ms not in {None, timestamp_ms} and log.topic.keeps("CreateTime"):
        return "B5", "timestamp changed", f"{sent.id} was sent with {sent.timestamp_ms}, has {timestamp_ms}"
    return None


def _check_places(evidence: Evidence) -> Iterator[Anomaly]:
    doubled = set()
    bumps = defaultdict(list)
    for bumped in evidence.singles(Bumped):
        bumps[bumped.process].append(bumped)
    for sent, log, offset in evidence.doubled:
        doubled.add(sent.id)
        if any(_sends_again(sent, bumped) for bumped in bumps[sent.request.asked.process]):
            continue
        where = f"{sent.id} is at {sent.place} and at offset {offset} of {log.name}"
        told = log.seen_in.get(offset, log.final)
        events = (*sent.request.call.events, *((told,) if told else ()))
        if offset in log.rows or sent.place is None or not _is_final(evidence, sent):
            yield Anomaly("A2", "record is stored twice", where, events)
        else:
            yield Anomaly("A4", "record moved", where, events)
    for sent in evidence.sent.values():
        if sent.acknowledged is None or sent.place is None or sent.place == sent.acknowledged or sent.id in doubled:
            continue
        log = evidence.log(sent.request.asked.topic, sent.place[0])
        if sent.place[1] in log.strange:
            continue
        where = f"{sent.id} was acknowledged at {sent.acknowledged} of {log.topic.name}, is at {sent.place}"
        if log.topic.compacted and sent.place[0] == sent.acknowledged[0]:
            yield Anomaly("I1", "compaction moved an offset", where, sent.request.call.events)
        else:
            yield Anomaly("A3", "record is not where it was acknowledged", where, sent.request.call.events)


def _sends_again(sent: Sent, bumped: Bumped) -> bool:
    """Return whether librdkafka sends the record again in the next epoch.

    It enters that epoch when a batch is refused for its sequence, because one before it was not stored. It then sends
    again all records without an answer, including those that the store has; no broker can see that.
    """
    moment = sent.request.call.moment
    return _SKIPPED in bumped.reason and moment.begin <= bumped.t <= moment.end


def _is_final(evidence: Evidence, sent: Sent) -> bool:
    assert sent.place is not None
    return sent.place[1] in evidence.log(sent.request.asked.topic, sent.place[0]).rows


def _check_routes(evidence: Evidence) -> Iterator[Anomaly]:
    """Check records that name no partition: one key goes to one partition, as do the keyless records of a request."""
    for request in evidence.requests:
        asked = request.asked
        topic = evidence.topic(asked.topic)
        if asked.partition is not None or len(topic.partitions) > 1:
            continue
        sticky: int | None = None
        for sent in request.records:
            place = sent.acknowledged or sent.place
            if place is None:
                continue
            if sent.key is None:
                sticky = due = place[0] if sticky is None else sticky
            else:
                due = evidence.routes[asked.topic, asked.format, sent.key]
            if place[0] != due:
                where = f"{sent.id} with key {sent.key!r} is in {asked.topic}-{place[0]}; others of it are in {due}"
                yield Anomaly("A5", "wrong partition", where, request.call.events)


def _check_differing(evidence: Evidence, log: Log) -> Iterator[Anomaly]:
    found: dict[int, list[int]] = defaultdict(list)
    events = {}
    for differing in log.differing:
        offset, row = differing.row[0], differing.row
        if isinstance(differing.event, Look):
            # The table is judged separately.
            continue
        sent = evidence.sent.get(row[2]) if row[2] is not None else None
        known = log.seen[offset]
        events[id(differing.event)] = differing.event
        if row[2] != known[2] and sent is not None and not sent.refused and sent.place is None:
            where = f"{log.name} offset {offset}: {row[2]} was read, {known[2]} is there"
            yield Anomaly("D1", "read record is lost", where, (differing.event,))
        else:
            found[id(differing.event)].append(offset)
    for number, offsets in found.items():
        event = events[number]
        first = next(d.row for d in log.differing if d.event is event and d.row[0] == offsets[0])
        where = f"{log.name} offsets {ranges(sorted(offsets))} were read otherwise; first {first}"
        yield Anomaly("A4", "two readers, two records", f"{where} and {log.seen[offsets[0]]}", (event,))


# ---- the final read -------------------------------------------------------------------------------------------------


def _check_bounds(log: Log) -> Iterator[Anomaly]:
    final = log.final
    assert final is not None
    start, end = final.log_start, final.high_watermark
    if start > end:
        yield Anomaly("B4", "log start above the end", f"{log.name}: {start} > {end}", (final,))
    below = [offset for offset in log.offsets if offset < start]
    if below:
        where = f"{log.name}: {ranges(below)}, the log starts at {start}"
        yield Anomaly("I3", "records below the log start", where, (final,))
    above = [offset for offset in log.offsets if offset >= end]
    if above:
        where = f"{log.name}: {ranges(above)}, the high watermark is {end}"
        yield Anomaly("D1", "read above the high watermark", where, (final,))
    if log.topic.retained and start > (log.deleted_to or 0):
        where = f"{log.name} starts at {start}, though nothing may remove records from {log.deleted_to or 0} on"
        yield Anomaly("I3", "prefix lost without retention", where, (final,))


def _check_lost(evidence: Evidence, log: Log) -> Iterator[Anomaly]:
    final = log.final
    assert final is not None
    start, end = final.log_start, final.high_watermark
    missing = [offset for offset in range(start, end) if offset not in log.rows]
    known = log.seen.keys() | log.acknowledged.keys() | log.inferred.keys()
    missing += sorted(offset for offset in known if offset >= end and offset not in log.rows)
    moment = Moment(final.t, final.t)
    missing = [offset for offset in missing if not log.changes.may_lack(offset, moment)]
    cleaned = cleaned_to(evidence, log)
    unknown = sum(_may_be_of(sent, log.partition) for sent in evidence.unplaced[log.topic.name])
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for offset in missing:
        if log.topic.compacted and offset < end:
            if log.record_at(offset) is None and offset not in log.strange and offset < cleaned and unknown:
                # It may be an unacknowledged record that a later one with its key replaced.
                unknown -= 1
                continue
            reason = why_not_compacted(evidence, log, offset, cleaned, final.t)
        else:
            reason = _why_missing(evidence, log, offset)
        if reason is not None:
            found[reason].append(offset)
    for records, reason in (
        (log.acknowledged, ("A1", "acknowledged record is replaced")),
        (log.inferred, ("D3", "torn batch")),
    ):
        for offset, sent in records.items():
            row = log.rows.get(offset)
            if row is None or row[2] == sent.id or sent.place is not None or offset in log.strange:
                continue
            if log.topic.compacted and why_not_compacted(evidence, log, offset, cleaned, final.t) is None:
                continue
            found[reason].append(offset)
    for (invariant, name), offsets in found.items():
        first = log.record_at(offsets[0])
        sent_first = log.acknowledged.get(offsets[0]) or log.inferred.get(offsets[0])
        where = f"{log.name} offsets {ranges(sorted(offsets))} of [{start}, {end}), first {first and first[:2]}"
        call = sent_first.request.call.events if sent_first else ()
        told = log.seen_in.get(offsets[0])
        yield Anomaly(invariant, name, where, (*call, *((told,) if told else ()), final))


def _why_missing(evidence: Evidence, log: Log, offset: int) -> tuple[str, str] | None:
    """Return the anomaly of a log without compaction that has no record at ``offset``; None if already reported."""
    if offset in log.strange:
        return None
    sent = log.acknowledged.get(offset)
    row = log.seen.get(offset)
    known = sent or (evidence.sent.get(row[2] or "") if row else None)
    if known is not None and known.place not in {None, (log.partition, offset)}:
        return None
    in_the_middle = offset < log.end and bool(log.offsets) and log.offsets[0] < offset
    if log.loses_prefix and in_the_middle:
        return "I3", "retention took from the middle"
    if sent is not None:
        return "A1", "acknowledged record is lost"
    if offset in log.seen:
        return "D1", "read record is lost"
    if offset in log.inferred:
        return "D3", "torn batch"
    return "B2", "hole"


# ---- compaction -----------------------------------------------------------------------------------------------------


def cleaned_to(evidence: Evidence, log: Log) -> int:
    """Return the offset below which compaction may have been, by the looks of foreign readers; otherwise the end."""
    ends = []
    for look in evidence.looks:
        if look.topic == log.topic.name:
            told = look.cleaned if look.cleaned is not None else look.sealed
            if log.partition in told:
                ends.append(told[log.partition])
    return max(ends, default=log.end)


def why_not_compacted(evidence: Evidence, log: Log, offset: int, cleaned: int, now: int) -> tuple[str, str] | None:
    """Return the anomaly of a missing record at ``offset`` at ``now``, with compaction up to ``cleaned``.

    Return None if the record may be missing.
    """
    record = log.record_at(offset)
    if record is None:
        return None if offset in log.strange else ("B2", "hole")
    key, value, sent = record
    if (
        sent is not None
        and sent.place is not None
        and sent.place != sent.acknowledged
        and sent.acknowledged is not None
    ):
        return None
    if key is None:
        return None
    if offset >= cleaned:
        return "I1", "record gone above the cleaned part"
    offsets = log.offsets_of_keys[key]
    if offset < offsets[bisect_left(offsets, cleaned) - 1]:
        return None
    if _unseen_tombstone(evidence, log, key, now):
        return None
    if value is not None:
        return "I1", "last value of a key is lost"
    row = log.seen.get(offset)
    sent = sent or (evidence.sent.get(row[2] or "") if row else None)
    if sent is not None and not _expired(evidence, log, sent, now):
        return "I1", "tombstone gone too early"
    if any(earlier < offset and earlier in log.rows for earlier in offsets):
        return "I1", "tombstone gone before what it deletes"
    return None


def _unseen_tombstone(evidence: Evidence, log: Log, key: str, now: int) -> bool:
    return any(
        sent.key == key
        and sent.value is None
        and _may_be_of(sent, log.partition)
        and _expired(evidence, log, sent, now)
        for sent in evidence.unplaced[log.topic.name]
    )


def _expired(evidence: Evidence, log: Log, tombstone: Sent, now: int) -> bool:
    age_ms = (now - tombstone.request.call.begin) / 1e6
    return age_ms + evidence.clock_slack_ms >= log.topic.delete_retention_ms


def _may_be_of(sent: Sent, partition: int) -> bool:
    return sent.request.asked.partition in {None, partition}


# ---- time -----------------------------------------------------------------------------------------------------------


def _check_append_times(evidence: Evidence, log: Log) -> Iterator[Anomaly]:
    if not log.topic.keeps("LogAppendTime"):
        return
    last: Row | None = None
    for offset in sorted(log.seen.keys() - log.strange):
        row = log.seen[offset]
        if row[1] < log.topic.made_ms - evidence.clock_slack_ms:
            where = f"{log.name}: offset {offset} at {row[1]}, the topic was made at {log.topic.made_ms}"
            yield Anomaly("B5", "append time before the topic", where, (log.final,) if log.final else ())
            return
        if last is not None and row[1] < last[1]:
            where = f"{log.name}: offset {last[0]} at {last[1]}, offset {offset} at {row[1]}"
            yield Anomaly("B5", "append time went back", where, (log.final,) if log.final else ())
        last = row
