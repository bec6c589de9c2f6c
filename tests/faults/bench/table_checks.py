"""The Delta table as independent readers saw it, by version: D2, D3, D4, I1 and I4, B4 of its log start."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tests.faults.bench.evidence import Anomaly, Call, Evidence, Log, LogName, ranges
from tests.faults.bench.history import Delta, Entry, FinalDelta, Job, Look, Statement, TableRow
from tests.faults.bench.record_checks import why_not_compacted
from tests.faults.bench.statements import Moment


def check_tables(evidence: Evidence) -> Iterator[Anomaly]:
    yield from _check_entries(evidence)
    yield from _check_facts(evidence)
    batches = {name: _bounds(log) for name, log in evidence.logs.items()}
    kept: dict[LogName, tuple[int, int]] = {}
    for look in evidence.looks:
        rows: dict[int, list[TableRow]] = defaultdict(list)
        for row in look.rows:
            rows[row[0]].append(row)
        for partition in sorted(look.sealed.keys() | rows.keys()):
            log = evidence.log(look.topic, partition)
            yield from _check_rows(evidence, look, log, rows[partition])
            yield from _check_batches(look, log, *batches.get((look.topic, partition), ([], [])))
            yield from _check_kept(look, log, kept)
    looks: list[Call[Any]] = [*evidence.calls(Delta), *evidence.calls(FinalDelta)]
    for call in looks:
        if call.told and call.told.phase == "fail" and not _is_erased(evidence, call):
            yield Anomaly("D4", "table cannot be read", f"{call.told.topic}: {call.told.error}", (call.told,))


def _is_erased(evidence: Evidence, look: Call[Any]) -> bool:
    """Return whether an erasure removed the files: those of earlier versions go at once with it."""
    return any(
        statement.asked.how == "erase"
        and statement.asked.topic == look.told.topic
        and statement.begin < look.told.t
        and (statement.told is None or look.told.version < statement.told.version)
        for statement in evidence.calls(Statement)
    )


# ---- entries and facts of the Delta log -----------------------------------------------------------------------------


def _check_entries(evidence: Evidence) -> Iterator[Anomaly]:
    known: dict[tuple[str, int], Entry] = {}
    for entry in evidence.singles(Entry):
        first = known.setdefault((entry.topic, entry.version), entry)
        if first.sha256 == entry.sha256:
            continue
        taken = evidence.topic(entry.topic).taken
        if any(e.version == entry.version and e.voids(first, entry) for e in taken):
            known[entry.topic, entry.version] = entry
        else:
            where = f"{entry.topic} version {entry.version}"
            yield Anomaly("D3", "log entry changed", where, (first, entry))
    versions: dict[str, set[int]] = defaultdict(set)
    for topic, version in known:
        versions[topic].add(version)
    for topic, found in versions.items():
        gaps = [version for version in range(max(found)) if version not in found]
        if gaps:
            yield Anomaly(
                "D3", "version gap", f"{topic}: {ranges(gaps)} of 0-{max(found)}", (known[topic, max(found)],)
            )


def _check_facts(evidence: Evidence) -> Iterator[Anomaly]:
    """Check that ``sealed`` and the log start do not fall between versions, unless an entry was taken."""
    by_topic: dict[str, list[Look]] = defaultdict(list)
    for look in evidence.looks:
        by_topic[look.topic].append(look)
    for topic, looks in by_topic.items():
        facts = evidence.topic(topic)
        looks.sort(key=lambda look: (look.version, look.t))
        # By partition and name, the looks that showed more than all looks before them.
        highest: dict[tuple[int, str], list[tuple[int, Look]]] = defaultdict(list)
        for look in looks:
            for invariant, name, told in (("D2", "sealed", look.sealed), ("B4", "log start", look.log_start)):
                for partition, offset in told.items():
                    seen = highest[partition, name]
                    while seen and any(entry.voids(seen[-1][1], look) for entry in facts.taken):
                        seen.pop()
                    if seen and offset < seen[-1][0]:
                        where = f"{topic}-{partition} version {look.version}: {offset}, was {seen[-1][0]}"
                        yield Anomaly(invariant, f"{name} fell", where, (look,))
                    else:
                        seen.append((offset, look))


# ---- batches --------------------------------------------------------------------------------------------------------


def _bounds(log: Log) -> tuple[list[int], list[int]]:
    """Return the first offsets of batches, rising, and the ends of the same batches."""
    found = sorted((batch.base, batch.base + batch.count) for batch in log.batches if batch.whole)
    return [base for base, _ in found], [end for _, end in found]


def _check_batches(look: Look, log: Log, bases: Sequence[int], ends: Sequence[int]) -> Iterator[Anomaly]:
    sealed = look.sealed.get(log.partition, 0)
    at = bisect_left(bases, sealed) - 1
    if at >= 0 and sealed < ends[at]:
        where = (
            f"{log.name} version {look.version} is sealed at {sealed}, inside of the batch [{bases[at]}, {ends[at]})"
        )
        yield Anomaly("D3", "half a batch in a version", where, (look,))


# ---- rows -----------------------------------------------------------------------------------------------------------


def _check_rows(evidence: Evidence, look: Look, log: Log, rows: Sequence[TableRow]) -> Iterator[Anomaly]:
    sealed, start = look.sealed.get(log.partition, 0), look.log_start.get(log.partition, 0)
    since = look.since.get(log.partition, 0)
    where = f"{log.name} version {look.version}"
    offsets = [row[1] for row in rows]
    given = set(offsets)
    if len(given) < len(offsets):
        doubled = sorted(offset for offset, count in Counter(offsets).items() if count > 1)
        yield Anomaly("D2", "rows are doubled", f"{where}: {ranges(doubled)}", (look,))
    beyond = sorted(offset for offset in given if offset >= sealed)
    if beyond:
        yield Anomaly("D2", "rows beyond sealed", f"{where}: {ranges(beyond)}, sealed is {sealed}", (look,))
    differing = sorted({row[1] for row in rows if log.seen[row[1]] != row[1:]})
    if differing:
        first = next(row for row in rows if row[1] == differing[0])
        message = f"{where}: {ranges(differing)}; first {first[1:]}, is {log.seen[differing[0]]}"
        yield Anomaly("D2", "rows differ from the log", message, (look,))
    if sealed > log.end:
        message = f"{where} is sealed up to {sealed}, the log ends at {log.end}"
        yield Anomaly("D2", "sealed beyond the end", message, (look,))
    final = isinstance(look, FinalDelta)
    if final and log.final is not None and sealed < log.end:
        message = f"{where} is sealed up to {sealed}, the log ends at {log.end}"
        yield Anomaly("D2", "not all sealed after a clean stop", message, (look,))
    if not final and log.topic.holed(look):
        return
    yield from _check_missing(evidence, look, log, given, max(since, start), sealed)


def _check_kept(look: Look, log: Log, before: dict[LogName, tuple[int, int]]) -> Iterator[Anomaly]:
    """Check that retention by size leaves that size.

    Only the version of the retention shows it, because merges make the files smaller afterwards. ``before`` has version
    and log start of each log's last look.
    """
    name = (look.topic, log.partition)
    start, least = look.log_start.get(log.partition, 0), log.topic.retention_bytes
    version, start_before = before.get(name, (-1, 0))
    before[name] = (look.version, start)
    if least is None or not look.bytes or log.deleted_to is not None or log.topic.holed(look):
        return
    left = look.bytes.get(log.partition, 0)
    if start > start_before and look.version == version + 1 and left < least:
        message = (
            f"{log.name} version {look.version}: {left} bytes are left from {start} on, retention.bytes is {least}"
        )
        yield Anomaly("I3", "retention took too much", message, (look,))


def _check_missing(
    evidence: Evidence, look: Look, log: Log, given: set[int], begin: int, sealed: int
) -> Iterator[Anomaly]:
    """Check for missing records in [begin, sealed); rows below the log start may still exist."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    cleaned = sealed if look.cleaned is None else look.cleaned.get(log.partition, 0)
    moment = Moment(look.t, look.t, look.version)
    for offset in _missing(log, given, begin, sealed):
        if log.changes.may_lack(offset, moment):
            continue
        if log.topic.compacted and offset not in log.rows:
            reason = why_not_compacted(evidence, log, offset, cleaned, look.t)
            if reason is not None and reason[0] == "I1" and not _reported_by_final(evidence, log, offset):
                found[reason].append(offset)
        elif log.exists(offset):
            found[_name(evidence, look, log, offset)].append(offset)
    for (invariant, name), offsets in found.items():
        where = f"{log.name} version {look.version}: {ranges(offsets)} of [{begin}, {sealed})"
        yield Anomaly(invariant, name, where, (look,))


