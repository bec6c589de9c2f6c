"""The description of the HTTP interface in ``/openapi.json``, complete enough to generate a client from.

Routes read raw bodies and queries, so the framework cannot find out by itself what they take: each route's
documentation is a constant here, made from the same parameters, media types and models that the code runs on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ingest_api import schemas
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
from ingest_api.idempotence import REPLAYED, REQUEST_HEADERS
from ingest_api.parameters import (
    ACKS,
    KEY_FORMAT,
    MAX_BYTES,
    MAX_WAIT_MS,
    MIN_BYTES,
    OFFSET,
    TIMEOUT_MS,
    TIMESTAMP,
    TOPIC,
    Parameter,
)
from ingest_api.topic_ids import ANSWER_HEADERS as TOPIC_ID_HEADERS
from ingest_api.topic_ids import REQUEST_HEADER as TOPIC_ID
from logstore.limits import GROUP_NAME_LENGTH_MAX, TOPIC_NAME_LENGTH_MAX
from logstore.protocol.fetch_response import MEDIA_TYPE

_REF = "#/components/schemas/{model}"

_ERRORS = {
    400: "40002: the topic exists, or its name, partitions, replication factor or configuration are not acceptable; "
    "40003: what the headers say of the producer, or the idempotency key, is not.",
    403: "40301: who asks may not do this; the message names operation and resource. 40302: a web page of elsewhere "
    "(Origin) may change nothing. Nothing was done.",
    404: "40401: no such topic; 40402: no such partition; 40405: no such group; 40406: the topic has another id than "
    "was meant, it was deleted and made again; 404: nothing at this path.",
    406: "Accept allows nothing of what there is.",
    408: "The client stopped sending in the middle of the body.",
    409: "40911: a sequence number does not follow; 40912: the producer's epoch is fenced; 40913: stored so long ago "
    "that its offsets are not known. Nothing was stored now.",
    413: "41301: the body is over max.request.size; 41302: a record is over max.message.bytes. Nothing was stored.",
    415: "Content-Type or Content-Encoding is not one that is taken here.",
    416: "41601: the offset is outside [log start offset, high watermark]; the headers have both.",
    421: "42101: Host is no name of this store, see allowed.hosts. Nothing was done.",
    422: "42206: the body is not acceptable, nothing was stored; 422: a query parameter is not; 42211: the "
    "Idempotency-Key was used for another request.",
    429: "42901: a bound of memory or of the journal is reached. Send again after Retry-After seconds.",
    500: "50002: storage failed, the outcome is unknown; 50003: a commit did not succeed, try again; 50004: the "
    "records of this offset were taken out of the table; 500: a bug.",
    503: "50301: not ready; 50302: the disk is full; send again after Retry-After seconds. 50303: the topic or "
    "partition is quarantined, the message says why. Nothing was stored.",
    504: "50401: the time ran out; the records may or may not be stored.",
}

_PATH_PARAMETERS: Mapping[str, dict[str, Any]] = {
    "topic": {
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]+$", "maxLength": TOPIC_NAME_LENGTH_MAX},
        "description": "Name of the topic.",
    },
    "partition": {
        "schema": {"type": "integer", "format": "int32", "minimum": 0},
        "description": "Number of the partition, in decimal digits.",
    },
    "group": {
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]+$", "maxLength": GROUP_NAME_LENGTH_MAX},
        "description": "Name of the consumer group.",
    },
    "cluster_id": {"schema": {"type": "string"}, "description": "The id that GET /v3/clusters answers."},
    "name": {"schema": {"type": "string"}, "description": "Name of the configuration, as `retention.ms`."},
}

_REQUEST_HEADERS: list[dict[str, Any]] = [
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "At most 128 printable characters; echoed in the answer and on log lines. Made if absent.",
        "schema": {"type": "string", "maxLength": 128},
    },
    {
        "name": "Logstore-Client-Id",
        "in": "header",
        "description": "Names the client in metrics and logs.",
        "schema": {"type": "string", "maxLength": 128},
    },
]
_CONTENT_ENCODING = {
    "name": "Content-Encoding",
    "in": "header",
    "description": "Compression of the body; max.request.size holds after inflation too.",
    "schema": {"type": "string", "enum": list(CONTENT_CODINGS)},
}
_REQUEST_ID_HEADER = {"X-Request-Id": {"schema": {"type": "string"}}}
_OFFSET_SCHEMA = {"schema": {"type": "integer", "format": "int64"}}
_RANGE_HEADERS: dict[str, Any] = {
    "Logstore-Log-Start-Offset": _OFFSET_SCHEMA,
    "Logstore-High-Watermark": _OFFSET_SCHEMA,
}
_RETRY_AFTER: dict[str, Any] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
_ERROR_HEADERS = {416: _RANGE_HEADERS, 429: _RETRY_AFTER, 503: _RETRY_AFTER}

_BINARY = {"type": "string", "format": "binary"}


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _REF.format(model=model.__name__)}


def _list_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def _content(schema: dict[str, Any], media_types: Sequence[str]) -> dict[str, Any]:
    return {media_type: {"schema": schema} for media_type in media_types}


def _answer(
    description: str, content: dict[str, Any] | None = None, headers: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": description, "headers": {**_REQUEST_ID_HEADER, **(headers or {})}}
    return answer if content is None else {**answer, "content": content}


def _operation(
    operation_id: str,
    *,
    path: Sequence[str] = (),
    query: Sequence[Parameter] = (),
    body: dict[str, Any] | None = None,
    body_required: bool = True,
    headers: Sequence[dict[str, Any]] = (),
    answers: Mapping[int, dict[str, Any]],
    errors: Sequence[int] = (),
) -> dict[str, Any]:
    """Keyword arguments for a route's decorator."""
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name]} for name in path
    ]
    parameters += [
        {"name": p.name, "in": "query", "required": False, "description": p.description, "schema": p.json_schema}
        for p in query
    ]
    parameters += [*headers, *_REQUEST_HEADERS]
    extra: dict[str, Any] = {"parameters": parameters}
    codes = set(errors) | {403, 421, 500}
    if path:
        codes |= {404, 422}
    if body is not None:
        parameters.append(_CONTENT_ENCODING)
        extra["requestBody"] = {"required": body_required, "content": body}
        codes |= {408, 413, 415, 422, 429}
    failures = {
        code: _answer(_ERRORS[code], _content(_ref(schemas.ErrorBody), (JSON,)), _ERROR_HEADERS.get(code))
        for code in sorted(codes)
    }
    return {"operation_id": operation_id, "responses": {**answers, **failures}, "openapi_extra": extra}


