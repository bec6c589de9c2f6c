"""The worlds of a run, one on each processor at a time."""

import faulthandler
import itertools
import logging
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace

import structlog

from tests.simulation.bugs import plant
from tests.simulation.world import Outcome, simulate

#: Simulated seconds of a world.
WORLD_S = 30.0
#: Wall seconds.
_ENDLESS_S = 300.0


def worlds(seed: int, brokers: int, until: float, events: int | None, bug: str | None) -> Iterator[Outcome]:
    """Yield the worlds of a seed in their order: those that begin before ``until`` (of the monotonic clock), or, one by
    one, until ``events`` have happened.
    """
    if events is not None:
        prepare(bug)
        for number in itertools.count():
            if events <= 0:
                return
            outcome = simulate(f"{seed}.{number}", brokers=brokers, virtual_seconds=WORLD_S, events=events)
            events -= outcome.events
            yield outcome
    at_once = os.cpu_count() or 1
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn"), prepare, (bug,)) as pool:
        begun: deque[Future[Outcome]] = deque()
        for number in itertools.count():
            while time.monotonic() < until and len(begun) < at_once:
                begun.append(pool.submit(_play, f"{seed}.{number + len(begun)}", brokers))
            if not begun:
                return
            yield begun.popleft().result()


def prepare(bug: str | None) -> None:
    """Make this process one that plays worlds, with a bug of the catalogue if it is named."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    if bug is not None:
        plant(bug)


def _play(seed: str, brokers: int) -> Outcome:
    # A world that never ends is told with its stack, and ends the run.
    faulthandler.dump_traceback_later(_ENDLESS_S, exit=True)
    outcome = simulate(seed, brokers=brokers, virtual_seconds=WORLD_S)
    faulthandler.cancel_dump_traceback_later()
    return outcome if outcome.anomalies else replace(outcome, history=[])
