"""Answers of the store, and their times: A1 for a failed journal, J1 for unexplained errors, J2 for progress.

A fault explains errors of the server from its beginning until a while after the next ``heal``. A stall of the machine
explains them until a while after its end.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from tests.faults.bench.evidence import FOREVER, Anomaly, Call, Evidence
from tests.faults.bench.history import MACHINE, Fetch, Final, Processed, Produce, Stall

#: A coordinator reads its groups when it begins. It also begins when a group's first request creates their topic.
_BEGINS = 50305
#: J1: calls that waited may still end this long after all faults are over.
SETTLED_S = 5
#: J2: within this time after all faults are over each log accepts a produce and serves a fetch.
PROGRESS_S = 60
#: The 5xx of docs/http-api.md, except the one for a bug. A missing answer has no code.
_DOCUMENTED = frozenset({50002, 50003, 50004, *range(50301, 50308), *range(50309, 50313), 50401, 50402})


def check_answers(evidence: Evidence) -> Iterator[Anomaly]:
    yield from _check_failed_journal(evidence)
    yield from _check_errors(evidence)
    yield from _check_progress(evidence)


def _check_failed_journal(evidence: Evidence) -> Iterator[Anomaly]:
    """Check that nothing is acknowledged between a failed fsync and the server's next event, which is its end."""
    steps = sorted([fault.t for fault in evidence.faults] + evidence.starts)
    for fault in evidence.faults:
        if fault.kind != "fsync_failed":
            continue
        following = bisect_right(steps, fault.t)
        until = steps[following] if following < len(steps) else FOREVER
        for produce in evidence.calls(Produce):
            told = produce.told
            if (
                told is not None
                and produce.ok
                and any(told.places or ())
                and fault.t < produce.begin
                and told.t < until
            ):
                where = f"{produce.asked.topic}: {told.places[:3]}"
                yield Anomaly("A1", "acknowledged after a failed fsync", where, (fault, *produce.events))


def _check_errors(evidence: Evidence) -> Iterator[Anomaly]:
    heals = [heal.t for heal in evidence.heals]
    troubled = []
    for fault in evidence.faults:
        healed = bisect_right(heals, fault.t)
        troubled.append((fault.t, heals[healed] + SETTLED_S * 10**9 if healed < len(heals) else FOREVER))
    stalls = [stall for stall in evidence.singles(Stall) if stall.process == MACHINE]
    troubled += [(stall.since, stall.t + SETTLED_S * 10**9) for stall in stalls]
    for call in evidence.answered():
        told = call.told
        if told is None or told.status < 500:
            continue
        where = f"{type(told).__name__} of {told.process} was answered {told.status}, error_code {told.error_code}"
        if told.error_code not in _DOCUMENTED:
            yield Anomaly("J1", "error that is not documented", where, call.events)
        elif told.error_code != _BEGINS and not any(begin <= told.t and call.begin <= end for begin, end in troubled):
            yield Anomaly("J1", "error of the server without a fault", where, call.events)


def _check_progress(evidence: Evidence) -> Iterator[Anomaly]:
    """Check that each existing log that ever took a record takes and serves records in time after each ``heal``.

    After the last fault or start some log has to do both.
    """
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
    for processed in evidence.singles(Processed):
        fetched.setdefault((processed.topic, processed.partition), []).append(processed.t)
    faults = [fault.t for fault in evidence.faults]
    for heal in evidence.heals:
        following = bisect_right(faults, heal.t)
        until = faults[following] if following < len(faults) else FOREVER
        due = heal.t + PROGRESS_S * 1_000_000_000
        if until < due:
            continue
        there = [name for name in produced if evidence.topic(name[0]).has(name[1], heal.t)]
        for what, times in (("produce", produced), ("fetch", fetched)):
            for name in there:
                if not any(heal.t < t <= due for t in times.get(name, ())):
                    where = f"{name[0]}-{name[1]}: no {what} succeeded within {PROGRESS_S} s after all was healed"
                    yield Anomaly("J2", "no progress after healing", where, (heal,))
    last = max([*faults, *evidence.starts], default=-1)
    for what, times in (("produce", produced), ("fetch", fetched)):
        if produced and not any(t > last for found in times.values() for t in found):
            yield Anomaly("J2", "no progress after healing", f"no {what} succeeded after the last fault or start")
