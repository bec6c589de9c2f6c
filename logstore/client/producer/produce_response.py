"""The response to a produce request: for each of its batches a base offset, or the error of its partition."""

from collections.abc import Sequence
from dataclasses import dataclass

from logstore.client.metadata import decode
from logstore.client.producer.producer_batch import ProducerBatch
from logstore.errors import LogStoreError
from logstore.protocol.error_codes import error_of
from logstore.protocol.messages.records import ProducedRange, ProducedRanges


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """``stored`` has batches with their base offsets (-1: the store does not remember), ``failed`` the errors by
    partition. Nothing that was sent to a failed partition counts as stored.
    """

    stored: list[tuple[ProducerBatch, int]]
    failed: dict[int, LogStoreError]


def failure_of(found: ProducedRange) -> LogStoreError | None:
    """Return the reason why the partition has not accepted these records; None if it has."""
    return None if found.error_code is None else error_of(found.error_code, found.error or "")


def read_ranges(content: bytes) -> tuple[ProducedRange, ...]:
    """Return the ranges in a response to records in columns."""
    return decode(content, ProducedRanges).ranges


def read_response(content: bytes, topic: str, batches: Sequence[ProducerBatch]) -> ProduceResponse:
    """Read a response. Raises LogStoreError if ``content`` is about other records than ``batches``."""
    ranges = read_ranges(content)
    if [(found.partition, found.count) for found in ranges] != [(b.partition, len(b.rows)) for b in batches]:
        raise LogStoreError(f"The store answered for other records than were sent to {topic!r}: {ranges}")
    failed: dict[int, LogStoreError] = {}
    for found in ranges:
        if (failure := failure_of(found)) is not None:
            failed.setdefault(found.partition, failure)
    stored = [
        (batch, -1 if found.base_offset is None else found.base_offset)
        for batch, found in zip(batches, ranges, strict=True)
        if batch.partition not in failed
    ]
    return ProduceResponse(stored, failed)


def read_place(content: bytes) -> tuple[int, int]:
    """Return partition and offset of the one record that was sent; -1 for what the store does not report."""
    ranges = read_ranges(content)
    if not ranges:
        return -1, -1
    return ranges[0].partition, -1 if ranges[0].base_offset is None else ranges[0].base_offset
