"""The order of batches in each log: B3 between requests, C1 between those of one producer, by real time.

For a producer that keeps several requests under way and promises their order, C1 goes by the order of its requests.
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.faults.bench.evidence import Anomaly, Batch, Evidence, Log


def check_order(evidence: Evidence) -> Iterator[Anomaly]:
    for log in evidence.logs.values():
        yield from _check_log(log)
        yield from _check_pipelines(log)


def _check_log(log: Log) -> Iterator[Anomaly]:
    """Check that a batch that was over before another was requested precedes it: one sweep, by their beginnings."""
    ended = sorted(log.batches, key=lambda batch: batch.request.end)
    over = 0
    last: Batch | None = None
    last_of: dict[str, Batch] = {}
    for batch in sorted(log.batches, key=lambda batch: batch.request.call.begin):
        while over < len(ended) and ended[over].request.end < batch.request.call.begin:
            earlier = ended[over]
            over += 1
            last = _later(last, earlier)
            process = earlier.request.asked.process
            last_of[process] = _later(last_of.get(process), earlier)
        own = last_of.get(batch.request.asked.process)
        if own is not None and own.base > batch.base:
            yield _anomaly(log, "C1", "producer order broken", own, batch)
        elif last is not None and last.base > batch.base:
            yield _anomaly(log, "B3", "real-time order broken", last, batch)


def _check_pipelines(log: Log) -> Iterator[Anomaly]:
    pipelines: dict[str, list[Batch]] = defaultdict(list)
    for batch in log.batches:
        if batch.request.asked.pipeline:
            pipelines[batch.request.asked.pipeline].append(batch)
    for batches in pipelines.values():
        last: Batch | None = None
        for batch in sorted(batches, key=lambda batch: batch.request.call.begin):
            if last is not None and last.base > batch.base:
                message = f"{log.name}: what is at offset {last.base} was sent before what is at {batch.base}"
                events = (*last.request.call.events, *batch.request.call.events)
                yield Anomaly("C1", "producer order broken", message, events)
            last = _later(last, batch)


def _later(known: Batch | None, batch: Batch) -> Batch:
    return batch if known is None or batch.base > known.base else known


def _anomaly(log: Log, invariant: str, name: str, first: Batch, second: Batch) -> Anomaly:
    return Anomaly(
        invariant,
        name,
        f"{log.name}: what is at offset {first.base} was over before what is at {second.base} began",
        (*first.request.call.events, *second.request.call.events),
    )
