"""Examples of bodies, responses and errors in the description of the interface.

An example is made from the schema, with one value for each field name. So a topic, its partition and its records are
the same wherever they are shown, and a field that is added needs a value here (KeyError). A model with its own
``examples`` keeps those. ``tests/api/test_examples.py`` sends every example of a body to a store.
"""

from collections.abc import Mapping
from typing import Any, Final

from ingest_api.content_types import KAFKA_BINARY_V2, NDJSON

_CLUSTER = "mzKkZTDVQpOCGQBLkZc0Kw"
_URL = f"http://localhost:8082/v3/clusters/{_CLUSTER}"
_MEMBER = "5f2c1d7e-9a58-4d0c-8a39-0c6d6f3b1e52"
_NOW_MS = 1_795_248_000_000
#: Kafka's ConsumerProtocol: a subscription of clicks, and an assignment of its partition 0.
_SUBSCRIPTION = "AAEAAAABAAZjbGlja3P/////AAAAAA=="
_ASSIGNMENT = "AAEAAAABAAZjbGlja3MAAAABAAAAAP////8="

#: By the name of the field, or of the model and its field where the name alone means something else.
_VALUES: Final[Mapping[str, Any]] = {
    "adding_replicas": [],
    "added": ["page STRING"],
    "answer_bytes": 0,
    "assignment": _ASSIGNMENT,
    "base_offset": 17,
    "before_offset": 3,
    "beginning_offset": 3,
    "broker": 0,
    "broker_id": 0,
    "brokers": [0],
    "client_host": "127.0.0.1",
    "client_id": "billing-1",
    "cluster_id": _CLUSTER,
    "committed_offset": 17,
    "configs": {"cleanup.policy": "delete", "retention.ms": "604800000"},
    "columns": ["page"],
    "connections_taken_max": 10_000,
    "controller_id": 0,
    "coordinator_id": 0,
    "count": 1,
    "ddl": "page STRING",
    "deleted_files": ["part-00000-of-another-writer.snappy.parquet"],
    "deleted_files_count": 1,
    "end_offset": 18,
    "erased_ms": _NOW_MS,
    "erasure": "0f6c2d0e6a6f4c0f9a3e1b2c4d5e6f70",
    "error": None,
    "error_code": None,
    "field": "page",
    "files": ["part-00000-of-another-writer.snappy.parquet"],
    "files_done": 1,
    "fitting": 14,
    "generation": 1,
    "group": "billing",
    "group_instance_id": None,
    "heartbeat_interval_ms": 5_000,
    "high_watermark": 18,
    "host": "localhost",
    "id": "1",
    "in_sync_replicas": [0],
    "journal_files": 2,
    "key": "alice",
    "key_schema_id": None,
    "keys": ["alice"],
    "lag": 1,
    "lag_ms": 1500,
    "last_stable_offset": 18,
    "leader": 0,
    "leader_epoch": 4,
    "leaders": 2,
    "location": "file:///var/lib/logstore/topics/clicks",
    "log_end_offset": 18,
    "log_start_offset": 3,
    "left_out": [],
    "max_bytes": 1_048_576,
    "max_connections": 10_000,
    "max_lag": 1,
    "max_lag_ms": 1500,
    "member_epoch": 1,
    "member_id": _MEMBER,
    "message": None,
    "metadata": "",
    "misfits": 1,
    "name": "retention.ms",
    "needed_bytes": 4_096,
    "newest_timestamp": _NOW_MS,
    "next": None,
    "not_reached": ["backups", "mirrors", "copies of consumers"],
    "not_ready_reason": None,
    "now": _NOW_MS,
    "offset": 17,
    "open_files_max": 65_536,
    "partition": 0,
    "partition_id": 0,
    "partitions": 2,
    "partitions_count": 2,
    "pending": [],
    "plain_bytes": 2_048,
    "port": 8082,
    "problems": [],
    "producer_epoch": 0,
    "producer_id": 41,
    "protocol": "range",
    "protocol_type": "consumer",
    "rack": None,
    "reason": "closed",
    "records": 15,
    "records_behind": 1,
    "related": f"{_URL}/topics/clicks/partitions",
    "remedy": "logstore topic rebuild clicks",
    "removing_replicas": [],
    "replicas": [0],
    "replication_factor": 1,
    "request_bytes": 0,
    "requested_ms": _NOW_MS,
    "resource_name": f"crn:///kafka={_CLUSTER}/topic=clicks",
    "retained_bytes": 65_536,
    "retired": [],
    "rewritten_files": 1,
    "salt": "5f1c0a7be2d94c638f0a1b2c3d4e5f60",
    "sealed_offset": 15,
    "segments": 1,
    "self": f"{_URL}/topics/clicks",
    "since_heartbeat_ms": 1200,
    "since_poll_ms": 300,
    "size": 17,
    "size_bytes": 2_048,
    "state": "Stable",
    "step": "",
    "timestamp": _NOW_MS,
    "topic": "clicks",
    "topic_id": "8d2ab2f3-6f0e-4f5a-8a34-3f9d4f7d8f10",
    "topic_name": "clicks",
    "total_lag": 1,
    "type": "JSON",
    "typed_bytes": 2_560,
    "unfilled_files": 1,
    "unfilled_records": 2,
    "unavailable_partitions": 0,
    "under_min_isr_partitions": 0,
    "under_replicated_partitions": 0,
    "unsealed_bytes": 512,
    "unsealed_records": 3,
    "uptime_ms": 86_400_000,
    "url": "http://logstore-1.example:8082",
    "value": "604800000",
    "value_schema_id": None,
    "version": 12,
    "versions": [12],
    "waiting": None,
    "where": None,
    # The name alone means something else in these models; other fields are optional, and shown.
    "BrokerDescription.replicas": 2,
    "Column.name": "page",
    "Column.retired": False,
    "ConsumedRecord.value": {"page": "/home"},
    "ColumnsRequest.columns": "page STRING",
    "ConsumerGroupHeartbeatRequest.member_epoch": 0,
    "ConsumerGroupHeartbeatRequest.owned": [],
    "ConsumerGroupHeartbeatRequest.rebalance_timeout_ms": 300_000,
    "ConsumerGroupHeartbeatRequest.subscribed_topics": ["clicks"],
    "ConfigEntry.value": "604800000",
    "ConfigChange.value": "604800000",
    "CreateTopicRequest.partitions_count": 2,
    "ErasureProgress.files": 1,
    "ErasureRequest.keys": ["alice"],
    "GroupListing.kind": "classic",
    "GroupListing.members": 1,
    "InstanceCommitted.committed": 1,
    "InstanceCommitted.consumed": 1,
    "OffsetReset.previous_offset": 12,
    "PartitionWithOffsets.earliest_offset": 3,
    "PartitionWithOffsets.latest_offset": 18,
    "ErrorBody.error_code": 40401,
    "ErrorBody.message": "There is no topic 'clicks'.",
    "GroupDescription.kind": "classic",
    "InitProducerRequest.producer_epoch": 0,
    "JoinedGroup.leader": _MEMBER,
    "JoinedMember.metadata": _SUBSCRIPTION,
    "JournalStatus.max_bytes": 4_294_967_296,
    "ProduceRecord.key": "alice",
    "ProduceRecord.value": {"page": "/home"},
    "LeavingMember.member_id": _MEMBER,
    "TopicStatus.misfits": 1,
    "Misfit.reason": "$.page: expected a string, got a number",
    "Protocol.metadata": _SUBSCRIPTION,
    "Protocol.name": "range",
    "RecordHeader.key": "trace",
    "RecordHeader.value": "MTc=",
    "StoreStatus.version": "0.1.0",
    "SyncGroupRequest.assignments": [{"member_id": _MEMBER, "assignment": _ASSIGNMENT}],
    "Topic.name": "clicks",
    "TopicMetadata.name": "clicks",
    "TopicProblem.reason": "The table was deleted.",
    "TopicStatus.name": "clicks",
    "listGroups": ["billing"],
    "listTopics": ["clicks"],
}
#: Parameters in the path, by operation where the name alone is not enough.
PATH_VALUES: Final[Mapping[str, Any]] = {
    "broker_id": 0,
    "cluster_id": _CLUSTER,
    "consumer_id": _MEMBER,
    "erasure": "0d3f6c1e-5b8e-4f0c-9d53-0f2f1f6f7a11",
    "group": "billing",
    "instance": "c1",
    "name": "retention.ms",
    "partition": 0,
    "topic": "clicks",
    "getBrokerConfig.name": "journal.max.bytes",
}
#: Media types whose content is not JSON, or differs from what the schema alone gives.
_BY_TYPE: Final[Mapping[tuple[str, str], Any]] = {
    ("ProduceRequest", KAFKA_BINARY_V2): {"records": [{"key": "YWxpY2U=", "value": "eyJwYWdlIjoiL2hvbWUifQ=="}]},
    ("ConsumedRecord", KAFKA_BINARY_V2): [
        {
            "topic": "clicks",
            "key": "YWxpY2U=",
            "value": "eyJwYWdlIjoiL2hvbWUifQ==",
            "partition": 0,
            "offset": 17,
            "timestamp": _NOW_MS,
        }
    ],
    ("", NDJSON): '{"page":"/home"}\n{"page":"/cart"}\n',
    ("", "text/event-stream"): (
        'id: 8d2ab2f3.0:18,1:0\ndata: {"topic":"clicks","key":"alice","value":{"page":"/home"},'
        f'"partition":0,"offset":17,"timestamp":{_NOW_MS}}}\n\n'
    ),
    ("", "text/plain"): "logstore_in_flight_bytes 0.0\n",
}
_ERRORS: Final[Mapping[str, tuple[int, str]]] = {
    "400": (40002, "Topic 'clicks' exists."),
    "403": (40301, "WRITE on topic 'clicks' is not allowed for this client."),
    "404": (40401, "There is no topic 'clicks'."),
    "406": (406, "Accept allows none of application/json."),
    "408": (408, "Nothing came for 10 s in the middle of the body."),
    "409": (40911, "Sequence 7 of producer 41 does not follow 5."),
    "413": (41301, "The body is over max.request.size (104857600 bytes)."),
    "415": (415, "Content-Type text/plain is not taken here: send application/json."),
    "416": (41601, "Offset 99 of clicks-0 is out of range: 3 to 18."),
    "421": (42101, "This store is not called 'elsewhere': see allowed.hosts."),
    "422": (42206, "records: field required."),
    "429": (42901, "Too many bytes are in flight: send again later."),
    "500": (50002, "The disk failed: the outcome is unknown."),
    "503": (50301, "The store is starting."),
    "504": (50401, "The time ran out: the records may or may not be stored."),
}


