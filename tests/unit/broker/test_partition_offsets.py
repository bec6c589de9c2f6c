"""A broker knows the end of a partition only from the partition's leader."""

from uuid import uuid4

import pytest

from logstore.broker.elsewhere.partition_offsets import PartitionOffsets, known_end
from logstore.clock import SystemClock
from logstore.errors import LeaderNotAvailableError
from logstore.log.in_sync_replicas import InSyncReplicas
from logstore.log.partition_log import PartitionLog


def follower_at(offset: int) -> PartitionLog:
    log = PartitionLog("t", uuid4(), 0, clock=SystemClock(), producer_id_expiration_ms=1)
    log.resign(1)
    log.reset(offset)
    return log


def test_a_leader_that_was_elected_just_now_reports_no_end():
    """Elect a leader: its predecessor may have shown more than the high watermark that it knows (C9)."""
    log = follower_at(3)
    log._high_watermark.offset = 2  # the last that the previous leader reported
    in_sync = InSyncReplicas(1, (1, 2), (1, 2), min_in_sync=lambda: 1, now=0.0)
    log.become_leader(2, in_sync)
    assert log.is_leader
    assert known_end(log, {}) is None
    with pytest.raises(LeaderNotAvailableError):
        PartitionOffsets.of(log, {}).require_known(log)
    log.require_leader().fetched(2, 1, 3, 0.0)
    assert known_end(log, {}) == PartitionOffsets.of(log, {}).high_watermark == 3


def test_a_follower_has_the_word_of_its_leader_or_none():
    log = follower_at(3)
    key = (log.topic_id, log.partition)
    assert known_end(log, {}) is None
    assert known_end(log, {key: PartitionOffsets()}) is None
    assert known_end(log, {key: PartitionOffsets(1, 0, 3, 5, 5, 5)}) == 5
