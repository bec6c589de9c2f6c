"""The configuration of a topic in REST v3 shapes: each key with its value and where that comes from."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.answers import json_response
from ingest_api.bodies import receive_model
from ingest_api.content_types import JSON, answer_media_type
from ingest_api.errors import NoSuchResourceError
from ingest_api.guard import context_of
from ingest_api.parameters import read_query
from ingest_api.routers.clusters import broker_of, config_changes, link
from ingest_api.routes import declared_router, requires
from ingest_api.schemas import AlterConfigsRequest, ConfigEntry, UpdateConfigRequest
from logstore.broker.access import Operation, ResourceType
from logstore.broker.broker import Broker, Topic
from logstore.errors import InvalidConfigError
from logstore.topic_config import CONFIG_KEYS, ConfigKey, config_key

router = declared_router(tags=["administration"])


def _synonyms(broker: Broker, topic: Topic, key: ConfigKey) -> list[dict[str, str]]:
    """Every layer that gives the key a value, the one that counts first."""
    layers = (
        ("DYNAMIC_TOPIC_CONFIG", topic.config_overrides.get(key.name)),
        ("STATIC_BROKER_CONFIG", broker.settings.topic_defaults.get(key.name)),
        ("DEFAULT_CONFIG", key.default),
    )
    return [{"name": key.name, "value": value, "source": source} for source, value in layers if value]


def _config(request: Request, broker: Broker, topic: Topic, key: ConfigKey) -> dict[str, Any]:
    synonyms = _synonyms(broker, topic, key)
    path = (broker.cluster_id, "topics", topic.name, "configs", key.name)
    return {
        "kind": "KafkaTopicConfig",
        "metadata": {
            "self": link(request, *path),
            "resource_name": f"crn:///kafka={broker.cluster_id}/topic={topic.name}/config={key.name}",
        },
        "cluster_id": broker.cluster_id,
        "topic_name": topic.name,
        "name": key.name,
        "value": topic.config.as_strings()[key.name],
        "is_default": len(synonyms) == 1,
        "is_read_only": False,
        "is_sensitive": False,
        "source": synonyms[0]["source"],
        "synonyms": synonyms,
    }


def _key_in_path(request: Request) -> ConfigKey:
    try:
        return config_key(request.path_params["name"])
    except InvalidConfigError as error:
        raise NoSuchResourceError(error.message) from None


@router.get("/v3/clusters/{cluster_id}/topics/{topic}/configs", **openapi.LIST_CONFIGS)
@requires(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
async def list_configs(request: Request) -> Response:
    """Every key with its value, set or default."""
    read_query(request)
    answer_media_type(request.headers, (JSON,))
    broker = broker_of(request)
    topic = broker.topic(context_of(request), request.path_params["topic"], Operation.DESCRIBE_CONFIGS)
    metadata = {"self": link(request, broker.cluster_id, "topics", topic.name, "configs"), "next": None}
    configs = [_config(request, broker, topic, key) for key in CONFIG_KEYS]
    return json_response({"kind": "KafkaTopicConfigList", "metadata": metadata, "data": configs})


@router.post("/v3/clusters/{cluster_id}/topics/{topic}/configs:alter", status_code=204, **openapi.ALTER_CONFIGS)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC)
async def alter_configs(request: Request) -> Response:
    """Set keys, or take them back to their defaults: all of them, or none if one is wrong."""
    read_query(request)
    broker = broker_of(request)
    topic = broker.topic(context_of(request), request.path_params["topic"], Operation.ALTER_CONFIGS)
    asked = await receive_model(request, AlterConfigsRequest)
    entries = [
        ConfigEntry(name=change.name, value=None if change.operation == "DELETE" else change.value)
        for change in asked.data
    ]
    await broker.alter_configs(
        context_of(request), topic.name, config_changes(entries), validate_only=asked.validate_only
    )
    return Response(status_code=204)


@router.get("/v3/clusters/{cluster_id}/topics/{topic}/configs/{name}", **openapi.GET_CONFIG)
@requires(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
async def get_config(request: Request) -> Response:
    """One key."""
    read_query(request)
    answer_media_type(request.headers, (JSON,))
    broker = broker_of(request)
    topic = broker.topic(context_of(request), request.path_params["topic"], Operation.DESCRIBE_CONFIGS)
    return json_response(_config(request, broker, topic, _key_in_path(request)))


@router.put("/v3/clusters/{cluster_id}/topics/{topic}/configs/{name}", status_code=204, **openapi.UPDATE_CONFIG)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC)
async def update_config(request: Request) -> Response:
    """Set one key; null takes it back to its default."""
    read_query(request)
    broker = broker_of(request)
    topic = broker.topic(context_of(request), request.path_params["topic"], Operation.ALTER_CONFIGS)
    key = _key_in_path(request)
    asked = await receive_model(request, UpdateConfigRequest)
    await broker.alter_configs(context_of(request), topic.name, {key.name: asked.value})
    return Response(status_code=204)


@router.delete("/v3/clusters/{cluster_id}/topics/{topic}/configs/{name}", status_code=204, **openapi.RESET_CONFIG)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC)
async def reset_config(request: Request) -> Response:
    """Take one key back to its default."""
    read_query(request)
    broker = broker_of(request)
    topic = broker.topic(context_of(request), request.path_params["topic"], Operation.ALTER_CONFIGS)
    await broker.alter_configs(context_of(request), topic.name, {_key_in_path(request).name: None})
    return Response(status_code=204)