def _missing(log: Log, given: set[int], begin: int, sealed: int) -> list[int]:
    if log.topic.compacted:
        known = log.seen.keys() | log.acknowledged.keys()
        return sorted(offset for offset in known if begin <= offset < sealed and offset not in given)
    if sum(begin <= offset < sealed for offset in given) == max(0, sealed - begin):
        return []
    return [offset for offset in range(begin, sealed) if offset not in given]


def _reported_by_final(evidence: Evidence, log: Log, offset: int) -> bool:
    """Return whether the final read reports the anomaly, because it lasts."""
    final = log.final
    if final is None or not final.log_start <= offset < final.high_watermark:
        return False
    return why_not_compacted(evidence, log, offset, log.end, final.t) is not None


def _name(evidence: Evidence, look: Look, log: Log, offset: int) -> tuple[str, str]:
    """Return the invariant and the anomaly: a job that removes an existing row differs from a roll that left it out."""
    place = (log.partition, offset)
    earlier = [
        before
        for before in evidence.looks
        if before.topic == look.topic and before.t < look.t and any(row[:2] == place for row in before.rows)
    ]
    for call in evidence.calls(Job):
        over = call.told.t if call.told else look.t
        concerned = not call.asked.topics or look.topic in call.asked.topics
        if earlier and concerned and call.begin < look.t and over > earlier[0].t:
            return "I4", "a job took rows away"
    return "D2", "rows are missing"
