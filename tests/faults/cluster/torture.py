"""``python -m tests.faults.cluster.torture --seed 7 --duration 3600``: rounds of the bench of a cluster, each on a new
one; exit code 1 on any anomaly.

Each round has a seed of its own, which follows from the first, and kinds of its own, those that have struck least so
far; ``--rounds 1 --seed S --kinds ...`` is one of them again. Every second round has members of consumer groups, two of
four have clients with Kafka's protocol. A line of JSON for each round goes to ``--record``. What a failed round has
left is kept.
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.cluster.bench import GROUPS, KAFKA, KAFKA_GROUPS, Load, Report, counts, run
from tests.faults.cluster.brokers import SESSION_MS
from tests.faults.cluster.nemesis import KINDS

_ROUND_S = 240
#: Sometimes ZooKeeper is gone for a minute, in a round without groups.
_LONG_EVERY, _LONG_S = 6, 60.0
_OF_FOUR_WITH_KAFKA = 2
#: The number of kinds in a round, about as many as it has time for.
_KINDS = 14


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--duration", type=float, default=300, help="seconds, about")
    parser.add_argument("--rounds", type=int, default=0, help="so many rounds, whatever time they take")
    parser.add_argument("--round-seconds", type=float, default=_ROUND_S, help="of faults in each round")
    parser.add_argument("--kinds", nargs="+", default=(), help="kinds of faults (default: all)")
    parser.add_argument("--groups", choices=["always", "never", "in-turn"], default="in-turn")
    parser.add_argument("--kafka", choices=["always", "never", "in-turn"], default="in-turn")
    parser.add_argument("--zookeepers", type=int, default=3, help="servers of the ensemble")
    parser.add_argument("--record", type=Path, help="a file that gets a line for each round")
    given = parser.parse_args()
    # A signal that ends the run also ends its brokers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"seed {given.seed}", flush=True)
    seed, seeds = given.seed, random.Random(given.seed)
    began = time.monotonic()
    reports: list[Report] = []
    struck: Counter[str] = Counter()
    while True:
        left = given.duration - (time.monotonic() - began)
        number = len(reports)
        if number == given.rounds if given.rounds else left <= 0 and number:
            break
        seconds = given.round_seconds if given.rounds else max(1, min(left, given.round_seconds))
        grouped = given.groups == "always" or (given.groups == "in-turn" and number % 2 == 1)
        with_kafka = given.kafka == "always" or (given.kafka == "in-turn" and number % 4 < _OF_FOUR_WITH_KAFKA)
        least = sorted(KINDS, key=lambda kind: (struck[kind], seeds.random()))[:_KINDS]
        load = Load(
            tuple(given.kinds or least),
            groups=() if not grouped else KAFKA_GROUPS if with_kafka else GROUPS,
            kafka=KAFKA if with_kafka else (),
            producers=2 if grouped or with_kafka else 4,
            long_s=_LONG_S if number % _LONG_EVERY == _LONG_EVERY - 2 else Load().long_s,
            zookeepers=given.zookeepers,
        )
        extras = f"--groups {_always(load.groups)} --kafka {_always(load.kafka)}"
        print(f"--rounds 1 --seed {seed} {extras} --kinds {' '.join(load.kinds)}", flush=True)
        reports.append(run_round(seed, seconds, load))
        struck.update(reports[-1].faults)
        if given.record:
            _record(given.record, reports[-1], load)
        seed = seeds.randrange(1 << 31)
    print(_summary(reports), flush=True)
    return 1 if any(report.anomalies or not report.faults for report in reports) else 0


def _always(extras: Sequence[object]) -> str:
    return "always" if extras else "never"


def run_round(seed: int, seconds: float, load: Load) -> Report:
    directory = Path(tempfile.mkdtemp(prefix=f"torture-{seed}-"))
    report = run(directory, seed, seconds, load)
    print(report, flush=True)
    if report.anomalies:
        print(f"kept: {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return report


def _record(path: Path, report: Report, load: Load) -> None:
    with path.open("a") as file:
        told = {
            "seed": report.seed,
            "seconds": round(report.seconds),
            "version": _version(),
            "kinds": load.kinds,
            "groups": bool(load.groups),
            "kafka": bool(load.kafka),
            "session_ms": SESSION_MS,
            "zookeepers": load.zookeepers,
            "acknowledged": report.acknowledged,
            "of_kafkas": report.of_kafkas,
            "faults": dict(report.faults),
            "processes": dict(report.blows),
            "points": dict(report.points),
            "moves": report.moves,
            "anomalies": report.anomalies,
        }
        file.write(json.dumps(told) + "\n")


def _version() -> str:
    """Return the commit that ran; "" outside of a repository."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


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
