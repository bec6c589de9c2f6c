"""Which batches of a request are stored already (KIP-98; for any client, an idempotency key), decided before an append.

Invariant: nothing here changes state. A request is claimed and appended in one step of the event loop, so that of two
tries of it the second one finds the batches of the first, durable or on their way.
"""

from collections.abc import Sequence
from typing import NamedTuple

from logstore.errors import InvalidProducerRequestError
from logstore.log.producer_state import BATCHES_REMEMBERED
from logstore.log.recent_batches import KnownBatch
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords, PartitionBatch, Records
from logstore.records.batch_identity import BatchIdentity, IdempotencyKey, ProducerIdentity, next_sequence


class Claim(NamedTuple):
    """What a batch is called, and the stored one that it repeats; None: it is new."""

    identity: BatchIdentity
    stored: KnownBatch | None


def claim(topic: Topic, parts: Sequence[PartitionBatch], identity: ProducerIdentity | IdempotencyKey) -> list[Claim]:
    """A claim for each of ``parts``, which may have several batches of a partition, in order.

    Raises InvalidProducerRequestError, OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError;
    IdempotencyKeyReusedError, ThrottledError.
    """
    if isinstance(identity, ProducerIdentity):
        return _claim_sequences(topic, parts, identity)
    return _claim_key(topic, parts, identity)


def require_partitions_named(records: Records, partition: int | None) -> None:
    """Sequence numbers count by partition: InvalidProducerRequestError if a producer leaves it open for any record."""
    if partition is not None or not isinstance(records, DecodedRecords):
        return
    if records.partitions is None or (records.partitions < 0).any():
        raise InvalidProducerRequestError(
            "A request with Logstore-Producer-Id must say where each record goes: post to a partition, or give every "
            "record its partition."
        )


def _claim_sequences(topic: Topic, parts: Sequence[PartitionBatch], identity: ProducerIdentity) -> list[Claim]:
    sequences = dict(identity.base_sequences)
    by_partition: dict[int, int] = {}
    for part in parts:
        by_partition[part.partition] = by_partition.get(part.partition, 0) + 1
    if by_partition.keys() != sequences.keys():
        raise InvalidProducerRequestError(
            f"Logstore-Base-Sequences names partitions {_listed(sequences)}, and the records go to "
            f"{_listed(by_partition)}: give one base sequence for each partition of the request."
        )
    if max(by_partition.values()) > BATCHES_REMEMBERED:
        raise InvalidProducerRequestError(
            f"A request of an idempotent producer may have {BATCHES_REMEMBERED} batches for a partition, as many as "
            "are remembered: send fewer, larger ones."
        )
    claims = []
    begun = set()
    for part in parts:
        partition_log = topic.partition(part.partition)
        sequence, count = sequences[part.partition], part.batch.num_rows
        stored = None
        if part.partition not in begun:  # else it follows what this request stores there
            stored = partition_log.producers.check(
                identity.producer_id, identity.producer_epoch, sequence, count, partition_log.now_ms()
            )
            if stored is None:
                begun.add(part.partition)
        claims.append(Claim(BatchIdentity(identity.producer_id, identity.producer_epoch, sequence), stored))
        sequences[part.partition] = next_sequence(sequence, count)
    return claims


def _claim_key(topic: Topic, parts: Sequence[PartitionBatch], key: IdempotencyKey) -> list[Claim]:
    batches: dict[int, list[tuple[int, int]]] = {}
    for part in parts:
        batches.setdefault(part.partition, []).append((key.fingerprint(part.rows), part.batch.num_rows))
    stored: dict[int, list[KnownBatch]] = {}
    for partition_log in topic.partitions:
        partition = partition_log.partition
        if partition in batches or key.hash in partition_log.idempotency_keys:
            known = partition_log.idempotency_keys.check(key.hash, batches.get(partition, ()), partition_log.now_ms())
            stored[partition] = known
    new = {partition: len(wanted) - len(stored[partition]) for partition, wanted in batches.items()}
    if any(new.values()):
        for partition_log in topic.partitions:
            partition_log.idempotency_keys.require_one_secret(key.epoch, partition_log.now_ms())
    for partition, count in new.items():
        if count:
            partition_log = topic.partition(partition)
            partition_log.idempotency_keys.require_room(count, partition_log.now_ms())
    claims = []
    taken = dict.fromkeys(batches, 0)
    for part in parts:
        at = taken[part.partition]
        taken[part.partition] += 1
        known, fingerprint = stored[part.partition], batches[part.partition][at][0]
        claims.append(Claim(BatchIdentity(key.hash, key.epoch, fingerprint), known[at] if at < len(known) else None))
    return claims


def _listed(partitions: dict[int, int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
