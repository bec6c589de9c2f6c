"""DescribeConfigs (32), versions 1 to 4: the keys of topics, the settings of this broker, and those of them that apply
to consumer groups.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.topics.configs import ConfigLayer, setting_layers, topic_layers
from logstore.errors import InvalidRequestError, LogStoreError
from logstore.kafka_listener.config_numbers import BROKER, GROUP, SOURCES, TOPIC, TYPES
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import DescribeConfigsRequest, DescribeConfigsResponse
from logstore.settings import plain_settings, setting_description, setting_kind
from logstore.topic_config import CONFIG_KEYS

#: Kafka's keys of a group that apply here.
GROUP_KEYS: Final = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")
#: Other tasks of the event loop have their turn after this many resources.
_STEP: Final = 20

_Asked = DescribeConfigsRequest.DescribeConfigsResource
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = DescribeConfigsResponse.DescribeConfigsResourceResult
_Synonym = DescribeConfigsResponse.DescribeConfigsSynonym


async def describe_configs(
    store: KafkaStore,
    context: RequestContext,
    request: DescribeConfigsRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> DescribeConfigsResponse:
    await store.broker.elsewhere.until_known(
        one.resource_name for one in request.resources if one.resource_type == TOPIC
    )

    def answer(asked: _Asked) -> _Result:
        names = frozenset(asked.configuration_keys or ())

        def is_wanted(name: str) -> bool:
            return not names or name in names

        try:
            if asked.resource_type == TOPIC:
                configs = _of_topic(store, context, asked.resource_name, request, is_wanted)
            elif asked.resource_type == BROKER:
                configs = _of_broker(store, context, asked.resource_name, request, is_wanted)
            elif asked.resource_type == GROUP:
                configs = _of_group(store, context, asked.resource_name, request, is_wanted)
            else:
                raise InvalidRequestError(
                    f"Resources of type {asked.resource_type} have no configuration here: ask for topics (2), "
                    "brokers (4) or groups (32)."
                )
            return _Result(
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
                error_message=None,
                configs=list(configs),
            )
        except LogStoreError as error:
            return _Result(
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
                error_code=number_of(error),
                error_message=error.message,
            )

    # Responses are much larger than requests, so a repeated resource gets one result.
    resources = {(one.resource_type, one.resource_name): one for one in reversed(request.resources)}
    results = []
    for done, asked in enumerate(reversed(resources.values())):
        if done % _STEP == 0:
            await asyncio.sleep(0)
        results.append(answer(asked))
    return DescribeConfigsResponse(results=results)


def _of_topic(
    store: KafkaStore,
    context: RequestContext,
    name: str,
    request: DescribeConfigsRequest,
    is_wanted: Callable[[str], bool],
) -> Iterator[_Config]:
    topic = store.broker.topics.served.topic(context, name, Operation.DESCRIBE_CONFIGS)
    values = topic.config.as_strings()
    for key in CONFIG_KEYS:
        if not is_wanted(key.name):
            continue
        layers = topic_layers(store.settings, topic.config_overrides, key)
        yield _Config(
            name=key.name,
            value=values[key.name],
            config_source=SOURCES[layers[0].source],
            synonyms=_synonyms(layers) if request.include_synonyms else (),
            config_type=TYPES[key.kind],
            documentation=key.doc if request.include_documentation else None,
        )


def _of_group(
    store: KafkaStore,
    context: RequestContext,
    group: str,
    request: DescribeConfigsRequest,
    is_wanted: Callable[[str], bool],
) -> Iterator[_Config]:
    """Yield the keys of KIP-848, which have the values of the store's settings for every group."""
    store.broker.authorizer.require(context, Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, group)
    settings = plain_settings()
    for name in GROUP_KEYS:
        setting = f"group.{name}"
        if not is_wanted(name):
            continue
        found = setting_layers(store.settings, setting, settings[setting])
        yield _Config(
            name=name,
            value=found.value,
            read_only=True,
            config_source=SOURCES[found.source],
            synonyms=_synonyms(found.layers) if request.include_synonyms else (),
            config_type=TYPES[setting_kind(settings[setting])],
            documentation=setting_description(settings[setting]) if request.include_documentation else None,
        )


def _of_broker(
    store: KafkaStore,
    context: RequestContext,
    name: str,
    request: DescribeConfigsRequest,
    is_wanted: Callable[[str], bool],
) -> Iterator[_Config]:
    """Yield the settings of this broker. They are read at its start: no request changes one."""
    store.broker.authorizer.require_cluster(context, Operation.DESCRIBE_CONFIGS)
    if not name:
        return  # No name means the settings that a request has set for all brokers, and there are none.
    if name != str(store.node_id):
        raise InvalidRequestError(f"This is broker {store.node_id}, and tells its own settings: ask broker {name!r}.")
    for setting, field in plain_settings().items():
        if not is_wanted(setting):
            continue
        found = setting_layers(store.settings, setting, field)
        yield _Config(
            name=setting,
            value=found.value,
            read_only=True,
            config_source=SOURCES[found.source],
            is_sensitive=found.is_secret,
            synonyms=_synonyms(found.layers) if request.include_synonyms else (),
            config_type=TYPES[setting_kind(field)],
            documentation=setting_description(field) if request.include_documentation else None,
        )


def _synonyms(layers: list[ConfigLayer]) -> list[_Synonym]:
    return [_Synonym(name=layer.name, value=layer.value, source=SOURCES[layer.source]) for layer in layers]
