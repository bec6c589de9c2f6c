"""The bench sees what it is made to see: each server that is broken on purpose is caught, and the whole one is not."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.bench.bench import Bench, Load
from tests.faults.bench.mutants import EXPOSED_BY, SCRIPT
from tests.faults.bench.workload import TopicSpec


def load(*, readers: int, rolled: bool, observed: bool) -> Load:
    segment_ms = "400" if rolled else "3600000"
    topics = (
        TopicSpec("plain", 2, {"segment.ms": segment_ms}),
        TopicSpec("appended", 1, {"segment.ms": segment_ms, "message.timestamp.type": "LogAppendTime"}),
        TopicSpec("by-hand", 1, {"segment.ms": "3600000"}, by_hand=True),
    )
    return Load(topics, producers=3, readers=readers, pause_s=0.01, large=0.5, jobs=(), observed=observed)


@pytest.mark.parametrize("mutant", EXPOSED_BY, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(tmp_path: Path, mutant: Callable[[], None]) -> None:
    exposed = EXPOSED_BY[mutant]
    wanted = load(readers=exposed.readers, rolled=exposed.rolled, observed=exposed.observed)
    # What does not come back need not be waited for.
    wanted = replace(wanted, patience_s=10)
    report = Bench(tmp_path, 1, wanted, mutant=mutant.__name__).run(exposed.faults)
    print(report)
    told = re.compile(exposed.told, re.DOTALL)
    assert any(told.match(anomaly) for anomaly in report.anomalies), "nothing was noticed"


def test_the_same_faults_do_no_harm_to_the_server_itself(tmp_path: Path) -> None:
    report = Bench(tmp_path, 1, load(readers=1, rolled=True, observed=True)).run(SCRIPT)
    print(report)
    assert not report.anomalies
    assert all(report.faults[fault.kind] for fault in SCRIPT)
