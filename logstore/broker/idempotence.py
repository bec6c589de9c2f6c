"""Idempotence: the batches of a request that are stored already, by sequence numbers (KIP-98) or by an idempotency key.

Invariant: nothing here changes state; it decides before an append. A request is claimed and appended in one step of the
event loop, so that the second of two tries finds the batches of the first, durable or on their way.
"""

from collections.abc import Sequence
from typing import NamedTuple

from logstore.broker.request_parts import refusal_of
from logstore.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidProducerRequestError,
    LogStoreError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceError,
    UnknownPartitionError,
)
from logstore.log.producer_state import BATCHES_REMEMBERED
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords, PartitionBatch, Records
from logstore.records.batch_identity import (
    NO_IDENTITY,
    BatchIdentity,
    IdempotencyKey,
    ProducerIdentity,
    RememberedBatch,
    next_sequence,
)

_OF_A_PARTITION = (OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError)


class Claim(NamedTuple):
    """A batch's identity, with the stored batch that it repeats, or the error that refuses it; else it is new."""

    identity: BatchIdentity = NO_IDENTITY
    stored: RememberedBatch | None = None
    error: LogStoreError | None = None

    @property
    def is_new(self) -> bool:
        return self.stored is None and self.error is None


_NEW = Claim()


def claim(
    topic: Topic, parts: Sequence[PartitionBatch], identity: ProducerIdentity | IdempotencyKey | None, acks: int
) -> list[Claim]:
    """A claim for each of ``parts``, which may have several batches of a partition, in order.

    An error is that of a partition, and of all its batches: UnknownPartitionError, QuarantinedError, UnknownTopicError,
    OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError. Raises errors of the whole request:
    InvalidProducerRequestError, IdempotencyKeyReusedError, ThrottledError.
    """
    refusals = [refusal_of(topic, part, acks) for part in parts]
    if identity is None:
        return [_NEW if why is None else Claim(error=why) for why in refusals]
    if isinstance(identity, ProducerIdentity):
        claims = _claim_sequences(topic, parts, identity)
    else:
        claims = _claim_key(topic, parts, identity)
    return [
        Claim(claimed.identity, error=why)
        if why is not None and (claimed.stored is None or isinstance(why, NotLeaderOrFollowerError))
        else claimed
        for claimed, why in zip(claims, refusals, strict=True)
    ]


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
    errors: dict[int, LogStoreError] = {}
    for part in parts:
        sequence, count = sequences[part.partition], part.batch.num_rows
        stored = None
        if part.partition not in begun:  # a later batch follows the earlier ones of this request
            try:
                partition_log = topic.partition(part.partition)
                stored = partition_log.state.producers.check(
                    identity.producer_id, identity.producer_epoch, sequence, count, partition_log.now_ms()
                )
            except UnknownPartitionError:
                pass  # ``refusal_of`` tells of it
            except _OF_A_PARTITION as error:
                errors[part.partition] = error
            if stored is None:
                begun.add(part.partition)
        claims.append(Claim(BatchIdentity(identity.producer_id, identity.producer_epoch, sequence), stored))
        sequences[part.partition] = next_sequence(sequence, count)
    if not errors:
        return claims
    return [
        Claim(claimed.identity, error=errors[part.partition]) if part.partition in errors else claimed
        for part, claimed in zip(parts, claims, strict=True)
    ]


def _claim_key(topic: Topic, parts: Sequence[PartitionBatch], key: IdempotencyKey) -> list[Claim]:
    batches: dict[int, list[tuple[int, int]]] = {}
    for part in parts:
        if part.partition < len(topic.partitions):
            batches.setdefault(part.partition, []).append((key.fingerprint(part.rows), part.batch.num_rows))
    stored: dict[int, list[RememberedBatch]] = {}
    for partition_log in topic.partitions:
        partition = partition_log.partition
        if partition in batches or key.hash in partition_log.state.idempotency_keys:
            known = partition_log.state.idempotency_keys.check(
                key.hash, batches.get(partition, ()), partition_log.now_ms()
            )
            stored[partition] = known
    new = {partition: len(wanted) - len(stored[partition]) for partition, wanted in batches.items()}
    if any(new.values()):
        for partition_log in topic.partitions:
            partition_log.state.idempotency_keys.require_one_secret(key.epoch, partition_log.now_ms())
    for partition, count in new.items():
        if count:
            partition_log = topic.partition(partition)
            partition_log.state.idempotency_keys.require_room(count, partition_log.now_ms())
    claims = []
    taken = dict.fromkeys(batches, 0)
    for part in parts:
        if part.partition not in taken:
            claims.append(_NEW)  # there is no such partition: ``refusal_of`` tells of it
            continue
        at = taken[part.partition]
        taken[part.partition] += 1
        known, fingerprint = stored[part.partition], batches[part.partition][at][0]
        claims.append(Claim(BatchIdentity(key.hash, key.epoch, fingerprint), known[at] if at < len(known) else None))
    return claims


def _listed(partitions: dict[int, int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
