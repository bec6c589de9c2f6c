"""Descriptions of operations: the parts that all share, and the whole of produce and fetch, whose bodies never become
objects.

Produce and fetch are done by hand, so the framework cannot describe them. The description of each is a constant here,
made from the same parameters, media types and limits that the code uses. The framework describes the other routes from
their models; ``openapi`` adds the shared parts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ingest_api.content_types import (
    ARROW_STREAM,
    CONTENT_CODINGS,
    JSON,
    JSON_REQUEST_TYPES,
    KAFKA_BINARY_V2,
    KAFKA_JSON_V2,
    METADATA_TYPES,
    NDJSON,
)
from ingest_api.identity_headers import HEADER_PARAMETERS as IDENTITY_HEADERS
from ingest_api.identity_headers import REPLAYED
from ingest_api.parameters import (
    ACKS,
    EVENT_FORMAT,
    FROM,
    ISOLATION_LEVEL,
    KEY,
    KEY_FORMAT,
    MAX_BYTES,
    MAX_WAIT_MS,
    MIN_BYTES,
    OFFSET,
    PARTITION,
    POLL_MAX_BYTES,
    POLL_TIMEOUT,
    RECORD_KEY,
    TIMEOUT_MS,
    WHERE,
    Parameter,
    TextParameter,
)
from ingest_api.topic_ids import HEADER_PARAMETER as TOPIC_ID
from ingest_api.topic_ids import RESPONSE_HEADERS as TOPIC_ID_HEADERS
from logstore.limits import INSTANCE_NAME_LENGTH_MAX, TOPIC_NAME_LENGTH_MAX
from logstore.protocol.fetch_response import MEDIA_TYPE as FETCH_MEDIA_TYPE
from logstore.protocol.messages import records
from logstore.protocol.messages.base import ErrorBody, Message

REFERENCE: Final = "#/components/schemas/{model}"
NAME_PATTERN: Final = "^[A-Za-z0-9._-]+$"
TOPIC_DESCRIPTION: Final = "Name of the topic."
GROUP_DESCRIPTION: Final = (
    "Name of the consumer group: any text, percent-encoded, a slash as %2F. Or `-`, and the name in the query's "
    "parameter `group`: for `.`, `..` and clients that change a path."
)
CLUSTER_DESCRIPTION: Final = "The id that GET /v3/clusters returns."
PARTITION_DESCRIPTION: Final = "Number of the partition, in decimal digits."
#: The messages of bodies that are read and written by hand.
MESSAGES: Final = (
    ErrorBody,
    records.ConsumedRecord,
    records.FetchRequest,
    records.ProducedOffsets,
    records.ProducedRanges,
    records.ProduceRequest,
    records.RecordBatchAnswer,
    records.RecordBatchRequest,
    records.RecordReport,
    records.TypedRecord,
)

ERRORS = {
    400: "40002: the topic exists, or its name, partitions, replication factor or configuration are not acceptable; "
    "40003: what the headers say of the producer, or the idempotency key, is not.",
    403: "40301: the client may not do this; the message names operation and resource. 40302: a web page of elsewhere "
    "(Origin) may change nothing. Nothing was done.",
    404: "40401: no such topic; 40402: no such partition; 40403: no such consumer instance; 40405: no such group; "
    "40406: the topic has another id than was meant, it was deleted and made again; 40407: the partition is not being "
    "reassigned; 40408: the topic has no such erasure; 404: nothing at this path.",
    406: "Accept allows none of the media types of the response; 40601: it asks for another embedded format than "
    "that of the consumer instance.",
    408: "The client stopped sending in the middle of the body.",
    409: "40902: the consumer instance exists; 40903: it cannot do this as it is (subscribed, assigned, or neither; "
    "without that partition). "
    "40911: a sequence number does not follow; 40912: the producer's epoch is fenced; 40913: stored so long ago "
    "that its offsets are not known. Nothing was stored now. Of members of groups, "
    "40914: no such member; 40915, 40921, 40922: another generation or member epoch; 40916: no common protocol; 40917: "
    "a rebalance has begun, join again; 40918: join with the given id; 40919, 40920: the group.instance.id is another "
    "member's; 40923: the group is full; 40924: the group has members. 40925: no election was needed.",
    413: "41301: the body is over max.request.size; 41302: a record is over max.message.bytes. Nothing was stored.",
    415: "Content-Type or Content-Encoding is not one that is taken here.",
    416: "41601: the offset is outside [log start offset, high watermark]; the headers have both.",
    421: "42101: Host is no name of this store, see allowed.hosts. 42102: another broker answers this, and the "
    "request is not to be forwarded; the body has its broker_id and url. Nothing was done.",
    422: "42206: the body is not acceptable, nothing was stored; 422: a query parameter is not; 42207: a record cannot "
    "be written as JSON, read it as binary; 42211: the Idempotency-Key was used for another request; 42204: the "
    "configuration of a consumer instance is not acceptable. Of members of groups, 42212: the session timeout is out "
    "of bounds; 42213: the store has no such assignor; 42214: the regular expression is none.",
    429: "42901: a bound of memory or of the journal is reached. Send again after Retry-After seconds.",
    500: "50002: storage failed, the outcome is unknown; 50003: a commit did not succeed, try again; 50004: the "
    "records of this offset were taken out of the table; 500: a bug.",
    503: "50301: not ready; 50302: the disk is full; send again after Retry-After seconds. 50303: the topic or "
    "partition is quarantined, the message says why; 50304: another broker leads the partition; 50309: none does at "
    "present; 50310: too few replicas are in sync; 50311: a new leader does not know yet where the partition ends; "
    "50312: another broker is the controller, or none is. Nothing was stored. "
    "Of groups, 50305, 50306: the coordinator starts or stops; 50307: another node is the coordinator; 50308: an "
    "offset is of a transaction that is still open. Of elections, 50320: the preferred leader is not there, or not in "
    "sync; 50321: no replica is there.",
    504: "50401: the time ran out; 50402: replicas were lost after the append. The records may or may not be stored.",
}

_PATH_PARAMETERS: Mapping[str, dict[str, Any]] = {
    "cluster_id": {"schema": {"type": "string"}, "description": CLUSTER_DESCRIPTION},
    "topic": {
        "schema": {"type": "string", "pattern": NAME_PATTERN, "maxLength": TOPIC_NAME_LENGTH_MAX},
        "description": TOPIC_DESCRIPTION,
    },
    "group": {"schema": {"type": "string"}, "description": GROUP_DESCRIPTION},
    "instance": {
        "schema": {"type": "string", "pattern": NAME_PATTERN, "maxLength": INSTANCE_NAME_LENGTH_MAX},
        "description": "Name of the consumer instance.",
    },
    "partition": {
        "schema": {"type": "integer", "format": "int32", "minimum": 0},
        "description": PARTITION_DESCRIPTION,
    },
}

COMMON_HEADERS: list[dict[str, Any]] = [
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "At most 128 printable characters, returned in the response and written on log lines. The "
        "store makes one if it is absent.",
        "schema": {"type": "string", "maxLength": 128},
    },
    {
        "name": "Logstore-Client-Id",
        "in": "header",
        "description": "Names the client in metrics and logs.",
        "schema": {"type": "string", "maxLength": 128},
    },
]
CONTENT_ENCODING = {
    "name": "Content-Encoding",
    "in": "header",
    "description": "Compression of the body; max.request.size holds after inflation too.",
    "schema": {"type": "string", "enum": list(CONTENT_CODINGS)},
}
REQUEST_ID_HEADER = {"X-Request-Id": {"schema": {"type": "string"}}}
_OFFSET_SCHEMA = {"schema": {"type": "integer", "format": "int64"}}
_RANGE_HEADERS: dict[str, Any] = {
    "Logstore-Log-Start-Offset": _OFFSET_SCHEMA,
    "Logstore-High-Watermark": _OFFSET_SCHEMA,
}
_RETRY_AFTER: dict[str, Any] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
_ERROR_HEADERS = {416: _RANGE_HEADERS, 429: _RETRY_AFTER, 503: _RETRY_AFTER}

_BINARY = {"type": "string", "format": "binary"}


#: The ``openapi_extra`` of routes that read ``Logstore-Topic-Id``.
TOPIC_ID_PARAMETER: Final[dict[str, Any]] = {"parameters": [TOPIC_ID]}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the responses with these statuses, for ``responses`` of a route."""
    content = _content(_ref(ErrorBody), (JSON,))
    return {code: _answer(ERRORS[code], content, _ERROR_HEADERS.get(code)) for code in sorted(codes)}


