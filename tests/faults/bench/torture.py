"""``python -m tests.faults.bench.torture --seed 7 --duration 600``: faults for a long time; exit code 1 on any anomaly.

Most of the time goes to rounds of the bench, each on a new store and with a seed of its own that follows from the first
(``--rounds 1 --seed S`` is one of them again); the rest to the loop over fail points and to the long forms of other
fault tests. A part in which no fault struck has failed, because it has tried nothing. The records of a failed round are
kept.

``--mutant NAME`` shows a failure on purpose: a broken server, under the faults that expose it.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tests.faults.bench.bench import BOTH, SHARED, TOPICS, Bench, Load, Report
from tests.faults.bench.groups import CONSUMER, COOPERATIVE, KAFKA_CONSUMER, MIXED, MIXED_COOPERATIVE, RANGE
from tests.faults.bench.kafka_producer import IDEMPOTENT, LEADER_ALONE, PLAIN
from tests.faults.bench.mutants import EXPOSED_BY, Exposure
from tests.faults.bench.nemesis import READY_S
from tests.faults.bench.schedule import GROUPED, KINDS, STREAMED, faults
from tests.faults.bench.workload import TopicSpec

ROOT = Path(__file__).parents[3]
#: A longer round makes more history than is checked in passing.
_ROUND_S = 120
#: A shorter round leaves no time for a fault between its start and its end.
_ROUND_LEAST_S = 20
_BENCH_SHARE, _FAIL_POINTS_SHARE = 0.7, 0.15
#: These take some minutes each, so they run only in a duration of which that is a small part.
_LONG_FORMS_FROM_S = 1_800
_LONG_FORMS = (
    "tests/faults/test_sockets.py",
    "tests/faults/test_segment_damage.py",
    "tests/faults/test_delta_damage.py",
    "tests/faults/test_disk_faults.py",
    "tests/faults/test_process_faults.py",
    "tests/faults/test_slow_clients.py",
    "tests/faults/test_mutants.py",
    "tests/faults/test_long_life.py",
    "tests/stateful/test_group_state_model.py",
)
#: The limit of one test in its long form; others have ten minutes (pyproject.toml).
_TEST_MAX_S = 4_000
#: A shorter time does not suffice for a round with a few faults, its end, and a fail point of some kinds.
_LEAST_S = 120
_LOAD = Load(topics=(*TOPICS, BOTH), jobs=("retention", "compact", "merge"), deletes=("plain",))
#: Nobody deletes from ``plain``: every record of it comes to every stream. A second JVM leaves less for the load.
_STREAMED_LOAD = replace(_LOAD, deletes=(), producers=2, pause_s=0.1, streamed=("plain", "bounded", "compacted"))
#: A round with streams needs a minute more than others to begin and end.
_STREAMED_FROM_S = 600
_STREAMED_EVERY = 4
#: Members replace some producers.
_GROUPED_LOAD = replace(
    _LOAD, topics=(*TOPICS, BOTH, *SHARED), groups=(RANGE, COOPERATIVE, CONSUMER), producers=2, pause_s=0.1
)
_GROUPED_EVERY = 4
#: Clients with Kafka's protocol replace some producers; every other round has them.
_WITH_KAFKA: dict[str, Any] = {
    "producers": 2,
    "pause_s": 0.1,
    "kafka_producers": (IDEMPOTENT, PLAIN, IDEMPOTENT, LEADER_ALONE),
    "kafka_readers": 1,
}
_KAFKA_EVERY = 2
_KAFKA_GROUPS = (MIXED, MIXED_COOPERATIVE, KAFKA_CONSUMER)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--duration", type=float, default=600, help=f"seconds, about; {_LEAST_S} at least")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of the bench, and nothing else")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices={*KINDS, *STREAMED, *GROUPED},
        default=KINDS,
        help="of faults, in rounds of the bench",
    )
    parser.add_argument("--streamed", action="store_true", help="rounds with streaming queries of Spark")
    parser.add_argument("--grouped", action="store_true", help="rounds with members of consumer groups")
    parser.add_argument("--kafka", action="store_true", help="rounds with clients that have Kafka's protocol")
    parser.add_argument("--faults", type=int, default=None, help="at most so many in a round")
    parser.add_argument("--mutant", choices=[mutant.__name__ for mutant in EXPOSED_BY], help="one run of it instead")
    given = parser.parse_args()
    if given.duration < _LEAST_S:
        parser.error(f"--duration is {_LEAST_S} s at least")
    seed = random.randrange(2**31) if given.seed is None else given.seed
    if given.mutant:
        return 1 if run_mutant(seed, given.mutant).anomalies else 0
    print(f"make torture SEED={seed} DURATION={given.duration:.0f}", flush=True)
    seeds = random.Random(seed)
    began = time.monotonic()
    failed = 0
    done = 0
    struck = 0
    while True:
        left = _BENCH_SHARE * given.duration - (time.monotonic() - began)
        if done == given.rounds if given.rounds else left < _ROUND_LEAST_S:
            break
        seconds = _ROUND_S if given.rounds else min(_ROUND_S, left)
        in_turn = not given.rounds and given.duration >= _STREAMED_FROM_S and done % _STREAMED_EVERY == 1
        grouped = given.grouped or (not given.rounds and done % _GROUPED_EVERY == 0)
        streamed = given.streamed or in_turn
        kafka = given.kafka or (not given.rounds and done % _KAFKA_EVERY == 0)
        extras = {"streamed": streamed, "grouped": grouped, "kafka": kafka}
        report = run_round(seed, seconds, given.kinds, most=given.faults, **extras)
        failed += not is_passed(report)
        struck += report.faults.total()
        done += 1
        seed = seeds.randrange(2**31)
    if not given.rounds:
        share = str(round(_FAIL_POINTS_SHARE * given.duration))
        long = given.duration >= _LONG_FORMS_FROM_S
        points = ("tests.faults.fail_points", "--seed", str(seed), "--duration", share, *(["--jobs"] if long else []))
        failed += not run(sys.executable, "-m", *points)
        done += 1
        if long:
            failed += not run(sys.executable, "-m", "pytest", "-m", "", "--timeout", str(_TEST_MAX_S), *_LONG_FORMS)
            done += 1
        else:
            print(f"the long forms of other fault tests begin at DURATION={_LONG_FORMS_FROM_S}")
    print(f"{failed} of {done} parts failed; {struck} faults in rounds of the bench; {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def load_of(exposure: Exposure) -> Load:
    """Return the small load of a run with these faults. A log that a mutant has stopped is not waited for."""
    segment_ms = "400" if exposure.rolled else "3600000"
    topics = (
        TopicSpec("plain", 2, {"segment.ms": segment_ms}),
        TopicSpec("appended", 1, {"segment.ms": segment_ms, "message.timestamp.type": "LogAppendTime"}),
        TopicSpec("by-hand", 1, {"segment.ms": "3600000"}, by_hand=True),
    )
    return Load(
        (*topics, *SHARED) if exposure.grouped else topics,
        groups=[replace(group, seconds_a_batch=0.3) for group in (COOPERATIVE, CONSUMER)] if exposure.grouped else (),
        producers=3,
        readers=exposure.readers,
        kafka_producers=(IDEMPOTENT, IDEMPOTENT) if exposure.kafka else (),
        kafka_readers=1 if exposure.kafka else 0,
        pause_s=0.01,
        large=0.5,
        jobs=(),
        observed=exposure.observed,
        streamed=("plain",) if exposure.streamed else (),
        sent_again=exposure.sent_again,
        patience_s=10 if exposure.stuck else READY_S,
    )


def run_round(
    seed: int,
    seconds: float,
    kinds: Sequence[str] = KINDS,
    *,
    most: int | None = None,
    streamed: bool = False,
    grouped: bool = False,
    kafka: bool = False,
) -> Report:
    """Run one store from its beginning to its end; return the report of its faults and anomalies.

    Beside streaming queries, only faults that these can bear strike; with groups, also those of their members.
    """
    again = f"--rounds 1 --seed {seed}"
    if streamed:
        again += " --streamed"
    if grouped:
        again += " --grouped"
    if kafka:
        again += " --kafka"
    named = kinds is not KINDS
    if named:
        again += f" --kinds {' '.join(kinds)}"
        kinds = [kind for kind in kinds if not streamed or kind in STREAMED]
    elif streamed:
        kinds = STREAMED
    elif seed % 2 == 0:
        # Overwritten commits excuse many anomalies: every other seed has none.
        kinds = [kind for kind in KINDS if kind != "overwrite"]
    if grouped and not named:
        kinds = (*kinds, *GROUPED)
    if most is not None:
        again += f" --faults {most}"
    schedule = islice(faults(seed, kinds), most)
    load = _STREAMED_LOAD if streamed else _GROUPED_LOAD if grouped else _LOAD
    if kafka:
        load = replace(load, **_WITH_KAFKA, groups=_KAFKA_GROUPS if grouped else ())
    return _run(seed, again, lambda bench: bench.run(schedule, seconds=seconds), load)


def is_passed(report: Report) -> bool:
    """Return whether a fault struck and no anomaly was found."""
    if not report.faults:
        print("NOT RUN: no fault struck in this round", flush=True)
    return bool(report.faults) and not report.anomalies


def run_mutant(seed: int, name: str) -> Report:
    (exposed,) = (exposed for mutant, exposed in EXPOSED_BY.items() if mutant.__name__ == name)
    return _run(seed, f"--mutant {name} --seed {seed}", lambda bench: bench.run(exposed.faults), load_of(exposed), name)


def _run(seed: int, again: str, judged: Callable[[Bench], Report], load: Load, mutant: str = "") -> Report:
    directory = Path(tempfile.mkdtemp(prefix=f"torture-{seed}-"))
    report = judged(Bench(directory, seed, load, mutant=mutant))
    print(report, flush=True)
    if report.anomalies:
        print(f"kept: {directory}\nagain: python -m tests.faults.bench.torture {again}", flush=True)
    else:
        shutil.rmtree(directory)
    return report


def run(*command: str) -> bool:
    print(" ".join(command), flush=True)
    environment = {**os.environ, "LOGSTORE_TORTURE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
