"""Planted bugs of replication, by the rules C1 to C19 of the cluster's design; they were those of its model."""

from tests.support.rewritten import rewritten


def snapshots_know_no_producers() -> None:
    """C16: the snapshot of a partition in the journal has no producers."""
    from logstore.log.partition_state import PartitionState

    PartitionState.snapshot = rewritten(  # type: ignore[method-assign]
        PartitionState.snapshot, ("producers=self.producers.pack()", 'producers=b""')
    )
