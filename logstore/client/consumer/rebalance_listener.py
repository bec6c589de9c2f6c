"""A program's own part in a rebalance."""

from collections.abc import Sequence

from logstore.client.metadata import TopicPartition


class ConsumerRebalanceListener:
    """Derive from it, and give an object to ``Consumer.subscribe``: it is told which partitions come and go.

    All methods are called in the thread of the consumer, inside ``poll``, and at the end inside ``close``,
    ``unsubscribe`` or ``assign``. They may use the consumer, but not poll it. What one raises comes out of that call.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Called at the end of every rebalance with what is new, which may be nothing. ``seek`` works here."""

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Called before partitions are given up: they are still the consumer's own, and ``commit`` counts."""

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Called when partitions are gone already, and may be another member's: they can no longer be committed.

        As in Kafka, this calls ``on_partitions_revoked`` unless it is overridden.
        """
        self.on_partitions_revoked(partitions)
