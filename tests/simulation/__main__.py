"""``python -m tests.simulation``: play the worlds of a seed until the time is over or a world shows an anomaly.

The seed is printed, and replays the run. A world with an anomaly is played again with fewer faults, and the smallest
one
that still shows the anomaly is printed as a story.
"""

import argparse
import hashlib
import json
import random
import sys
import time
from collections import Counter

from tests.simulation.bugs import BUGS
from tests.simulation.nemesis import Nemesis
from tests.simulation.runs import WORLD_S, prepare, worlds
from tests.simulation.shrinking import shrink
from tests.simulation.story import story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replays a run; default: one by chance")
    parser.add_argument(
        "--brokers", type=int, default=3, help="1 is a store of one node, without ZooKeeper (default: 3)"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of wall time, after which no world begins")
    parser.add_argument("--events", type=int, help="stop after so many events instead, to compare two runs")
    parser.add_argument(
        "--kind", metavar="NAME", help="only faults of this kind: a method of Nemesis, such as kill_all"
    )
    parser.add_argument("--bug", metavar="NAME", help="plant a bug of the catalogue")
    parser.add_argument("--list-bugs", action="store_true", help="name the bugs of the catalogue")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    given = parser.parse_args()
    if given.list_bugs:
        for name, bug in BUGS.items():
            print(f"{name} ({bug.brokers}): {(bug.plant.__doc__ or '').strip().splitlines()[0]}")
        return 0
    if given.bug is not None and given.bug not in BUGS:
        parser.error(f"there is no bug {given.bug}: --list-bugs names them")
    if given.kind is not None and not hasattr(Nemesis, given.kind):
        parser.error(f"there is no fault {given.kind}: tests/simulation/nemesis.py has them")
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    _say(f"seed {seed}: python -m tests.simulation --seed {seed} --brokers {given.brokers} replays this run")
    return _run(seed, given.brokers, given.seconds, given.events, given.bug, given.kind, as_json=given.json)


def _run(
    seed: int,
    brokers: int,
    seconds: float,
    events: int | None,
    bug: str | None,
    kind: str | None,
    *,
    as_json: bool,
) -> int:
    began = time.monotonic()
    digest = hashlib.sha256()
    count = acknowledged = number = 0
    virtual_seconds = 0.0
    faults: Counter[str] = Counter()
    anomalies: list[str] = []
    for outcome in worlds(seed, brokers, began + seconds, events, bug, kind):
        number += 1
        digest.update(outcome.digest.encode())
        count += outcome.events
        acknowledged += outcome.acknowledged
        virtual_seconds += outcome.virtual_seconds
        faults += outcome.faults
        if anomalies := outcome.anomalies:
            break
    wall_seconds = time.monotonic() - began
    _say(
        f"{number} worlds, {count:,} events, {faults.total():,} faults, {acknowledged:,} records acknowledged, "
        f"{virtual_seconds:,.0f} simulated seconds in {wall_seconds:,.0f}: {len(anomalies)} anomalies"
    )
    for name, times in sorted(faults.items()):
        _say(f"  {name}: {times:,}")
    if anomalies:
        _say("looking for fewer faults that show it ...")
        prepare(bug)
        _say(story(shrink(outcome, brokers, WORLD_S, kind)))
    if as_json:
        told = {
            "seed": seed,
            "digest": digest.hexdigest()[:32],
            "events": count,
            "faults": faults.total(),
            "virtual_seconds": round(virtual_seconds, 3),
            "wall_seconds": round(wall_seconds, 3),
            "acknowledged": acknowledged,
            "anomalies": anomalies,
        }
        print(json.dumps(told), flush=True)
    return 1 if anomalies else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