def common_refusals(*, has_path: bool, has_body: bool) -> dict[int | str, dict[str, Any]]:
    """Return the refusals of every route, of routes whose path names a resource, and of routes with a body."""
    codes = {403, 421, 422, 500}
    if has_path:
        codes.add(404)
    if has_body:
        codes |= {408, 413, 415, 429}
    return refusals(*codes)


def _ref(message: type[Message]) -> dict[str, Any]:
    return {"$ref": REFERENCE.format(model=message.__name__)}


def _content(schema: dict[str, Any], media_types: Sequence[str]) -> dict[str, Any]:
    return {media_type: {"schema": schema} for media_type in media_types}


def _answer(
    description: str, content: dict[str, Any] | None = None, headers: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": description, "headers": {**REQUEST_ID_HEADER, **(headers or {})}}
    return answer if content is None else {**answer, "content": content}


def _operation(
    operation_id: str,
    *,
    path: Sequence[str] = (),
    query: Sequence[Parameter | TextParameter] = (),
    headers: Sequence[dict[str, Any]] = (),
    body: dict[str, Any] | None = None,
    answers: Mapping[int, dict[str, Any]],
    errors: Sequence[int] = (),
    coded: bool = True,
) -> dict[str, Any]:
    """Return keyword arguments for a route's decorator. With ``coded`` the body may be compressed."""
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name]} for name in path
    ]
    parameters += [
        {"name": p.name, "in": "query", "required": False, "description": p.description, "schema": p.json_schema}
        for p in query
    ]
    parameters += [*headers, *COMMON_HEADERS]
    extra: dict[str, Any] = {"parameters": parameters}
    if body is not None:
        if coded:
            parameters.append(CONTENT_ENCODING)
        extra["requestBody"] = {"required": True, "content": body}
    failures = common_refusals(has_path=bool(path), has_body=body is not None) | refusals(*errors)
    return {"operation_id": operation_id, "responses": {**answers, **failures}, "openapi_extra": extra}


