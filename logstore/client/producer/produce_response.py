"""The answer to a produce request: for each of its batches a base offset, or the error of its partition."""

from collections.abc import Sequence
from dataclasses import dataclass

from logstore.client.metadata import decode
from logstore.client.producer.producer_batch import ProducerBatch
from logstore.errors import LogStoreError
from logstore.protocol.error_codes import error_of


@dataclass(frozen=True, slots=True)
class _Range:
    """``error_code`` and ``error`` of records that their partition has not taken; ``base_offset`` is None then."""

    partition: int
    base_offset: int | None
    count: int
    error_code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Body:
    ranges: tuple[_Range, ...]


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """``stored``: batches with their base offsets (-1: the store does not remember). ``failed``: errors by partition;
    nothing that was sent to such a partition is told of as stored.
    """

    stored: list[tuple[ProducerBatch, int]]
    failed: dict[int, LogStoreError]


def read_response(content: bytes, topic: str, batches: Sequence[ProducerBatch]) -> ProduceResponse:
    """LogStoreError when ``content`` is about other records than ``batches``."""
    ranges = decode(content, _Body).ranges
    if [(found.partition, found.count) for found in ranges] != [(b.partition, len(b.rows)) for b in batches]:
        raise LogStoreError(f"The store answered for other records than were sent to {topic!r}: {ranges}")
    failed: dict[int, LogStoreError] = {}
    for found in ranges:
        if found.error_code is not None:
            failed.setdefault(found.partition, error_of(found.error_code, found.error or ""))
    stored = [
        (batch, -1 if found.base_offset is None else found.base_offset)
        for batch, found in zip(batches, ranges, strict=True)
        if batch.partition not in failed
    ]
    return ProduceResponse(stored, failed)


def read_place(content: bytes) -> tuple[int, int]:
    """Partition and offset of the one record that was sent; -1 for what the store does not say."""
    ranges = decode(content, _Body).ranges
    if not ranges:
        return -1, -1
    return ranges[0].partition, -1 if ranges[0].base_offset is None else ranges[0].base_offset
