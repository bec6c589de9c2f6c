"""The configuration of a topic in REST v3 shapes: each key with its value and the source of it."""

from typing import Annotated

from fastapi import Depends, Query
from starlette.requests import Request

from ingest_api.dependencies import ClusterBroker, ConfigName, Context, TopicInCluster
from ingest_api.errors import NoSuchResourceError
from ingest_api.model_routes import AdministrationRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routers.clusters import config_changes
from ingest_api.routers.links import list_metadata, page_size, resource_metadata
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.elsewhere.forwarding import Target
from logstore.broker.topics.configs import topic_layers
from logstore.errors import InvalidConfigError
from logstore.log.topic import Topic
from logstore.protocol.messages.administration import (
    AlterConfigsRequest,
    ConfigEntry,
    ConfigSynonym,
    PageQuery,
    TopicConfigEntry,
    TopicConfigList,
    UpdateConfigRequest,
)
from logstore.topic_config import CONFIG_KEYS, ConfigKey, config_key

_CONFIGS = "/v3/clusters/{cluster_id}/topics/{topic}/configs"

router = model_router(AdministrationRoute, tags=["administration"])


async def _key(_: TopicInCluster, name: ConfigName) -> ConfigKey:
    try:
        return config_key(name)
    except InvalidConfigError as error:
        raise NoSuchResourceError(error.message) from None


KeyInPath = Annotated[ConfigKey, Depends(_key)]


@router.get(
    "/v3/clusters/{cluster_id}/topics/-/configs",
    operation_id="listAllTopicConfigs",
    response_description="Every key of every topic.",
)
@requires(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, names_in="answer")
async def list_all_configs(
    request: Request, context: Context, broker: ClusterBroker, query: Annotated[PageQuery, Query()]
) -> TopicConfigList:
    """List every key of all topics, by topic: whole topics, a page at a time."""
    topics = {each.name: each for each in broker.topics.served.all(context, include_internal=True)}
    names = [name for name in sorted(topics) if name > (query.page_token or "")]
    names = broker.authorizer.authorize(context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, names)
    shown = names[: max(1, page_size(query) // len(CONFIG_KEYS))]
    next_token = shown[-1] if len(shown) < len(names) else None
    return TopicConfigList(
        metadata=list_metadata(
            request, broker.cluster_id, "topics", "-", "configs", query=query, next_token=next_token
        ),
        data=tuple(_config(request, broker, topics[name], key) for name in shown for key in CONFIG_KEYS),
    )


@router.get(_CONFIGS, operation_id="listTopicConfigs", response_description="Every key.")
@requires(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
async def list_configs(request: Request, broker: ClusterBroker, topic: TopicInCluster) -> TopicConfigList:
    """List every key with its value, set or default."""
    return TopicConfigList(
        metadata=list_metadata(request, broker.cluster_id, "topics", topic.name, "configs"),
        data=tuple(_config(request, broker, topic, key) for key in CONFIG_KEYS),
    )


@router.post(
    f"{_CONFIGS}:alter",
    operation_id="alterTopicConfigs",
    status_code=204,
    response_description="Done.",
    responses=refusals(400, 503),
)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC, target=Target.CONTROLLER)
async def alter_configs(
    broker: ClusterBroker, context: Context, topic: TopicInCluster, asked: AlterConfigsRequest
) -> None:
    """Set keys, or reset them to their defaults: all of them, or none if one is wrong."""
    entries = [
        ConfigEntry(name=change.name, value=None if change.operation == "DELETE" else change.value)
        for change in asked.data
    ]
    await broker.topics.changes.alter_configs(
        context, topic.name, config_changes(entries), validate_only=asked.validate_only
    )


@router.get(f"{_CONFIGS}/{{name}}", operation_id="getTopicConfig", response_description="The key.")
@requires(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
async def get_config(
    request: Request, broker: ClusterBroker, topic: TopicInCluster, key: KeyInPath
) -> TopicConfigEntry:
    """Return one key."""
    return _config(request, broker, topic, key)


@router.put(
    f"{_CONFIGS}/{{name}}",
    operation_id="updateTopicConfig",
    status_code=204,
    response_description="Done.",
    responses=refusals(400, 503),
)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC, target=Target.CONTROLLER)
async def update_config(
    broker: ClusterBroker, context: Context, topic: TopicInCluster, key: KeyInPath, asked: UpdateConfigRequest
) -> None:
    """Set one key; null takes it back to its default."""
    await broker.topics.changes.alter_configs(context, topic.name, {key.name: asked.value})


@router.delete(
    f"{_CONFIGS}/{{name}}",
    operation_id="resetTopicConfig",
    status_code=204,
    response_description="Done.",
    responses=refusals(503),
)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC, target=Target.CONTROLLER)
async def reset_config(broker: ClusterBroker, context: Context, topic: TopicInCluster, key: KeyInPath) -> None:
    """Take one key back to its default."""
    await broker.topics.changes.alter_configs(context, topic.name, {key.name: None})


def _config(request: Request, broker: Broker, topic: Topic, key: ConfigKey) -> TopicConfigEntry:
    layers = topic_layers(broker.settings, topic.config_overrides, key)
    return TopicConfigEntry(
        metadata=resource_metadata(request, broker, topic=topic.name, config=key.name),
        cluster_id=broker.cluster_id,
        topic_name=topic.name,
        name=key.name,
        value=topic.config.as_strings()[key.name],
        is_default=len(layers) == 1,
        is_read_only=False,
        is_sensitive=False,
        source=layers[0].source,
        synonyms=tuple(ConfigSynonym(name=layer.name, value=layer.value, source=layer.source) for layer in layers),
    )
