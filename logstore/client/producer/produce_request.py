"""One produce request: batches for partitions of one topic, their sequence numbers, and smaller requests cut from it.

Invariants:

- A partition that is sent separately keeps its sequence numbers, so that the store recognises a repetition.
- A part of a partition gets new sequence numbers, so it is cut only if nothing of the partition can be stored.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from logstore import errors
from logstore.client.metadata import TopicIdentity
from logstore.client.producer.producer_batch import ProducerBatch
from logstore.errors import LogStoreError
from logstore.protocol.messages.records import Producer as Identity

ARROW_STREAM = "application/vnd.apache.arrow.stream"
# Errors that refuse a whole request because of one partition, one batch or one record. Nothing of it was stored.
_OF_A_RECORD = (errors.RecordTooLargeError, errors.RequestTooLargeError)
_OF_A_BATCH = (*_OF_A_RECORD, errors.InvalidRecordError)
_OF_A_PARTITION = (
    *_OF_A_BATCH,
    errors.UnknownPartitionError,
    errors.OutOfOrderSequenceError,
    errors.DuplicateSequenceError,
    errors.InvalidProducerEpochError,
)


@dataclass(slots=True)
class ProduceRequest:
    """A request. In ``batches`` those of one partition are adjacent.

    ``in_doubt`` has the partitions whose records may be stored, ``refusals`` the errors of single partitions in the
    last try.
    """

    topic: TopicIdentity
    batches: list[ProducerBatch]
    identity: Identity | None = None
    sequences: dict[int, int] = field(default_factory=dict)
    in_doubt: set[int] = field(default_factory=set)
    refusals: dict[int, LogStoreError] = field(default_factory=dict)

    @classmethod
    def of(cls, topic: str, batches: Iterable[ProducerBatch]) -> "list[ProduceRequest]":
        """Return requests for ``batches``: one for each id that the topic had when their partitions were chosen."""
        by_id = groupby(batches, lambda batch: batch.chosen_among.topic_id)
        return [cls(TopicIdentity(topic, topic_id), list(found)) for topic_id, found in by_id]

    @property
    def partitions(self) -> dict[int, int]:
        """The number of records in each partition."""
        counts: dict[int, int] = {}
        for batch in self.batches:
            counts[batch.partition] = counts.get(batch.partition, 0) + len(batch.rows)
        return counts

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": ARROW_STREAM, "Logstore-Topic-Id": self.topic.topic_id}
        if self.identity is not None:
            headers |= {
                "Logstore-Producer-Id": str(self.identity.producer_id),
                "Logstore-Producer-Epoch": str(self.identity.producer_epoch),
                "Logstore-Base-Sequences": ",".join(
                    f"{partition}={self.sequences[partition]}" for partition in self.partitions
                ),
            }
        return headers

    def part(self, partitions: Collection[int]) -> "ProduceRequest":
        """Return a request for some of the partitions, which keep their sequence numbers."""
        batches = [batch for batch in self.batches if batch.partition in partitions]
        in_doubt = self.in_doubt.intersection(partitions)
        return ProduceRequest(self.topic, batches, self.identity, self.sequences, in_doubt)

    def by_error(self, error: LogStoreError) -> "list[tuple[ProduceRequest, LogStoreError]]":
        """Return the parts of the request, which failed with ``error``: each refused partition with its own refusal."""
        refused = [(self.part({partition}), refusal) for partition, refusal in self.refusals.items()]
        others = self.part(self.partitions.keys() - self.refusals.keys())
        return [*refused, (others, error)] if others.batches else refused

    def halves(self, error: LogStoreError, codec: str | None) -> "list[ProduceRequest]":
        """Return smaller requests, last first, to send after a refusal that may concern only few of the records; none
        if it concerns all of them.

        A request is cut between partitions first, then between batches. Only one that is too large is cut between
        records.
        """
        if not isinstance(error, _OF_A_PARTITION):
            return []
        batches = self.batches
        ends = [at for at, (a, b) in enumerate(pairwise(batches), 1) if a.partition != b.partition]
        if ends:
            middle = ends[len(ends) // 2]
            first, second = batches[:middle], batches[middle:]
            return [self.part({batch.partition for batch in half}) for half in (second, first)]
        if not isinstance(error, _OF_A_BATCH) or self.in_doubt:
            return []
        if len(batches) == 1 and (batches[0].joined or (isinstance(error, _OF_A_RECORD) and len(batches[0].rows) > 1)):
            batches = list(batches[0].halves(codec))
        if len(batches) == 1:
            return []
        middle = len(batches) // 2
        return [ProduceRequest(self.topic, batches[middle:]), ProduceRequest(self.topic, batches[:middle])]
