"""A cluster of three brokers in one process, by a seed, on a network and a ZooKeeper in memory."""

import json
import os
import subprocess
import sys

import pytest

from logstore.log.in_sync_replicas import InSyncReplicas
from tests.simulation.cluster_story import FAULTS, tell


@pytest.mark.parametrize("fault", FAULTS)
def test_after_each_fault_nothing_acknowledged_is_lost_and_all_replicas_are_in_sync(fault: str):
    outcome = tell(3, fault)
    assert not outcome.anomalies
    assert outcome.acknowledged >= 100


def test_another_broker_leads_soon_after_the_leader_was_killed():
    outcome = tell(5, "kill")
    assert outcome.fault_seconds < 8, "a session of 4 s has ended, and another broker was elected"
    assert outcome.return_seconds < 5


@pytest.mark.parametrize("fault", ["cut_off", "answers_lost"])
def test_a_seed_tells_one_story(fault: str):
    assert tell(7, fault).digest == tell(7, fault).digest
    assert tell(7, fault).digest != tell(8, fault).digest


def test_a_leader_that_acknowledges_alone_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(InSyncReplicas, "high_watermark", lambda _, log_end_offset: log_end_offset)
    assert any("was acknowledged at" in anomaly for anomaly in tell(0, "cut_off").anomalies)


@pytest.mark.system
def test_no_order_of_a_set_gets_into_a_story():
    """Two processes with other hashes of texts tell the same."""
    digests = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation.cluster_story", "11", "kill"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        digests.append(json.loads(told.stdout)["digest"])
    assert digests[0] == digests[1]
