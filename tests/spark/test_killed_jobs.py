"""A job that dies on a real Spark leaves a whole table, and a store that starts on it.

One of the steps, by a seed; ``python -m tests.faults.fail_points --jobs`` goes through all of them, and on from there.
"""

import random
from pathlib import Path

from tests.faults.fail_points.jobs import POINTS, VACUUMING, kill_jobs
from tests.faults.fail_points.zygote import Zygote


def test_a_job_that_is_killed(tmp_path: Path) -> None:
    # Vacuum needs a compaction before it: two starts of Spark.
    point = random.choice([point for point in POINTS if point != VACUUMING])
    print(f"killed at {point}")
    with Zygote() as zygote:
        assert [fault.point for fault in kill_jobs(tmp_path, zygote, [point])] == [point]
