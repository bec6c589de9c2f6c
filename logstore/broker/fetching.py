"""Fetching: records of the store's topics from an offset on, and offsets by time."""

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from logstore.journal.journal import Journal
from logstore.log.log_reader import FetchResult, LogReader
from logstore.log.topic import Topic
from logstore.observability import FETCHED_BYTES, FETCHED_RECORDS
from logstore.records.stored_batch import StoredBatch

T = TypeVar("T")


class Fetching:
    def __init__(self, journal: Journal, refresh: Callable[[Topic], Awaitable[None]]) -> None:
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="read")
        self._reader = LogReader(journal, self._threads, refresh)

    def close(self) -> None:
        self._threads.shutdown()

    async def fetch(
        self, topic: Topic, partition: int, offset: int, *, max_bytes: int, min_bytes: int, max_wait_ms: int
    ) -> FetchResult[pa.Table]:
        """Records from ``offset`` on; see ``LogReader.fetch``."""
        return _counted(
            topic,
            await self._reader.fetch(
                topic, partition, offset, max_bytes=max_bytes, min_bytes=min_bytes, max_wait_s=max_wait_ms / 1000
            ),
        )

    async def fetch_stored(
        self, topic: Topic, partition: int, offset: int, *, max_bytes: int, min_bytes: int, max_wait_ms: int
    ) -> FetchResult[list[StoredBatch]]:
        """Records from ``offset`` on, as they are stored; see ``LogReader.fetch_stored``."""
        return _counted(
            topic,
            await self._reader.fetch_stored(
                topic, partition, offset, max_bytes=max_bytes, min_bytes=min_bytes, max_wait_s=max_wait_ms / 1000
            ),
        )

    async def offset_for_timestamp(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """The smallest offset with a timestamp of at least ``timestamp_ms``, and its timestamp; None without one."""
        return await self._reader.offset_for_timestamp(topic, partition, timestamp_ms)


def _counted(topic: Topic, result: FetchResult[T]) -> FetchResult[T]:
    FETCHED_RECORDS.count(topic, result.count)
    FETCHED_BYTES.count(topic, result.num_bytes)
    return result
