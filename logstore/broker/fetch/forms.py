"""The partitions of a fetch, its result, and the forms in which records are fetched."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from logstore.broker.admission import Reservation
from logstore.errors import LogStoreError
from logstore.limits import FETCH_BYTES_MAX
from logstore.log.isolation import Isolation
from logstore.log.log_reader import FetchResult
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic

T = TypeVar("T")


class FetchPartition(NamedTuple):
    """A partition to fetch from ``offset`` on. ``topic_id`` is written as in responses; None means the topic that has
    the name now. ``max_bytes`` bounds its records in addition to the limits of the fetch.
    """

    topic: str
    partition: int
    offset: int
    topic_id: str | None = None
    max_bytes: int = FETCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Fetched(Generic[T]):
    """``answers`` has records or an error by the partition's place in the request, and nothing for partitions without
    news or beyond ``max_bytes``. ``reservation`` is the response's share of the bytes in flight; the caller releases
    it.
    """

    answers: dict[int, FetchResult[T] | LogStoreError]
    reservation: Reservation
    #: How long the client should wait before its next request, because of a quota.
    throttle_ms: int = 0


class Read(Protocol[T]):
    async def __call__(
        self, topic: Topic, log: PartitionLog, offset: int, *, max_bytes: int, min_bytes: int, isolation: Isolation
    ) -> FetchResult[T]: ...


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """A form of records: how they are read, and how many bytes they hold. ``read_remote`` makes the form and the number
    of records from another broker's response; without it the form is only for partitions that are led here.
    """

    read: Read[T]
    read_remote: Callable[[pa.Buffer, int], tuple[T, int]] | None
    held_bytes: Callable[[FetchResult[T]], int]
