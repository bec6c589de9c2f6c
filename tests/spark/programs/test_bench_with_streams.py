"""The fault bench in short with streaming queries of Spark on its topics, of the tables and of the store, beside rolls
every second, retention, merges and an OPTIMIZE.

Each record comes once to each query, in order, over kills of the store and of Spark, and none is left out.
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
        # Spark is to have its share of the machine.
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
