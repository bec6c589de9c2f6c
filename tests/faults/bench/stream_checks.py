"""Streaming queries of Spark: each record once, in order, over restarts, and none left out: C2, D4.

A query's lineage is its checkpoint: the last attempt of each batch counts, as for any sink that knows the batch's
number. The records that a stream was shown are compared with the log beside all other reads (``Log.take``).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.faults.bench.evidence import Anomaly, Evidence, Log, ranges
from tests.faults.bench.history import Stream, TableRow

DELTA = "delta"


def check_streams(evidence: Evidence) -> Iterator[Anomaly]:
    told: dict[tuple[str, str], list[Stream]] = defaultdict(list)
    for call in evidence.calls(Stream):
        if call.told is not None and call.ok:
            told[call.told.query, call.told.topic].append(call.told)
    for (query, topic), batches in told.items():
        yield from _check_repeated(evidence, batches)
        last = {batch.batch: batch for batch in sorted(batches, key=lambda batch: batch.t)}
        lineage = [last[number] for number in sorted(last)]
        yield from _check_order(lineage)
        if query == DELTA and evidence.topic(topic).taken:
            # The reader may have seen an entry that is gone, and believes that it has already read its replacement.
            continue
        given = {(row[0], row[1]) for batch in lineage for row in batch.rows}
        for log in evidence.logs.values():
            if log.topic.name == topic:
                yield from _check_missing(query, log, given, lineage[-1])
    yield from _check_errors(evidence)


def _check_repeated(evidence: Evidence, batches: Sequence[Stream]) -> Iterator[Anomaly]:
    """Check that a repeated batch has the same records; jobs may have removed some meanwhile."""
    first: dict[int, Stream] = {}
    for batch in batches:
        known = first.setdefault(batch.batch, batch)
        before, now = _places(known.rows), _places(batch.rows)
        topic = evidence.topic(batch.topic)
        loses = topic.compacted or any(log.loses_prefix for log in evidence.logs.values() if log.topic is topic)
        if now - before or (before - now and not loses):
            message = f"{_name(batch)}: {_shown(now - before)} more, {_shown(before - now)} less than the first time"
            yield Anomaly("C2", "repeated batch of a stream differs", message, (known, batch))


def _check_order(lineage: Sequence[Stream]) -> Iterator[Anomaly]:
    reached: dict[int, int] = {}
    given: set[tuple[int, int]] = set()
    for batch in lineage:
        again, late = set(), set()
        before = dict(reached)
        for partition, offset, *_ in batch.rows:
            if (partition, offset) in given:
                again.add((partition, offset))
            elif offset < before.get(partition, -1):
                late.add((partition, offset))
            given.add((partition, offset))
            reached[partition] = max(offset, reached.get(partition, -1))
        if again:
            yield Anomaly("C2", "stream gave a record twice", f"{_name(batch)}: {_shown(again)}", (batch,))
        if late:
            yield Anomaly("C2", "stream went back", f"{_name(batch)}: {_shown(late)}, after {before}", (batch,))


def _check_missing(query: str, log: Log, given: set[tuple[int, int]], last: Stream) -> Iterator[Anomaly]:
    missing = [offset for offset in log.offsets if (log.partition, offset) not in given]
    if missing:
        message = f"{query} never gave {ranges(missing)} of {log.name}, which nothing removed"
        yield Anomaly("C2", "stream left a record out", message, (last,))


def _check_errors(evidence: Evidence) -> Iterator[Anomaly]:
    """Check that tables can always be streamed; a query that asks the store may fail while the store is away."""
    for call in evidence.calls(Stream):
        event = call.told
        if event is None or event.phase != "info" or event.query != DELTA or evidence.topic(event.topic).taken:
            continue
        yield Anomaly("D4", "table cannot be streamed", f"{event.topic}: {event.error}", (event,))


def _places(rows: Sequence[TableRow]) -> set[tuple[int, int]]:
    return {(row[0], row[1]) for row in rows}


def _name(batch: Stream) -> str:
    return f"batch {batch.batch} of {batch.query} on {batch.topic}"


def _shown(places: set[tuple[int, int]]) -> str:
    by_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(places):
        by_partition[partition].append(offset)
    return "; ".join(f"{ranges(offsets)} of {partition}" for partition, offsets in by_partition.items()) or "none"