_PRODUCE_BODY = {
    **_content(_ref(records.ProduceRequest), (KAFKA_JSON_V2, KAFKA_BINARY_V2, JSON)),
    NDJSON: {
        "schema": {"type": "string", "description": "One value per line: the line's bytes, without the line end."}
    },
    ARROW_STREAM: {"schema": {**_BINARY, "description": "Column value; optional key, timestamp, headers, partition."}},
}
_PRODUCED = _content(
    {"anyOf": [_ref(records.ProducedOffsets), _ref(records.ProducedRanges)]},
    METADATA_TYPES,
)
_REPLAYED_HEADER = {
    name: {
        "schema": {"type": "string", "enum": [value]},
        "description": "Present if all records of the request had been stored before.",
    }
    for name, value in REPLAYED.items()
}
_PRODUCE_ANSWERS = {
    200: _answer(
        "The records are stored as `acks` asks: offsets for the JSON types, ranges for NDJSON and Arrow.",
        _PRODUCED,
        _REPLAYED_HEADER,
    ),
    202: _answer("Accepted (`acks=0`): nothing is durable yet, and the lists are empty.", _PRODUCED, _REPLAYED_HEADER),
}
_PRODUCE_ERRORS = (400, 406, 409, 413, 503, 504)


def _produce(operation_id: str, path: Sequence[str]) -> dict[str, Any]:
    return _operation(
        operation_id,
        path=path,
        query=(ACKS, TIMEOUT_MS, KEY_FORMAT),
        headers=[*IDENTITY_HEADERS, TOPIC_ID],
        body=_PRODUCE_BODY,
        answers=_PRODUCE_ANSWERS,
        errors=_PRODUCE_ERRORS,
    )


