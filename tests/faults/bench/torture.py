"""``python -m tests.faults.bench.torture --seed 7 --duration 600``: faults for a long time; exit code 1 on any anomaly.

Most of the time goes to rounds of the bench, each on a new store and with a seed of its own that follows from the first
(``--rounds 1 --seed S`` is one of them again); the rest to the loop over fail points and to the long forms of other
fault tests. What a round that failed has recorded is kept.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.bench.bench import BOTH, TOPICS, Bench, Load
from tests.faults.bench.schedule import faults

ROOT = Path(__file__).parents[3]
#: More than that is more history than is checked in passing.
_ROUND_S = 120
_BENCH_SHARE, _FAIL_POINTS_SHARE = 0.7, 0.15
#: They take as long as they take, some minutes each: they need a duration of which that is a small part.
_LONG_FORMS_FROM_S = 1_800
_LONG_FORMS = (
    "tests/faults/test_sockets.py",
    "tests/faults/test_segment_damage.py",
    "tests/faults/test_delta_damage.py",
    "tests/faults/test_disk_faults.py",
    "tests/faults/test_process_faults.py",
    "tests/faults/test_slow_clients.py",
)
_LOAD = Load(topics=(*TOPICS, BOTH), jobs=("retention", "compact"), deletes=("plain",))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--duration", type=float, default=600, help="seconds, about")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of the bench, and nothing else")
    given = parser.parse_args()
    seed = random.randrange(2**31) if given.seed is None else given.seed
    print(f"make torture SEED={seed} DURATION={given.duration:.0f}", flush=True)
    began = time.monotonic()
    failed = 0
    done = 0
    while done < given.rounds if given.rounds else time.monotonic() - began < _BENCH_SHARE * given.duration:
        left = _BENCH_SHARE * given.duration - (time.monotonic() - began)
        failed += not run_round(seed + done, _ROUND_S if given.rounds else min(_ROUND_S, left))
        done += 1
    if not given.rounds:
        seconds = str(round(_FAIL_POINTS_SHARE * given.duration))
        failed += not run(sys.executable, "-m", "tests.faults.fail_points", "--seed", str(seed), "--duration", seconds)
        done += 1
        if given.duration >= _LONG_FORMS_FROM_S:
            failed += not run(sys.executable, "-m", "pytest", *_LONG_FORMS)
            done += 1
        else:
            print(f"the long forms of other fault tests begin at DURATION={_LONG_FORMS_FROM_S}")
    print(f"{failed} of {done} parts failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def run_round(seed: int, seconds: float) -> bool:
    """One store from its beginning to its end; whether there was nothing to find."""
    directory = Path(tempfile.mkdtemp(prefix=f"torture-{seed}-"))
    report = Bench(directory, seed, _LOAD).run(faults(seed), seconds=seconds)
    print(report, flush=True)
    if report.anomalies:
        print(f"kept: {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return not report.anomalies


def run(*command: str) -> bool:
    print(" ".join(command), flush=True)
    environment = {**os.environ, "LOGSTORE_TORTURE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
