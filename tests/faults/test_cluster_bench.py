"""The fault bench on a cluster: no acknowledged record is lost or doubled, and brokers broken on purpose are caught."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.cluster import mutants
from tests.faults.cluster.bench import CONSUMER, COOPERATIVE, KAFKA, KAFKA_GROUPS, Load, run
from tests.faults.cluster.mutants import EXPOSED_BY
from tests.support.torture import TORTURE

pytestmark = [pytest.mark.system, pytest.mark.long]

SEED = 18
#: One mutant for each way to lose or double a record, and one for acknowledgements of a former leader.
CAUGHT = (
    mutants.count_the_leader_alone,
    mutants.stay_in_the_isr,
    mutants.trust_what_stands_beside,
    mutants.hold_the_lease_for_ever,
    mutants.append_times_of_its_own,
)


def test_a_minute_of_faults_on_a_cluster(tmp_path: Path) -> None:
    report = run(tmp_path, SEED, 60)
    print(report)
    assert not report.anomalies, report
    assert report.faults.total() >= 3, report
    assert report.acknowledged > 100, report


def test_members_of_groups_across_failovers(tmp_path: Path) -> None:
    kinds = ("kill", "terminate", "pause", "cut_from_zookeeper", "kill_all")
    report = run(tmp_path, SEED, 60, Load(kinds, groups=(COOPERATIVE, CONSUMER), producers=2))
    print(report)
    assert not report.anomalies, report
    assert report.faults.total() >= 2, report
    assert report.moves, report


def test_kafkas_clients_and_groups_across_failovers(tmp_path: Path) -> None:
    kinds = ("kill", "terminate", "pause", "cut_from_zookeeper", "kill_all")
    report = run(tmp_path, SEED, 60, Load(kinds, groups=KAFKA_GROUPS, kafka=KAFKA, producers=1))
    print(report)
    assert not report.anomalies, report
    assert report.faults.total() >= 2, report
    assert report.of_kafkas > 50, report
    assert report.moves, report


def test_acks_all_continues_for_a_minute_without_zookeeper(tmp_path: Path) -> None:
    report = run(tmp_path, SEED, 300, Load(("zookeeper_majority_lost",), faults=1, long_s=60, inside=False))
    print(report)
    assert not report.anomalies, report
    assert report.faults == {"zookeeper_majority_lost": 1}


@pytest.mark.parametrize("mutant", EXPOSED_BY if TORTURE else CAUGHT, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(tmp_path: Path, mutant: Callable[[], None]) -> None:
    exposed = EXPOSED_BY[mutant]
    load = Load(exposed.kinds, faults=exposed.faults, inside=False, zookeepers=1)
    # A fault may strike where it does no harm.
    for seed in (1, 2, 3):
        (directory := tmp_path / str(seed)).mkdir()
        report = run(directory, seed, 120, load, mutant=f"{mutant.__module__}.{mutant.__name__}")
        print(report)
        if any(re.match(exposed.told, anomaly, re.DOTALL) for anomaly in report.anomalies):
            return
    pytest.fail("nothing was noticed")