_PRODUCE_BODY = {
    **_content(_ref(schemas.ProduceRequest), (KAFKA_JSON_V2, KAFKA_BINARY_V2, JSON)),
    NDJSON: {"schema": {"type": "string", "description": "One value a line: the line's bytes, without its end."}},
    ARROW_STREAM: {"schema": {**_BINARY, "description": "Column value; optional key, timestamp, headers, partition."}},
}
_PRODUCED = _content(
    {"anyOf": [_ref(schemas.ProducedOffsets), _ref(schemas.ProducedRanges)]},
    METADATA_TYPES,
)
_REPLAYED_HEADER = {
    name: {"schema": {"type": "string", "enum": [value]}, "description": "There if all of it was stored before."}
    for name, value in REPLAYED.items()
}
_PRODUCE_ANSWERS = {
    200: _answer(
        "Stored, as `acks` asked: offsets for the JSON types, ranges for NDJSON and Arrow.", _PRODUCED, _REPLAYED_HEADER
    ),
    202: _answer("Taken (`acks=0`): nothing is durable yet, the lists are empty.", _PRODUCED, _REPLAYED_HEADER),
}
_PRODUCE_ERRORS = (400, 406, 409, 413, 503, 504)


def _produce(operation_id: str, path: Sequence[str]) -> dict[str, Any]:
    return _operation(
        operation_id,
        path=path,
        query=(ACKS, TIMEOUT_MS, KEY_FORMAT),
        headers=[*REQUEST_HEADERS, TOPIC_ID],
        body=_PRODUCE_BODY,
        answers=_PRODUCE_ANSWERS,
        errors=_PRODUCE_ERRORS,
    )


def _v2(model: dict[str, Any], description: str, headers: Mapping[str, Any] | None = None) -> dict[int, dict[str, Any]]:
    return {200: _answer(description, _content(model, METADATA_TYPES), headers)}


def _v3(model: type[BaseModel], description: str, status: int = 200) -> dict[int, dict[str, Any]]:
    return {status: _answer(description, _content(_ref(model), (JSON,)))}


def _json_body(model: type[BaseModel]) -> dict[str, Any]:
    return _content(_ref(model), JSON_REQUEST_TYPES)