PRODUCE = _produce("produce", ("topic",))
PRODUCE_TO_PARTITION = _produce("produceToPartition", ("topic", "partition"))
PRODUCE_RECORDS = _operation(
    "produceRecords",
    path=("cluster_id", "topic"),
    body=_content(_ref(records.TypedRecord), (JSON,)),
    answers={
        200: _answer(
            "A report for each record, in their order, each a JSON object on a line: `RecordReport` with `error_code` "
            "200, or `ErrorBody`.",
            _content({"anyOf": [_ref(records.RecordReport), _ref(ErrorBody)]}, (JSON,)),
        )
    },
    errors=(400, 406, 503, 504),
    coded=False,
)
PRODUCE_RECORDS_BATCH = _operation(
    "produceRecordsBatch",
    path=("cluster_id", "topic"),
    body=_content(_ref(records.RecordBatchRequest), (JSON,)),
    answers={
        207: _answer("Each entry is stored or refused by itself.", _content(_ref(records.RecordBatchAnswer), (JSON,)))
    },
    errors=(400, 406, 503),
)
FETCH = _operation(
    "fetch",
    path=("topic", "partition"),
    query=(OFFSET, MAX_BYTES, MIN_BYTES, MAX_WAIT_MS, RECORD_KEY, WHERE),
    headers=(TOPIC_ID,),
    answers={
        200: _answer(
            "Records in offset order. Empty if the wait ended at the high watermark, or, with `key` or `where`, "
            "if none of the searched records is selected.",
            {
                **_content(
                    {"type": "array", "items": _ref(records.ConsumedRecord)}, (KAFKA_JSON_V2, JSON, KAFKA_BINARY_V2)
                ),
                ARROW_STREAM: {
                    "schema": {**_BINARY, "description": "Columns offset, timestamp (ms, UTC), key, value, headers."}
                },
            },
            {
                **_RANGE_HEADERS,
                "Logstore-Last-Stable-Offset": _OFFSET_SCHEMA,
                "Logstore-Next-Offset": {
                    **_OFFSET_SCHEMA,
                    "description": "The offset at which the next request continues.",
                },
                **TOPIC_ID_HEADERS,
            },
        )
    },
    errors=(406, 416, 429),
)
FETCH_MANY = _operation(
    "fetchMany",
    body=_content(_ref(records.FetchRequest), JSON_REQUEST_TYPES),
    answers={
        200: _answer(
            "A response for each partition that has something new, with batches as they are stored.",
            {FETCH_MEDIA_TYPE: {"schema": {**_BINARY, "description": "See logstore/protocol/fetch_response.py."}}},
        )
    },
    errors=(406, 429),
)
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event that was received: the stream continues after it.",
    "schema": {"type": "string"},
}
_CONSUMED = [
    {
        "topic": "orders",
        "key": "eve",
        "value": {"amount": 3},
        "partition": 0,
        "offset": 17,
        "timestamp": 1_795_334_400_000,
        "headers": [{"key": "source", "value": "d2Vi"}],
    }
]
EVENTS = _operation(
    "streamEvents",
    path=("topic",),
    query=(FROM, PARTITION, KEY, KEY_FORMAT, EVENT_FORMAT, ISOLATION_LEVEL),
    headers=(
        _LAST_EVENT_ID,
        TOPIC_ID,
    ),
    answers={
        200: _answer(
            "Server-Sent Events without an end. The id of each is the position after it; its data is a record.",
            {"text/event-stream": {"schema": {"type": "string"}}},
            TOPIC_ID_HEADERS,
        )
    },
    errors=(406, 416, 429, 503),
)
POLL = _operation(
    "pollConsumerInstance",
    path=("group", "instance"),
    query=(POLL_TIMEOUT, POLL_MAX_BYTES),
    answers={
        200: _answer(
            "Records of the partitions that the instance holds, in order of offsets within each; empty if there "
            "were none in time.",
            _content(
                {"type": "array", "items": _ref(records.ConsumedRecord), "examples": [_CONSUMED]},
                (KAFKA_BINARY_V2, KAFKA_JSON_V2, *METADATA_TYPES),
            ),
        )
    },
    errors=(406, 409, 416, 429, 503, 504),
)
POLL_EVENTS = _operation(
    "streamConsumerInstance",
    path=("group", "instance"),
    headers=(_LAST_EVENT_ID,),
    answers={
        200: _answer(
            "Server-Sent Events without an end, of the partitions that the instance holds. The id of each is the "
            "position after it; its data is a record.",
            {"text/event-stream": {"schema": {"type": "string"}}},
        )
    },
    errors=(406, 409, 416, 429, 503),
)
METRICS = _operation(
    "getMetrics",
    answers={200: _answer("Prometheus' text format.", {"text/plain": {"schema": {"type": "string"}}})},
)
