"""Reduces the faults of a world to fewer that still show its anomaly."""

import time
from collections.abc import Callable, Collection

from tests.simulation.world import Outcome, simulate

#: Wall seconds for the search.
_LOOKING_S = 30.0


def shrink(found: Outcome, brokers: int, virtual_seconds: float, kind_of_fault: str | None) -> Outcome:
    """Return the outcome of the same world with fewer faults that still has an anomaly of the same kind.

    Ever smaller parts of the faults are left out, as long as there is time (delta debugging: Zeller and Hildebrandt,
    2002).
    """
    kind = found.anomalies[0].split(":")[0]
    best = found
    until = time.monotonic() + _LOOKING_S

    def shows(faults: Collection[int]) -> bool:
        nonlocal best
        outcome = simulate(
            found.seed,
            brokers=brokers,
            virtual_seconds=virtual_seconds,
            only=frozenset(faults),
            kind=kind_of_fault,
        )
        if any(anomaly.split(":")[0] == kind for anomaly in outcome.anomalies):
            best = outcome
            return True
        return False

    fewest(sorted(found.struck), shows, lambda: time.monotonic() > until)
    return best


def fewest(faults: list[int], shows: Callable[[list[int]], bool], is_over: Callable[[], bool]) -> list[int]:
    """Return a part of ``faults`` for which ``shows`` is True, without unneeded faults unless the time is over."""
    parts = 2
    while faults and not is_over():
        size = max(1, len(faults) // parts)
        for at in range(0, len(faults), size):
            fewer = faults[:at] + faults[at + size :]
            if is_over():
                return faults
            if shows(fewer):
                faults, parts = fewer, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(faults), parts * 2)
    return faults