def add_examples(document: dict[str, Any]) -> None:
    """Add an example to every body and response of an OpenAPI ``document`` that is not binary, and to parameters of
    paths.

    Raises KeyError for a field without a value here.
    """
    schemas = document["components"]["schemas"]
    for operation in (operation for methods in document["paths"].values() for operation in methods.values()):
        name = operation["operationId"]
        for parameter in operation["parameters"]:
            if parameter["in"] == "path":
                own = f"{name}.{parameter['name']}"
                parameter["example"] = PATH_VALUES.get(own, PATH_VALUES.get(parameter["name"]))
        body = operation.get("requestBody", {})
        for described, error in [
            (body, None),
            *((answer, _ERRORS.get(s)) for s, answer in operation["responses"].items()),
        ]:
            # Each gets a new object, because one object occurs in many places of the document.
            described["content"] = {
                media_type: {**content, **_shown(content["schema"], media_type, name, schemas, error)}
                for media_type, content in described.get("content", {}).items()
            }
            if not described["content"]:
                del described["content"]


def _shown(
    schema: Mapping[str, Any],
    media_type: str,
    operation: str,
    schemas: Mapping[str, Any],
    error: tuple[int, str] | None,
) -> dict[str, Any]:
    if error is not None:
        return {"example": {"error_code": error[0], "message": error[1]}}
    if schema.get("format") == "binary":
        return {}
    model = schema.get("$ref", schema.get("items", {}).get("$ref", "")).rpartition("/")[2]
    found = _BY_TYPE.get((model, media_type)) or _BY_TYPE.get(("", media_type))
    return {"example": found or _example(schema, "", operation, schemas)}


def _example(schema: Mapping[str, Any], model: str, field: str, schemas: Mapping[str, Any]) -> Any:
    """Return an example of ``schema``, which is that of ``field`` of ``model``."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _example(schemas[name], name, field, schemas)
    if "properties" in schema:
        return {
            name: _example(part, model, name, schemas)
            for name, part in schema["properties"].items()
            if f"{model}.{name}" in _VALUES or name in schema.get("required", ()) or part.get("default")
        }
    own = f"{model}.{field}"
    if own in _VALUES:
        return _VALUES[own]
    for choice in schema.get("anyOf", ()):
        if "$ref" in choice or "$ref" in choice.get("items", ()):
            return _example(choice, model, field, schemas)
    if schema.get("type") == "array" and "$ref" in schema["items"]:
        return [_example(schema["items"], model, field, schemas)]
    if schema.get("default"):
        return schema["default"]
    if schema.get("type") == "boolean":
        return schema.get("default", True)
    return schema.get("const", schema.get("enum", (None,))[0]) or _VALUES[field]