_NO_CONTENT = {204: _answer("Done.")}
_PARTITION_PATH = ("topic", "partition")
_GROUP_PATH = ("group",)
_CLUSTER_PATH = ("cluster_id",)
_TOPIC_PATH = ("cluster_id", "topic")
_CONFIG_PATH = ("cluster_id", "topic", "name")

PRODUCE = _produce("produce", ("topic",))
PRODUCE_TO_PARTITION = _produce("produceToPartition", _PARTITION_PATH)
FETCH = _operation(
    "fetch",
    path=_PARTITION_PATH,
    query=(OFFSET, MAX_BYTES, MIN_BYTES, MAX_WAIT_MS),
    headers=(TOPIC_ID,),
    answers={
        200: _answer(
            "Records in offset order; empty at the high watermark when the wait is over.",
            {
                **_content(_list_of(_ref(schemas.ConsumedRecord)), (KAFKA_JSON_V2, JSON, KAFKA_BINARY_V2)),
                ARROW_STREAM: {
                    "schema": {**_BINARY, "description": "Columns offset, timestamp (ms, UTC), key, value, headers."}
                },
            },
            {
                **_RANGE_HEADERS,
                "Logstore-Next-Offset": {**_OFFSET_SCHEMA, "description": "Where to read on."},
                **TOPIC_ID_HEADERS,
            },
        )
    },
    errors=(406, 416, 429),
)
FETCH_MANY = _operation(
    "fetchMany",
    body=_json_body(schemas.FetchRequest),
    answers={
        200: _answer(
            "A response for each partition that has news, with batches as they are stored.",
            {MEDIA_TYPE: {"schema": {**_BINARY, "description": "See logstore/protocol/fetch_response.py."}}},
        )
    },
    errors=(406, 429),
)
OFFSETS = _operation(
    "getOffsets",
    path=_PARTITION_PATH,
    query=(TIMESTAMP,),
    headers=(TOPIC_ID,),
    answers=_v2(_ref(schemas.PartitionOffsets), "The offsets.", TOPIC_ID_HEADERS),
    errors=(406,),
)
DELETE_RECORDS = _operation(
    "deleteRecords",
    path=_PARTITION_PATH,
    headers=(TOPIC_ID,),
    body=_json_body(schemas.DeleteRecordsRequest),
    answers=_v2(_ref(schemas.DeletedRecords), "The new log start offset.", TOPIC_ID_HEADERS),
    errors=(406, 416, 503),
)
INIT_PRODUCER = _operation(
    "initProducer",
    body=_json_body(schemas.InitProducerRequest),
    body_required=False,
    answers=_v2(_ref(schemas.Producer), "An id that nobody else has, and the epoch to send with it."),
    errors=(400, 406, 503),
)
LIST_TOPICS = _operation(
    "listTopics", answers=_v2(_list_of({"type": "string"}), "Names of topics, sorted."), errors=(406, 422)
)
GET_TOPIC = _operation("getTopic", path=("topic",), answers=_v2(_ref(schemas.Topic), "The topic."), errors=(406,))
LIST_PARTITIONS = _operation(
    "listPartitions", path=("topic",), answers=_v2(_list_of(_ref(schemas.Partition)), "The partitions."), errors=(406,)
)
GET_PARTITION = _operation(
    "getPartition", path=_PARTITION_PATH, answers=_v2(_ref(schemas.Partition), "The partition."), errors=(406,)
)
ROLL = _operation(
    "rollTopic",
    path=("topic",),
    body=_json_body(schemas.RollRequest),
    body_required=False,
    answers=_v2(_ref(schemas.Rolled), "Committed and durable."),
    errors=(406, 503),
)
REFRESH = _operation(
    "refreshTopic",
    path=("topic",),
    body=_json_body(schemas.RefreshRequest),
    body_required=False,
    answers=_v2(_ref(schemas.Refreshed), "The table is read."),
    errors=(406, 503),
)
DROP_FOREIGN_FILES = _operation(
    "dropForeignFiles",
    path=("topic",),
    body=_json_body(schemas.DropForeignFilesRequest),
    body_required=False,
    answers=_v2(_ref(schemas.DroppedForeignFiles), "The files are out of the table."),
    errors=(400, 406, 503),
)
LIST_GROUPS = _operation(
    "listGroups", answers=_v2(_list_of({"type": "string"}), "Names of groups, sorted."), errors=(406, 422)
)
COMMIT_OFFSETS = _operation(
    "commitOffsets",
    path=_GROUP_PATH,
    body=_json_body(schemas.CommitOffsetsRequest),
    answers=_v2(_ref(schemas.CommittedOffsets), "Committed, durably."),
    errors=(406, 416, 503, 504),
)
GET_GROUP_OFFSETS = _operation(
    "getGroupOffsets",
    path=_GROUP_PATH,
    query=(TOPIC,),
    answers=_v2(_ref(schemas.GroupOffsets), "The committed offsets."),
    errors=(406,),
)
GET_GROUP_LAG = _operation(
    "getGroupLag", path=_GROUP_PATH, answers=_v2(_ref(schemas.GroupLag), "The lag."), errors=(406,)
)
DELETE_GROUP = _operation("deleteGroup", path=_GROUP_PATH, answers=_NO_CONTENT, errors=(503, 504))
LIST_CLUSTERS = _operation("listClusters", answers=_v3(schemas.ClusterList, "This cluster, alone."), errors=(406, 422))
GET_CLUSTER = _operation("getCluster", path=_CLUSTER_PATH, answers=_v3(schemas.Cluster, "This cluster."), errors=(406,))
LIST_CLUSTER_TOPICS = _operation(
    "listClusterTopics", path=_CLUSTER_PATH, answers=_v3(schemas.ClusterTopicList, "All topics."), errors=(406,)
)
CREATE_TOPIC = _operation(
    "createTopic",
    path=_CLUSTER_PATH,
    body=_json_body(schemas.CreateTopicRequest),
    answers={
        **_v3(schemas.ClusterTopic, "The topic could be created (`validate_only`)."),
        **_v3(schemas.ClusterTopic, "Created, durably.", 201),
    },
    errors=(400, 406, 503),
)
GET_CLUSTER_TOPIC = _operation(
    "getClusterTopic", path=_TOPIC_PATH, answers=_v3(schemas.ClusterTopic, "The topic."), errors=(406,)
)
UPDATE_TOPIC = _operation(
    "updateTopic",
    path=_TOPIC_PATH,
    body=_json_body(schemas.UpdateTopicRequest),
    answers=_v3(schemas.ClusterTopic, "The topic as it is now."),
    errors=(400, 406, 503),
)
DELETE_TOPIC = _operation("deleteTopic", path=_TOPIC_PATH, answers=_NO_CONTENT, errors=(503,))
LIST_CONFIGS = _operation(
    "listTopicConfigs", path=_TOPIC_PATH, answers=_v3(schemas.TopicConfigList, "Every key."), errors=(406,)
)
ALTER_CONFIGS = _operation(
    "alterTopicConfigs",
    path=_TOPIC_PATH,
    body=_json_body(schemas.AlterConfigsRequest),
    answers=_NO_CONTENT,
    errors=(400, 503),
)
GET_CONFIG = _operation(
    "getTopicConfig", path=_CONFIG_PATH, answers=_v3(schemas.TopicConfigEntry, "The key."), errors=(406,)
)
UPDATE_CONFIG = _operation(
    "updateTopicConfig",
    path=_CONFIG_PATH,
    body=_json_body(schemas.UpdateConfigRequest),
    answers=_NO_CONTENT,
    errors=(400, 503),
)
RESET_CONFIG = _operation("resetTopicConfig", path=_CONFIG_PATH, answers=_NO_CONTENT, errors=(503,))
LIVE = _operation("getLiveness", answers=_v3(schemas.Health, "The process lives."))
READY = _operation("getReadiness", answers=_v3(schemas.Readiness, "The store takes appends."), errors=(503,))
STATUS = _operation("getStatus", answers=_v3(schemas.StoreStatus, "The state of the store."), errors=(503,))
METRICS = _operation(
    "getMetrics",
    answers={200: _answer("Prometheus' text format.", {"text/plain": {"schema": {"type": "string"}}})},
)


def _component_models() -> list[type[BaseModel]]:
    return [
        model
        for model in vars(schemas).values()
        if isinstance(model, type)
        and issubclass(model, (schemas.Answer, schemas.Request))
        and model not in (schemas.Answer, schemas.Request)
    ]


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, definitions = models_json_schema([(model, "validation") for model in _component_models()], ref_template=_REF)
    document.setdefault("components", {})["schemas"] = definitions["$defs"]
    return document
