"""Requests for the declared columns of a topic: describe, change, propose."""

import asyncio

import pyarrow as pa
import structlog

from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.partition_offsets import OffsetsElsewhere, PartitionOffsets
from logstore.broker.fetch.fetching import Fetching, FetchLimits, FetchPartition
from logstore.broker.topics.changes import TopicChanges
from logstore.delta.columns import (
    ChangedColumns,
    ColumnChange,
    ColumnFill,
    TableColumns,
    changed_columns,
    column_fill,
    table_columns,
)
from logstore.errors import InvalidConfigError, LogStoreError
from logstore.limits import MIB
from logstore.log.topic import Topic
from logstore.records.columns.declaration import parse_columns
from logstore.records.columns.inference import Proposal, propose

log = structlog.stdlib.get_logger(__name__)

SAMPLE_MAX = 100_000
#: The sample of a proposal has at most this many bytes of records.
_SAMPLE_BYTES_MAX = 32 * MIB


class Columns:
    def __init__(self, changes: TopicChanges, fetch: Fetching, authorizer: Authorizer) -> None:
        self._changes = changes
        self._fetch = fetch
        self._authorizer = authorizer

    def describe(self, context: RequestContext, topic: Topic) -> tuple[TableColumns, ColumnFill]:
        """Return the columns of the topic's table, and how far they are filled. Raises TopicAuthorizationError."""
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        return table_columns(topic.name, topic.snapshot.table.meta_data), column_fill(topic.name, topic.snapshot)

    async def declare(
        self, context: RequestContext, name: str, text: str, *, is_whole: bool, dry_run: bool
    ) -> ChangedColumns | None:
        """Declare columns; ``is_whole`` retires all others. Return what changed; None if nothing did.

        Raises the errors of ``TopicChanges.change_table`` and InvalidConfigError, which says what to write instead.
        """
        try:
            columns = parse_columns(text)
        except ValueError as error:
            raise InvalidConfigError(f"topic {name!r}: {error}") from error
        return await self._change(context, name, ColumnChange(columns, is_whole=is_whole), dry_run=dry_run)

    async def retire(
        self, context: RequestContext, name: str, columns: tuple[str, ...], *, dry_run: bool
    ) -> ChangedColumns | None:
        """Retire columns: their names and types stay, and new files do not have them. Raises as ``declare``."""
        return await self._change(context, name, ColumnChange(retired=columns), dry_run=dry_run)

    async def _change(
        self, context: RequestContext, name: str, change: ColumnChange, *, dry_run: bool
    ) -> ChangedColumns | None:
        topic = self._changes.require_alterable(context, name)
        if dry_run:
            return changed_columns(topic.name, topic.snapshot.table.meta_data, change)
        changed = await self._changes.change_table(topic, lambda: topic.table.change_columns(change))
        if changed is not None:
            added, retired = ([column.name for column in part] for part in (changed.added, changed.retired))
            log.info("topic.columns_changed", topic=name, added=added, retired=retired)
        return changed

    async def propose(
        self, context: RequestContext, topic: Topic, records: int, elsewhere: OffsetsElsewhere
    ) -> Proposal:
        """Propose columns for the newest ``records`` of all partitions, as far as 32 MiB have them. Raises
        TopicAuthorizationError, ThrottledError and the errors of ``Fetching.records``.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, topic.name)
        wanted = []
        for partition_log in topic.partitions:
            offsets = PartitionOffsets.of(partition_log, elsewhere)
            if offsets.high_watermark > offsets.log_start_offset:
                first = max(offsets.log_start_offset, offsets.high_watermark - -(-records // len(topic.partitions)))
                wanted.append(FetchPartition(topic.name, partition_log.partition, first))
        values = [value for one in wanted for value in await self._values(context, one, len(wanted))]
        sample = pa.chunked_array(values, pa.binary()).combine_chunks()
        return await asyncio.to_thread(propose, sample.slice(0, records))

    async def _values(self, context: RequestContext, first: FetchPartition, partitions: int) -> list[pa.Array]:
        """Read the values of a partition from an offset on."""
        left = _SAMPLE_BYTES_MAX // partitions
        values: list[pa.Array] = []
        at = first
        while left > 0:
            limits = FetchLimits(min(left, 8 * MIB), min(left, 8 * MIB), min_bytes=1, max_wait_ms=0)
            fetched = await self._fetch.records(context, [at], limits)
            try:
                answer = fetched.answers.get(0)
            finally:
                fetched.reservation.release()
            if isinstance(answer, LogStoreError):
                raise answer
            if answer is None or answer.next_offset <= at.offset:
                break
            values += answer.records.column("value").chunks
            left -= max(1, answer.num_bytes)
            at = at._replace(offset=answer.next_offset)
            if at.offset >= answer.high_watermark:
                break
        return values
