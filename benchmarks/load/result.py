"""The result that a load program prints at its end, and the clock of all of them. Only the standard library is used."""

import contextlib
import ctypes
import json
import sys
from collections.abc import Sequence
from typing import Any

_PR_SET_TIMERSLACK = 29


def read_specification() -> dict[str, Any]:
    return dict(json.load(sys.stdin))


def print_result(records: int, seconds: float, latencies: Sequence[float] = (), **more: float | str | None) -> None:
    """Print the result. ``latencies`` are in seconds, unordered; none: not measured. ``more`` is passed on."""
    json.dump({"records": records, "seconds": seconds, **more, **percentiles_ms(latencies)}, sys.stdout)


def percentiles_ms(latencies: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and p99.9 in ms: the smallest latency that this share does not exceed (nearest rank)."""
    if not latencies:
        return {}
    ordered = sorted(latencies)

    def rank(share: float) -> float:
        return 1000 * ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

    return {"p50_ms": rank(0.5), "p99_ms": rank(0.99), "p999_ms": rank(0.999)}


def precise_timers() -> None:
    """Make sleeps of this thread end within microseconds of their time, not the 50 that the kernel may add."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
