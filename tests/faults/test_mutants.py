"""The bench catches each server that is broken on purpose, and finds nothing wrong with the whole one.

``make test`` runs one, ``make test-all`` a few, ``LOGSTORE_TORTURE=1`` all of them.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.bench import mutants
from tests.faults.bench.bench import Bench
from tests.faults.bench.mutants import EXPOSED_BY, Exposure
from tests.faults.bench.schedule import Fault
from tests.faults.bench.torture import load_of
from tests.support.torture import TORTURE

pytestmark = [pytest.mark.system, pytest.mark.long]

#: One for each way to lose acknowledged or read records, two for groups, three for Kafka's protocol. The others
#: resemble one of them, or have their own tests.
FEW = (
    mutants.ack_before_fsync,
    mutants.skip_seal_check,
    mutants.no_entry_sync,
    mutants.hw_is_leo,
    mutants.free_journal_before_commit,
    mutants.accept_commits_of_former_members,
    mutants.answer_before_the_group_is_recorded,
    mutants.acknowledge_batches_unsynced,
    mutants.store_repeated_batches,
    mutants.serve_batches_without_their_place,
)
MUTANTS = tuple(EXPOSED_BY) if TORTURE else FEW


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(tmp_path: Path, mutant: Callable[[], None]) -> None:
    exposed = EXPOSED_BY[mutant]
    told = re.compile(exposed.told, re.DOTALL)
    # On a machine that is slow for a moment a fault may strike where it does no harm.
    for seed in (1, 2, 3):
        (directory := tmp_path / str(seed)).mkdir()
        report = Bench(directory, seed, load_of(exposed), mutant=mutant.__name__).run(exposed.faults)
        print(report)
        if any(told.match(anomaly) for anomaly in report.anomalies):
            return
    pytest.fail("nothing was noticed")


def test_the_same_faults_do_no_harm_to_the_server_itself(tmp_path: Path) -> None:
    faults: list[Fault] = []
    for mutant in MUTANTS:
        first = EXPOSED_BY[mutant].faults[0]
        # Only the mutant itself leads to such a point.
        faults += [] if first in faults or first is mutants.POWER_CUT_WHEN_SHOWN else [first]
    grouped = any(EXPOSED_BY[mutant].grouped for mutant in MUTANTS)
    kafka = any(EXPOSED_BY[mutant].kafka for mutant in MUTANTS)
    exposed = Exposure(tuple(faults), "", observed=True, grouped=grouped, kafka=kafka)
    report = Bench(tmp_path, 1, load_of(exposed)).run(faults)
    print(report)
    assert not report.anomalies
    assert all(report.faults[fault.kind] for fault in faults)
