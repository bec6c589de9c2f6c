"""Judges a history: every contradiction to what the store promises, by the names of the invariants.

``docs/reliability.md`` has the invariants. Pure: no clock, no file, no network. Beside the invariants a history must
have something to judge, or its silence would mean nothing: acknowledged records, reads, and a final read of each log.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.faults.bench.commit_checks import check_commits
from tests.faults.bench.evidence import FOREVER, Anomaly, Call, Evidence
from tests.faults.bench.history import AnyEvent, Fetch, Final, Produce, typed
from tests.faults.bench.order_checks import check_order
from tests.faults.bench.read_checks import check_reads
from tests.faults.bench.record_checks import check_records
from tests.faults.bench.table_checks import check_tables

#: J2: within this time after all faults are over each log takes a produce and gives a fetch.
PROGRESS_S = 30


def check(events: Iterable[AnyEvent | Mapping[str, Any]]) -> list[Anomaly]:
    """All anomalies of a history, in no order of importance. msgspec.ValidationError for what is no event."""
    evidence = Evidence(typed(events))
    found = list(evidence.anomalies)
    for judge in (
        _check_complete,
        check_records,
        check_order,
        check_reads,
        check_tables,
        check_commits,
        _check_progress,
    ):
        found += judge(evidence)
    return found


def _check_complete(evidence: Evidence) -> Iterator[Anomaly]:
    if not any(log.acknowledged for log in evidence.logs.values()):
        yield Anomaly("history", "nothing acknowledged", "there is no record that could be lost")
    if not any(call.ok for call in evidence.calls(Fetch)):
        yield Anomaly("history", "nothing fetched", "no reader was told anything")
    if not evidence.looks:
        yield Anomaly("history", "no look at a table", "no Delta reader was told anything")
    for log in evidence.logs.values():
        if log.acknowledged and log.final is None:
            yield Anomaly("history", "no final read", f"{log.name} has acknowledged records")
        if not log.topic.partitions:
            yield Anomaly("history", "no topic", f"{log.topic.name} was never said to be made")
        elif log.partition >= max(log.topic.partitions):
            yield Anomaly("A5", "partition that is not there", log.name)


def _check_progress(evidence: Evidence) -> Iterator[Anomaly]:
    """Each log that ever took a record takes one after ``heal``, and gives some; without one, any log after the end."""
    produced: dict[tuple[str, int], list[int]] = {name: [] for name, log in evidence.logs.items() if log.acknowledged}
    fetched: dict[tuple[str, int], list[int]] = {name: [] for name in produced}
    for produce in evidence.calls(Produce):
        if produce.told and produce.ok:
            for partition in {place[0] for place in produce.told.places or () if place}:
                produced.setdefault((produce.asked.topic, partition), []).append(produce.told.t)
    reads: list[Call[Any]] = [*evidence.calls(Fetch), *evidence.calls(Final)]
    for read in reads:
        if read.told and read.ok:
            fetched.setdefault((read.asked.topic, read.asked.partition), []).append(read.told.t)
    faults = [fault.t for fault in evidence.faults]
    for heal in evidence.heals:
        following = bisect_right(faults, heal.t)
        until = faults[following] if following < len(faults) else FOREVER
        due = heal.t + PROGRESS_S * 1_000_000_000
        if until < due:
            continue
        for what, times in (("produce", produced), ("fetch", fetched)):
            for name in produced:
                if not any(heal.t < t <= due for t in times.get(name, ())):
                    where = f"{name[0]}-{name[1]}: no {what} succeeded within {PROGRESS_S} s after all was healed"
                    yield Anomaly("J2", "no progress after healing", where, (heal,))
    last = max([*faults, *evidence.starts], default=-1)
    for what, times in (("produce", produced), ("fetch", fetched)):
        if produced and not any(t > last for found in times.values() for t in found):
            yield Anomaly("J2", "no progress after healing", f"no {what} succeeded after the last fault or start")


__all__ = ["PROGRESS_S", "Anomaly", "check"]
