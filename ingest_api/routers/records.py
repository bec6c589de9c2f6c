"""Read the records of one partition from an offset on."""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from ingest_api import operations
from ingest_api.bodies import answer_wanted
from ingest_api.content_types import (
    ARROW_STREAM,
    JSON,
    KAFKA_BINARY_V2,
    KAFKA_JSON_V2,
    asks_for,
    response_media_type,
)
from ingest_api.guard import context_of
from ingest_api.parameters import (
    MAX_BYTES,
    MAX_WAIT_MS,
    MIN_BYTES,
    OFFSET,
    RECORD_KEY,
    WHERE,
    partition_in_path,
    query_texts,
    required,
    selection_of,
    values_of,
)
from ingest_api.record_responses import RecordsResponse
from ingest_api.routes import declared_router, requires
from ingest_api.state import api_state
from ingest_api.topic_ids import topic_id_headers, topic_to_consume
from logstore.broker.admission import Reservation
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.elsewhere.forwarding import Target
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition
from logstore.errors import LogStoreError
from logstore.filesystem import Buffer
from logstore.log.log_reader import FetchResult
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.encode import encode_arrow_stream, encode_binary, encode_json, encode_readable
from logstore.records.schema import LOG_SCHEMA

router = declared_router(tags=["records"])


class _Form(NamedTuple):
    """``copies`` is the size of the records and their response together, as a multiple of the records' bytes.

    It was measured for records of 1 KB, and rounded up. Smaller records need more, which they reserve when their
    response is encoded.
    """

    encode: Callable[[pa.Table, Topic, int], Iterable[Buffer]]
    copies: float


def _json(encode: Callable[..., Iterable[bytes]]) -> Callable[[pa.Table, Topic, int], Iterable[Buffer]]:
    return lambda records, topic, partition: encode(
        records, topic.name, partition, string_keys=topic.config.string_keys
    )


_JSON_FORM = _Form(_json(encode_json), 2.5)
# Escaped text, and bytes in base64, take more than plain JSON.
_READABLE = _Form(_json(encode_readable), 2.5)
_FORMS: dict[str, _Form] = {
    KAFKA_JSON_V2: _JSON_FORM,
    JSON: _JSON_FORM,
    KAFKA_BINARY_V2: _Form(lambda records, topic, partition: encode_binary(records, topic.name, partition), 2.5),
    ARROW_STREAM: _Form(lambda records, _topic, _partition: encode_arrow_stream(records), 2.25),
}
_JSON_TYPES = (KAFKA_JSON_V2, JSON)
_NUMBERS = (OFFSET, MAX_BYTES, MIN_BYTES, MAX_WAIT_MS)
_QUERY = [parameter.name for parameter in (*_NUMBERS, RECORD_KEY, WHERE)]


@router.get("/topics/{topic}/partitions/{partition}/records", **operations.FETCH)
@requires(Operation.READ, ResourceType.TOPIC, target=Target.PARTITION_LEADER)
async def fetch(request: Request) -> Response:
    """Read records from an offset on; wait for records at the end of the log."""
    state = api_state(request)
    texts = query_texts(request.scope["query_string"], _QUERY)
    query = values_of(texts, _NUMBERS)
    where = selection_of(texts.get(RECORD_KEY.name), texts.get(WHERE.name))
    partition = partition_in_path(request)
    media_type = response_media_type(request.headers, tuple(_FORMS))
    topic = await topic_to_consume(context_of(request), request, state.broker, partition)
    partition_log = topic.partition(partition)
    # Clients that accept anything, as curl and browsers do, shall see every record.
    is_readable = media_type in _JSON_TYPES and not asks_for(request.headers, _JSON_TYPES)
    form = _READABLE if is_readable else _FORMS[media_type]
    offset = query[OFFSET.name]
    if offset is None:
        offset = partition_log.log_start_offset
    max_bytes = required(query[MAX_BYTES.name])
    wanted = [FetchPartition(topic.name, partition_log.partition, offset)]
    limits = FetchLimits(
        max_bytes,
        max_bytes,
        required(query[MIN_BYTES.name]),
        required(query[MAX_WAIT_MS.name]),
        fill=False,
        where=where,
    )
    fetched = await state.broker.fetch.records(
        context_of(request), wanted, limits, functools.partial(answer_wanted, request), copies=form.copies
    )
    result = fetched.answers.get(0) or _nothing(partition_log, offset)
    try:
        if isinstance(result, LogStoreError):
            raise result
        records = result.records
        pieces = form.encode(records, topic, partition_log.partition)
        gathering = functools.partial(gather, pieces, fetched.reservation, records.nbytes)
        body = await state.work(records.nbytes, gathering)
        fetched.reservation.resize(sum(map(len, body)))
        headers = {
            "Logstore-Log-Start-Offset": str(result.log_start_offset),
            "Logstore-High-Watermark": str(result.high_watermark),
            "Logstore-Last-Stable-Offset": str(result.last_stable_offset),
            "Logstore-Next-Offset": str(result.next_offset),
            **topic_id_headers(request.scope),
        }
        return RecordsResponse(body, fetched.reservation, media_type=media_type, headers=headers)
    except BaseException:
        fetched.reservation.release()
        raise


def gather(pieces: Iterable[Buffer], reservation: Reservation, records_bytes: int) -> list[Buffer]:
    """Return all pieces. Raises ThrottledError if they outgrow what is reserved, and there is no room for more."""
    body: list[Buffer] = []
    held = records_bytes
    for piece in pieces:
        body.append(piece)
        held += len(piece)
        reservation.grow(held - reservation.size)
    return body


def _nothing(log: PartitionLog, offset: int) -> FetchResult[pa.Table]:
    ends = log.log_start_offset, log.high_watermark, log.last_stable_offset
    return FetchResult(LOG_SCHEMA.empty_table(), 0, 0, offset, *ends)
