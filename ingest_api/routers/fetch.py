"""Fetch: read many partitions in one request, as Kafka's Fetch API does.

Invariants: partitions are read in the order of the request, so that a client that rotates the order is fair to all; a
partition that cannot be read has a response with its error, and the others are read; a record in any of them ends the
wait.
"""

import functools

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import operations
from ingest_api.bodies import answer_wanted, receive_message, required
from ingest_api.content_types import response_media_type
from ingest_api.guard import context_of
from ingest_api.parameters import read_query, selection_of
from ingest_api.record_responses import RecordsResponse
from ingest_api.routes import declared_router, requires
from ingest_api.state import api_state
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition
from logstore.errors import LogStoreError
from logstore.log.log_reader import FetchResult
from logstore.protocol.fetch_response import MEDIA_TYPE, PartitionData, encode_fetch_response
from logstore.protocol.messages.records import FetchRequest
from logstore.protocol.record_batch import RecordBatch, encode_batches

router = declared_router(tags=["records"])


@router.post("/fetch", **operations.FETCH_MANY)
@requires(Operation.READ, ResourceType.TOPIC, names_in="body")
async def fetch_many(request: Request) -> Response:
    """Read records of many partitions, each from its own offset; wait for records if all are at their ends."""
    read_query(request)
    state = api_state(request)
    media_type = response_media_type(request.headers, (MEDIA_TYPE,))
    asked = required(await receive_message(request, FetchRequest))
    wanted = [FetchPartition(p.topic, p.partition, p.offset, p.topic_id) for p in asked.partitions]
    where = selection_of(None, asked.where)
    limits = FetchLimits(asked.max_bytes, asked.max_partition_bytes, asked.min_bytes, asked.max_wait_ms, where=where)
    gone = functools.partial(answer_wanted, request)
    fetched = await state.broker.fetch.stored(context_of(request), wanted, limits, gone)
    try:
        responses = [_response(index, answer) for index, answer in fetched.answers.items()]
        body = encode_fetch_response(responses)
        fetched.reservation.resize(sum(map(len, body)))
        return RecordsResponse(body, fetched.reservation, media_type=media_type, headers={})
    except BaseException:
        fetched.reservation.release()
        raise


def _response(index: int, answer: FetchResult[list[RecordBatch]] | LogStoreError) -> PartitionData:
    if isinstance(answer, LogStoreError):
        return PartitionData.of_error(index, answer)
    content = encode_batches(answer.records)
    ends = answer.log_start_offset, answer.high_watermark, answer.last_stable_offset
    return PartitionData(index, 0, *ends, answer.next_offset, content)
