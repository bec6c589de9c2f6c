"""A short form of the fault bench with Spark streaming queries on its tables and on the store, beside rolls every
second, retention, merges and an OPTIMIZE.

Each query gets each record once, in order, although the store and Spark are killed.
"""

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.bench.bench import TOPICS, Bench, Load
from tests.faults.bench.schedule import faults

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

KINDS = ("stream_kill", "kill", "power_cut", "rewrite")
STREAMED = ("plain", "bounded")
COMMITS = (("merge", "plain"), ("retention", "bounded"))


def test_streams_beside_a_store_that_dies(tmp_path: Path) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    topics = [replace(topic, configs={**topic.configs, "segment.ms": "1000"}) for topic in TOPICS]
    load = Load(
        topics,
        producers=2,
        readers=1,
        # Spark needs its share of the machine.
        pause_s=0.1,
        jobs=("retention", "merge"),
        job_pause_s=1.0,
        commits=COMMITS,
        streamed=STREAMED,
    )
    report = Bench(tmp_path, seed, load).run(islice(faults(seed, KINDS, pace=0.5), len(KINDS)))
    print(report)
    assert not report.anomalies
    assert set(KINDS) <= report.faults.keys()
