"""The result of a produce request: offsets or an error for each partition, as in Kafka's Produce response."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from logstore.errors import LogStoreError

#: The base offset of records that were not stored.
NO_OFFSET = -1


@dataclass(slots=True)  # not frozen, as that takes four times as long: a request may have a thousand of them
class PartitionResponse:
    """Records of a request that got consecutive offsets in one partition, or none because of ``error``.

    ``rows`` are their positions in the request, in offset order (None: all of them, 0 to count - 1). ``base_offset`` is
    NO_OFFSET with an error.
    """

    partition: int
    base_offset: int
    count: int
    rows: np.ndarray | None
    error: LogStoreError | None = None


class Places(NamedTuple):
    """Partition (int32) and offset (int64) of each record, in the order of the request; NO_OFFSET if it has none."""

    partitions: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """``partitions`` may name one several times if the request had several batches of it; then in their order.

    ``replayed`` is true if everything was already stored. ``throttle_ms`` is how long the client should wait before its
    next request, because of a quota.
    """

    partitions: tuple[PartitionResponse, ...]
    count: int
    replayed: bool = False
    throttle_ms: int = 0

    def places(self) -> Places:
        """Return the place of each record."""
        partitions = np.empty(self.count, np.int32)
        offsets = np.empty(self.count, np.int64)
        for found in self.partitions:
            rows = slice(None) if found.rows is None else found.rows
            partitions[rows] = found.partition
            if found.error is None:
                offsets[rows] = np.arange(found.base_offset, found.base_offset + found.count)
            else:
                offsets[rows] = NO_OFFSET
        return Places(partitions, offsets)

    def errors(self) -> dict[int, LogStoreError]:
        """Return the error of each partition that failed."""
        return {found.partition: found.error for found in self.partitions if found.error is not None}

    def raise_common_error(self) -> None:
        """Raise the first error if nothing is stored and all partitions failed by the same kind of error.

        A response for the request as a whole has this error.
        """
        errors = [found.error for found in self.partitions if found.error is not None]
        if errors and len(errors) == len(self.partitions) and len({type(error) for error in errors}) == 1:
            raise errors[0]

    def require_stored(self) -> None:
        """Raise the error of the first partition that failed."""
        for found in self.partitions:
            if found.error is not None:
                raise found.error
