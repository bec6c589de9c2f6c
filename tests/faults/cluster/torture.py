"""``python -m tests.faults.cluster.torture --seed 7 --duration 3600``: rounds of the bench of a cluster, each on a new
one; exit code 1 on any anomaly.

Each round has a seed of its own, which follows from the first (``--rounds 1 --seed S`` is one of them again), and
every second one has members of consumer groups. A line of JSON for each round goes to ``--record``. What a failed round
has left is kept.
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.cluster.bench import GROUPS, Load, Report, counts, run

_ROUND_S = 240
#: A round without groups whose ZooKeeper is gone for a minute, now and then.
_LONG_EVERY, _LONG_S = 6, 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--duration", type=float, default=300, help="seconds, about")
    parser.add_argument("--rounds", type=int, default=0, help="so many rounds, whatever time they take")
    parser.add_argument("--round-seconds", type=float, default=_ROUND_S, help="of faults in each round")
    parser.add_argument("--kinds", nargs="+", default=(), help="kinds of faults (default: all)")
    parser.add_argument("--groups", choices=["always", "never", "in-turn"], default="in-turn")
    parser.add_argument("--zookeepers", type=int, default=3, help="servers of the ensemble")
    parser.add_argument("--record", type=Path, help="a file that gets a line for each round")
    given = parser.parse_args()
    # Whoever ends the run ends its brokers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"seed {given.seed}", flush=True)
    seed, seeds = given.seed, random.Random(given.seed)
    began = time.monotonic()
    reports: list[Report] = []
    while True:
        left = given.duration - (time.monotonic() - began)
        number = len(reports)
        if number == given.rounds if given.rounds else left <= 0 and number:
            break
        seconds = given.round_seconds if given.rounds else max(1, min(left, given.round_seconds))
        grouped = given.groups == "always" or (given.groups == "in-turn" and number % 2 == 1)
        load = Load(
            tuple(given.kinds),
            groups=GROUPS if grouped else (),
            producers=2 if grouped else 4,
            long_s=_LONG_S if number % _LONG_EVERY == _LONG_EVERY - 2 else Load().long_s,
            zookeepers=given.zookeepers,
        )
        reports.append(run_round(seed, seconds, load))
        if given.record:
            _record(given.record, reports[-1], grouped=grouped)
        seed = seeds.randrange(1 << 31)
    print(_summary(reports), flush=True)
    return 1 if any(report.anomalies or not report.faults for report in reports) else 0


def run_round(seed: int, seconds: float, load: Load) -> Report:
    directory = Path(tempfile.mkdtemp(prefix=f"torture-{seed}-"))
    report = run(directory, seed, seconds, load)
    print(report, flush=True)
    if report.anomalies:
        print(f"kept: {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return report


def _record(path: Path, report: Report, *, grouped: bool) -> None:
    with path.open("a") as file:
        told = {
            "seed": report.seed,
            "seconds": round(report.seconds),
            "groups": grouped,
            "acknowledged": report.acknowledged,
            "faults": dict(report.faults),
            "processes": dict(report.blows),
            "points": dict(report.points),
            "moves": report.moves,
            "anomalies": report.anomalies,
        }
        file.write(json.dumps(told) + "\n")


def _summary(reports: Sequence[Report]) -> str:
    faults: Counter[str] = sum((report.faults for report in reports), Counter())
    blows: Counter[str] = sum((report.blows for report in reports), Counter())
    acknowledged = sum(report.acknowledged for report in reports)
    return "\n".join(
        [
            f"{len(reports)} rounds, {acknowledged:,} records acknowledged",
            f"{faults.total()} faults: {counts(faults)}",
            f"{blows.total()} processes of brokers: {counts(blows)}",
            f"{sum(bool(report.anomalies) for report in reports)} rounds with anomalies",
        ]
    )


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
