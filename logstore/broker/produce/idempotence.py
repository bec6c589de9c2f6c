"""Idempotence: finds the batches of a request that are already stored, by sequence numbers (KIP-98) or by an
idempotency key.

Invariant: nothing here changes state; it decides before an append. A request is claimed and appended in one step of the
event loop, so that the second of two tries finds the batches of the first, durable or on their way.

Leaders claim batches, and know each by its ``BatchIdentity`` only. The broker that a client has asked makes the
identities of the request (``identities_of``).
"""

from collections.abc import Sequence
from typing import NamedTuple

from logstore.broker.produce.request_parts import refusal_of
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

#: Errors of a leader's check against its state of a producer.
OF_A_PARTITION = (OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError)


class Claim(NamedTuple):
    """A batch's identity, with the stored batch that it repeats, or the error that refuses it; otherwise it is new."""

    identity: BatchIdentity = NO_IDENTITY
    stored: RememberedBatch | None = None
    error: LogStoreError | None = None

    @property
    def is_new(self) -> bool:
        return self.stored is None and self.error is None


_NEW = Claim()


def identities_of(
    parts: Sequence[PartitionBatch], identity: ProducerIdentity | IdempotencyKey | None
) -> list[BatchIdentity] | None:
    """Return an identity for each of a request's ``parts``; None if the request has none.

    Raises InvalidProducerRequestError.
    """
    if identity is None:
        return None
    if isinstance(identity, ProducerIdentity):
        return _sequences_of(parts, identity)
    return [BatchIdentity(identity.hash, identity.epoch, identity.fingerprint(part.rows)) for part in parts]


def claim(
    topic: Topic, parts: Sequence[PartitionBatch], identities: Sequence[BatchIdentity] | None, acks: int
) -> list[Claim]:
    """Return a claim for each of ``parts``, which may have several batches of a partition, in order. ``identities`` are
    those of one key, or of producers; a part without a producer has none.

    An error belongs to a partition, and to all its batches: UnknownPartitionError, QuarantinedError, UnknownTopicError,
    NotLeaderOrFollowerError, NotEnoughReplicasError, OutOfOrderSequenceError, DuplicateSequenceError,
    InvalidProducerEpochError. Raises errors of the whole request: IdempotencyKeyReusedError, ThrottledError.
    """
    refusals = [refusal_of(topic, part, acks) for part in parts]
    if identities is None:
        return [_NEW if why is None else Claim(error=why) for why in refusals]
    claims = (_claim_key if identities[0].is_keys else _claim_sequences)(topic, parts, identities)
    return [
        Claim(claimed.identity, error=why)
        if why is not None and (claimed.stored is None or isinstance(why, NotLeaderOrFollowerError))
        else claimed
        for claimed, why in zip(claims, refusals, strict=True)
    ]


def require_partitions_named(records: Records, partition: int | None) -> None:
    """Raise InvalidProducerRequestError if a producer leaves the partition of a record open, because sequence numbers
    count by partition.
    """
    if partition is not None or not isinstance(records, DecodedRecords):
        return
    if records.partitions is None or (records.partitions < 0).any():
        raise InvalidProducerRequestError(
            "A request with Logstore-Producer-Id must say where each record goes: post to a partition, or give every "
            "record its partition."
        )


def _sequences_of(parts: Sequence[PartitionBatch], identity: ProducerIdentity) -> list[BatchIdentity]:
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
    identities = []
    for part in parts:
        sequence = sequences[part.partition]
        identities.append(BatchIdentity(identity.producer_id, identity.producer_epoch, sequence))
        sequences[part.partition] = next_sequence(sequence, part.batch.num_rows)
    return identities


def _claim_sequences(topic: Topic, parts: Sequence[PartitionBatch], identities: Sequence[BatchIdentity]) -> list[Claim]:
    claims = []
    begun = set()
    errors: dict[int, LogStoreError] = {}
    for part, identity in zip(parts, identities, strict=True):
        stored = None
        if (
            identity.is_producers and part.partition not in begun
        ):  # a later batch follows the earlier ones of this request
            try:
                partition_log = topic.partition(part.partition)
                stored = partition_log.state.producers.check(*identity, part.batch.num_rows, partition_log.now_ms())
            except UnknownPartitionError:
                pass  # ``refusal_of`` reports it
            except OF_A_PARTITION as error:
                errors[part.partition] = error
            if stored is None:
                begun.add(part.partition)
        claims.append(Claim(identity, stored))
    if not errors:
        return claims
    return [
        Claim(claimed.identity, error=errors[part.partition]) if part.partition in errors else claimed
        for part, claimed in zip(parts, claims, strict=True)
    ]


def _claim_key(topic: Topic, parts: Sequence[PartitionBatch], identities: Sequence[BatchIdentity]) -> list[Claim]:
    key, epoch, _ = identities[0]
    batches: dict[int, list[tuple[int, int]]] = {}
    for part, identity in zip(parts, identities, strict=True):
        if part.partition < len(topic.partitions):
            batches.setdefault(part.partition, []).append((identity.sequence, part.batch.num_rows))
    stored: dict[int, list[RememberedBatch]] = {}
    # The other partitions of a request for several leaders are claimed by their leaders.
    led = [partition_log for partition_log in topic.partitions if partition_log.is_leader]
    for partition_log in topic.partitions:
        partition = partition_log.partition
        keys = partition_log.state.idempotency_keys
        if partition in batches or (key in keys and partition_log.is_leader):
            stored[partition] = keys.check(key, batches.get(partition, ()))
    new = {partition: len(wanted) - len(stored[partition]) for partition, wanted in batches.items()}
    if any(new.values()):
        for partition_log in led:
            partition_log.state.idempotency_keys.require_one_secret(epoch)
    for partition, count in new.items():
        if count:
            topic.partition(partition).state.idempotency_keys.require_room(count)
    claims = []
    taken = dict.fromkeys(batches, 0)
    for part, identity in zip(parts, identities, strict=True):
        if part.partition not in taken:
            claims.append(_NEW)  # there is no such partition: ``refusal_of`` reports it
            continue
        at = taken[part.partition]
        taken[part.partition] += 1
        known = stored[part.partition]
        claims.append(Claim(identity, known[at] if at < len(known) else None))
    return claims


def _listed(partitions: dict[int, int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
