"""Planted bugs of replication, by the rules C1 to C19 of the cluster's design. They come from the replication model."""

from typing import Any

from msgspec.structs import replace

from tests.support.rewritten import rewritten

_BOTH = "for broker in self.committed if self.proposed is None else {*self.committed, *self.proposed}:"


def only_the_former_isr_counts() -> None:
    """C3: let the high watermark pass replicas that are about to join."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    InSyncReplicas.high_watermark = rewritten(  # type: ignore[method-assign]
        InSyncReplicas.high_watermark, (_BOTH, "for broker in self.committed:")
    )


def only_the_proposed_isr_counts() -> None:
    """C3: let the high watermark pass replicas that are about to leave."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    InSyncReplicas.high_watermark = rewritten(  # type: ignore[method-assign]
        InSyncReplicas.high_watermark, (_BOTH, "for broker in self.proposed or self.committed:")
    )


def fetches_of_other_epochs_count() -> None:
    """C3: count a follower's position whatever leader epoch its fetch names."""
    from logstore.replication.fetch_session import _Row

    def all_that_is_led(self: Any) -> None:
        self.log.require_leader()

    _Row.require_answerable = all_that_is_led  # type: ignore[assignment, method-assign]


def a_former_leader_moves_the_high_watermark() -> None:
    """C3: let a former leader move its high watermark when queued appends become durable."""
    from logstore.log.leadership import Leadership

    Leadership.end = Leadership.fail  # type: ignore[method-assign, assignment]


def join_below_the_start_of_the_epoch() -> None:
    """C4: let a replica join the ISR without the records that the leader had when its epoch began."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    InSyncReplicas.may_join = rewritten(  # type: ignore[method-assign]
        InSyncReplicas.may_join, ("max(high_watermark, epoch_start)", "high_watermark")
    )


def write_over_any_state() -> None:
    """C5: let a leader write its ISR over whatever state ZooKeeper now has."""
    from logstore.cluster.alter_partition_manager import _Change

    def row(self: Any, view: Any, document: Any, leader: int) -> Any:
        del view, leader
        known = document.partitions[self.partition]
        return replace(known, isr=tuple(one for one in self.isr if one in known.replicas), recovering=False)

    _Change.row = row  # type: ignore[method-assign]


def compare_no_epochs() -> None:
    """C7: believe a follower's position unless it is beyond the leader's end."""
    from logstore.replication import fetch_session

    def within(log: Any, position: int, last_epoch: int) -> tuple[int, int] | None:
        return None if position <= log.log_end_offset else (last_epoch, log.log_end_offset)

    fetch_session.diverged_at = within


def truncate_to_the_high_watermark() -> None:
    """C7: truncate a follower to its high watermark, which it learns late."""
    from logstore.replication import replica_fetcher

    replica_fetcher.truncation_end = lambda log, _, __: min(log.high_watermark, log.log_end_offset)


def take_stale_answers() -> None:
    """C7: apply a response although the follower has asked for something else since."""
    from logstore.replication.replica_fetcher import ReplicaFetcher

    ReplicaFetcher._apply = rewritten(  # type: ignore[method-assign]
        ReplicaFetcher._apply,
        ("followed is None or not followed.is_as_asked", "followed is None or followed.log.is_leader"),
        ("if not followed.is_as_asked", "if followed.log.is_leader"),
    )


def adopt_no_last_roll() -> None:
    """C10: do not look for the last roll of the previous leader in the table."""
    from logstore.log.table_follower import TableFollower

    TableFollower._adopt = lambda *_: None  # type: ignore[method-assign, assignment]


def join_for_what_it_was() -> None:
    """C12: let a replica join although it was registered again after it reported its position."""
    from logstore.cluster.alter_partition_manager import _Change

    _Change.joining = property(lambda _: [])  # type: ignore[assignment]


def append_with_too_few() -> None:
    """C13: accept appends with acks=all while fewer replicas than min.insync.replicas are in sync."""
    from logstore.log.leadership import Leadership

    Leadership.refusal = lambda *_: None  # type: ignore[method-assign, assignment]


def know_no_producers_at_the_table() -> None:
    """C16: forget the producers of the table's records when a log begins at the table."""
    from logstore.log.partition_log_state import PartitionLogState

    PartitionLogState.replace = rewritten(  # type: ignore[method-assign]
        PartitionLogState.replace, ("newest.producers if newest else ()", "()")
    )


def snapshots_know_no_producers() -> None:
    """C16: leave the producers out of a partition's snapshot in the journal."""
    from logstore.log.partition_log_state import PartitionLogState

    PartitionLogState.snapshot = rewritten(  # type: ignore[method-assign]
        PartitionLogState.snapshot, ("producers=self.producers.pack()", 'producers=b""')
    )


def count_truncated_batches() -> None:
    """C16: count a truncated batch as stored when it is sent again."""
    from logstore.log.partition_log_state import PartitionLogState

    PartitionLogState.truncate = rewritten(  # type: ignore[method-assign]
        PartitionLogState.truncate, ("self.producers.forget_from(offset)", "pass")
    )


def remember_truncated_epochs() -> None:
    """C16: keep the leader epochs of truncated records."""
    from logstore.log.leader_epochs import LeaderEpochs

    LeaderEpochs.truncate = lambda *_: None  # type: ignore[method-assign, assignment]
