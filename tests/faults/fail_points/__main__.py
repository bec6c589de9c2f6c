"""Strikes every fault at every point of every act, and kills recovery at every point: ``python -m
tests.faults.fail_points``.

``--only ACT FAULT ...`` repeats one run, as its failure reports. Prints how many faults struck; exits with 1 after a
failure, and when none struck: then nothing was tried.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.fail_points.fault import Fault
from tests.faults.fail_points.jobs import STEPS, WRITING
from tests.faults.fail_points.loop import EACH, FailPointLoop, every_fault
from tests.faults.fail_points.script import ACTS
from tests.faults.fail_points.zygote import Zygote

#: A start that is killed late leaves the next one more to do: without a bound the run might not end.
_STARTS_MAX = 150
#: This many kills of each act are recovered from in all these ways.
_IMAGES = 8


#: A point and the action there.
Kind = tuple[str, str]


def _runs(loop: FailPointLoop, rng: random.Random, *, jobs: bool) -> list[tuple[Kind, Callable[[], object]]]:
    """Return all runs; the first ones cover some of every kind, in case the time is short."""
    kinds: dict[Kind, list[Callable[[], object]]] = {}
    kinds["jobs", "kill"] = [partial(loop.kill_jobs, STEPS)]
    if jobs:
        kinds["jobs", "kill"].append(partial(loop.kill_jobs, [WRITING]))
    for act in ACTS:
        hits = loop.hits(act)
        alone = list(every_fault(hits))
        for fault in (*alone, *EACH):
            kinds.setdefault((fault.point, fault.action), []).append(partial(loop.run, act, [fault]))
        kills = [fault for fault in alone if fault.kills]
        for fault in rng.sample(kills, _IMAGES):
            killed = partial(loop.kill_recovery, act, fault, range(1, _STARTS_MAX))
            failing = partial(loop.fail_recovery, act, fault, lambda errors: errors)
            kinds.setdefault(("recovery", "kill"), []).append(killed)
            kinds.setdefault(("recovery", "errors"), []).append(failing)
    for runs in kinds.values():
        rng.shuffle(runs)
    named = [[(kind, run) for run in runs] for kind, runs in kinds.items()]
    rng.shuffle(named)
    return [run for runs in itertools.zip_longest(*named) for run in runs if run]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fail_points", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--duration", type=float, default=float("inf"), help="seconds of faults; without it all")
    parser.add_argument("--jobs", action="store_true", help="kill key compaction on a real Spark, too")
    parser.add_argument("--only", nargs="+", metavar="ACT FAULT", help="an act and its faults: point:nth:action")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    rng = random.Random(asked.seed)
    failures = 0
    with Zygote() as zygote, tempfile.TemporaryDirectory() as directory:
        loop = FailPointLoop(zygote, Path(directory))
        if asked.only:
            act, *faults = asked.only
            print("struck" if loop.run(act, [Fault.parse(fault) for fault in faults]) else "not all struck")
            return 0
        runs = _runs(loop, rng, jobs=asked.jobs)
        left = {kind for kind, _ in runs}
        # The time before the first fault does not count: the acts are played once to learn which points they reach.
        deadline = time.monotonic() + asked.duration
        for kind, run in runs:
            if time.monotonic() > deadline:
                break
            left.discard(kind)
            try:
                run()
            except AssertionError as error:
                failures += 1
                print(error, *error.__notes__, sep="\n", flush=True)
        print(loop.tally)
        if left:
            print(f"no time for {len(left)} kinds: {', '.join(' '.join(kind) for kind in sorted(left))}")
    struck = loop.tally.faults.total()
    print(f"{struck} faults struck, {failures} failures")
    if not struck:
        print(f"NOT RUN: no fault struck within {asked.duration:.0f} s; give it more time")
    return 1 if failures or not struck else 0


if __name__ == "__main__":
    sys.exit(main())
