"""Planted bugs of replication, by the rules C1 to C19 of the cluster's design; they were those of its model."""

from typing import Any

from msgspec.structs import replace

from tests.support.rewritten import rewritten

_BOTH = "for broker in self.committed if self.proposed is None else {*self.committed, *self.proposed}:"


def only_the_former_isr_counts() -> None:
    """C3: the high watermark passes replicas that are about to join."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    InSyncReplicas.high_watermark = rewritten(  # type: ignore[method-assign]
        InSyncReplicas.high_watermark, (_BOTH, "for broker in self.committed:")
    )


def only_the_proposed_isr_counts() -> None:
    """C3: the high watermark passes replicas that are about to leave."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    InSyncReplicas.high_watermark = rewritten(  # type: ignore[method-assign]
        InSyncReplicas.high_watermark, (_BOTH, "for broker in self.proposed or self.committed:")
    )


def fetches_of_other_epochs_count() -> None:
    """C3: a follower's position counts in whatever epoch it was told."""
    from logstore.replication.fetch_session import _Row

    def all_that_is_led(self: Any) -> None:
        self.log.require_leader()

    _Row.require_answerable = all_that_is_led  # type: ignore[assignment, method-assign]


def a_former_leader_moves_the_high_watermark() -> None:
    """C3: what a leader has queued is stored when it leads no more."""
    from logstore.log.leadership import Leadership

    Leadership.end = Leadership.fail  # type: ignore[method-assign, assignment]


def join_below_the_start_of_the_epoch() -> None:
    """C4: a replica joins the ISR without the records that the leader had when its epoch began."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    InSyncReplicas.may_join = rewritten(  # type: ignore[method-assign]
        InSyncReplicas.may_join, ("max(high_watermark, epoch_start)", "high_watermark")
    )


def write_over_any_state() -> None:
    """C5: a leader writes its ISR over whatever state ZooKeeper has by now."""
    from logstore.cluster.partition_changes import _Change

    def row(self: Any, view: Any, document: Any, leader: int) -> Any:
        del view, leader
        known = document.partitions[self.partition]
        return replace(known, isr=tuple(one for one in self.isr if one in known.replicas), recovering=False)

    _Change.row = row  # type: ignore[method-assign]


def compare_no_epochs() -> None:
    """C7: a follower's position is believed unless it lies beyond the leader's end."""
    from logstore.replication import fetch_session

    def within(log: Any, position: int, last_epoch: int) -> tuple[int, int] | None:
        return None if position <= log.log_end_offset else (last_epoch, log.log_end_offset)

    fetch_session.diverged_at = within


def truncate_to_the_high_watermark() -> None:
    """C7: a follower drops what is above its high watermark, which it learns late."""
    from logstore.replication import replica_fetcher

    replica_fetcher.truncation_end = lambda log, _, __: min(log.high_watermark, log.log_end_offset)


def take_stale_answers() -> None:
    """C7: an answer counts whatever has been asked since."""
    from logstore.replication.replica_fetcher import ReplicaFetcher

    ReplicaFetcher._apply = rewritten(  # type: ignore[method-assign]
        ReplicaFetcher._apply,
        ("followed is None or not followed.is_as_asked", "followed is None or followed.log.is_leader"),
        ("if not followed.is_as_asked", "if followed.log.is_leader"),
    )


def adopt_no_last_roll() -> None:
    """C10: a new leader does not look for what the leader before has put into the table."""
    from logstore.log.table_follower import TableFollower

    TableFollower._adopt = lambda *_: None  # type: ignore[method-assign, assignment]


def join_for_what_it_was() -> None:
    """C12: a replica joins with the registration that it had when its position was told."""
    from logstore.cluster.partition_changes import _Change

    _Change.joining = property(lambda _: [])  # type: ignore[assignment]


def append_with_too_few() -> None:
    """C13: appends with acks=all are taken when fewer replicas than min.insync.replicas are in sync."""
    from logstore.log.leadership import Leadership

    Leadership.refusal = lambda *_: None  # type: ignore[method-assign, assignment]


def know_no_producers_at_the_table() -> None:
    """C16: a log that begins at the table does not know the producers of what is in it."""
    from logstore.log.partition_state import PartitionState

    PartitionState.replace = rewritten(  # type: ignore[method-assign]
        PartitionState.replace, ("newest.producers if newest else ()", "()")
    )


def snapshots_know_no_producers() -> None:
    """C16: the snapshot of a partition in the journal has no producers."""
    from logstore.log.partition_state import PartitionState

    PartitionState.snapshot = rewritten(  # type: ignore[method-assign]
        PartitionState.snapshot, ("producers=self.producers.pack()", 'producers=b""')
    )


def count_truncated_batches() -> None:
    """C16: a batch that was truncated counts as stored when it comes again."""
    from logstore.log.partition_state import PartitionState

    PartitionState.truncate = rewritten(  # type: ignore[method-assign]
        PartitionState.truncate, ("self.producers.forget_from(offset)", "pass")
    )


def remember_truncated_epochs() -> None:
    """C16: the leader epochs of truncated records stay."""
    from logstore.log.leader_epochs import LeaderEpochs

    LeaderEpochs.truncate = lambda *_: None  # type: ignore[method-assign, assignment]
