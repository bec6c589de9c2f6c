"""The program's callbacks for a rebalance."""

from collections.abc import Sequence

from logstore.client.metadata import TopicPartition


class ConsumerRebalanceListener:
    """A base class for a listener that ``Consumer.subscribe`` takes. It is notified of partitions that come and go.

    All methods are called in the thread of the consumer, inside ``poll``, and at the end inside ``close``,
    ``unsubscribe`` or ``assign``. They may use the consumer, but must not poll it. An exception of a method is raised
    from that call.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle the new partitions, possibly none, at the end of every rebalance. ``seek`` works here."""

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions before they are given up: the consumer still owns them, so ``commit`` works."""

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that are already gone and may be another member's: they can no longer be committed.

        As in Kafka, this calls ``on_partitions_revoked`` unless it is overridden.
        """
        self.on_partitions_revoked(partitions)
