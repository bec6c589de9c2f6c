"""A short form of the fault bench with both jobs in a loop, beside a load, rolls, kills and moving log starts.

One run checks many guarantees: no acknowledged record is lost, duplicated or moved, the last record of each key stays,
readers and group offsets agree with the log, and each version of the table is a part of the log.
"""

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.bench.bench import BOTH, TOPICS, Bench, Load
from tests.faults.bench.history import Final, read_history
from tests.faults.bench.schedule import faults

pytestmark = pytest.mark.long

KINDS = ("kill", "terminate", "pause", "overwrite")
COMMITS = (
    *(("retention", topic) for topic in ("plain", "bounded", "both")),
    *(("compact", topic) for topic in ("compacted", "both", "__consumer_offsets")),
)


def test_jobs_beside_a_store_that_dies(tmp_path: Path) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    # Spark needs its share of the machine.
    topics = [replace(topic, configs={**topic.configs, "segment.ms": "1500"}) for topic in (*TOPICS, BOTH)]
    jobs = ("retention", "compact")
    load = Load(topics, pause_s=0.2, jobs=jobs, job_pause_s=0.1, deletes=("plain",), commits=COMMITS)
    bench = Bench(tmp_path, seed, load)
    report = bench.run(islice(faults(seed, KINDS, pace=0.5), len(KINDS)))
    print(report)
    assert not report.anomalies
    for final in read_history(bench.history):
        if isinstance(final, Final) and final.topic in {"compacted", "both"}:
            keys = [key for _, _, _, key, _ in final.rows]
            assert len(set(keys)) == len(keys), "compaction left more than the last record of a key"
