"""Offsets of partitions: the first and the last, lookups by time, and deletion of records up to an offset."""

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from ingest_api.dependencies import Context, IdentifiedPartition, IdentifiedTopic, StoreBroker
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import TOPIC_ID_PARAMETER, refusals
from ingest_api.parameters import read_timestamp
from ingest_api.routes import requires
from ingest_api.topic_ids import RESPONSE_HEADERS, topic_id_headers
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.elsewhere.forwarding import Target
from logstore.protocol.messages.records import (
    DeletedRecords,
    DeleteRecordsRequest,
    OffsetForTime,
    OffsetsForTimes,
    OffsetsForTimesRequest,
    OffsetsQuery,
    PartitionOffsets,
)

router = model_router(MetadataRoute, tags=["records"])


@router.get(
    "/topics/{topic}/partitions/{partition}/offsets",
    operation_id="getOffsets",
    response_description="The offsets.",
    responses={200: {"headers": RESPONSE_HEADERS}, **refusals(503)},
    openapi_extra=TOPIC_ID_PARAMETER,
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC, target=Target.PARTITION_LEADER)
async def offsets(
    request: Request,
    response: Response,
    broker: StoreBroker,
    context: Context,
    topic: IdentifiedTopic,
    log: IdentifiedPartition,
    query: Annotated[OffsetsQuery, Query()],
) -> PartitionOffsets:
    """Return the first offset and the one after the last that readers see; with a timestamp, also the offset of that
    time.
    """
    response.headers.update(topic_id_headers(request.scope))
    log.require_served()
    log.require_leader().require_settled()
    if query.timestamp is None:
        return PartitionOffsets(
            beginning_offset=log.log_start_offset,
            end_offset=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
        )
    timestamp = read_timestamp(query.timestamp, broker.clock.now_ms())
    found = await broker.fetch.offset_for_timestamp(context, topic, log.partition, timestamp)
    offset, timestamp_found = found or (None, None)
    return PartitionOffsets(
        beginning_offset=log.log_start_offset,
        end_offset=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        offset=offset,
        timestamp=timestamp_found,
    )


@router.post(
    "/topics/{topic}/offsets-for-times",
    operation_id="offsetsForTimes",
    response_description="The offsets.",
    responses={200: {"headers": RESPONSE_HEADERS}, **refusals(503)},
    openapi_extra=TOPIC_ID_PARAMETER,
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def offsets_for_times(
    request: Request,
    response: Response,
    broker: StoreBroker,
    context: Context,
    topic: IdentifiedTopic,
    asked: OffsetsForTimesRequest,
) -> OffsetsForTimes:
    """Look up the offsets of times in many partitions; refused as a whole if one of them is missing or not served."""
    response.headers.update(topic_id_headers(request.scope))
    for one in asked.partitions:
        topic.partition(one.partition).require_served()
    answers = []
    for one in asked.partitions:
        found = await broker.fetch.offset_for_timestamp(context, topic, one.partition, one.timestamp)
        offset, timestamp = found or (None, None)
        answers.append(OffsetForTime(partition=one.partition, offset=offset, timestamp=timestamp))
    return OffsetsForTimes(offsets=tuple(answers))


@router.post(
    "/topics/{topic}/partitions/{partition}/delete-records",
    operation_id="deleteRecords",
    response_description="The new log start offset.",
    responses={200: {"headers": RESPONSE_HEADERS}, **refusals(416, 503)},
    openapi_extra=TOPIC_ID_PARAMETER,
)
@requires(Operation.DELETE, ResourceType.TOPIC, target=Target.PARTITION_LEADER)
async def delete_records(
    request: Request,
    response: Response,
    broker: StoreBroker,
    context: Context,
    topic: IdentifiedTopic,
    log: IdentifiedPartition,
    asked: DeleteRecordsRequest,
) -> DeletedRecords:
    """Move the log start offset forward: readers no longer see the records before it."""
    response.headers.update(topic_id_headers(request.scope))
    return DeletedRecords(
        log_start_offset=await broker.topics.tables.delete_records(context, topic, log.partition, asked.before_offset)
    )
