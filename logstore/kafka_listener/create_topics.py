"""CreateTopics (19), versions 2 to 7: each topic by itself, at the controller."""

from collections.abc import Sequence
from typing import Final

from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.topics.configs import topic_layers
from logstore.errors import (
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    LogStoreError,
    TopicAuthorizationError,
)
from logstore.kafka_listener.change_requests import Deadline, answers, once
from logstore.kafka_listener.config_numbers import SOURCES
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from logstore.log.topic import Topic
from logstore.topic_config import CONFIG_KEYS, TopicConfig, validate_overrides

#: The number of partitions or replicas, or another number, that the store chooses.
_DEFAULT: Final = -1

_Asked = CreateTopicsRequest.CreatableTopic
_Result = CreateTopicsResponse.CreatableTopicResult


async def create_topics(
    store: KafkaStore,
    context: RequestContext,
    request: CreateTopicsRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> CreateTopicsResponse:
    deadline = Deadline(request.timeout_ms)
    single, repeated = once(request.topics, lambda topic: topic.name)

    async def answer(asked: _Asked) -> _Result:
        try:
            assignments = _assignments(asked)
            configs = _configs(asked)
            async with deadline.wait(f"The creation of topic {asked.name!r}"):
                topic = await store.broker.topics.changes.create(
                    context,
                    asked.name,
                    partitions=None if asked.num_partitions == _DEFAULT else asked.num_partitions,
                    replication_factor=None if asked.replication_factor == _DEFAULT else asked.replication_factor,
                    assignments=assignments,
                    configs=configs,
                    validate_only=request.validate_only,
                )
        except LogStoreError as error:
            return _refused(asked.name, error)
        return _created(store, context, asked, assignments, configs, topic)

    twice = [_refused(topic.name, InvalidRequestError(f"Topic {topic.name!r} is there twice.")) for topic in repeated]
    return CreateTopicsResponse(topics=[*await answers(single, answer), *twice])


def _assignments(asked: _Asked) -> list[Sequence[int]]:
    """Return the brokers of each partition's replicas; empty if the store chooses them."""
    if not asked.assignments:
        return []
    for name, number in (("partitions", asked.num_partitions), ("replicas", asked.replication_factor)):
        if number != _DEFAULT:
            raise InvalidRequestError(
                f"Topic {asked.name!r} has an assignment of replicas, and a number of {name} ({number}): send -1 as "
                "the number."
            )
    by_partition = {one.partition_index: one.broker_ids for one in asked.assignments}
    if sorted(by_partition) != list(range(len(asked.assignments))):
        raise InvalidReplicaAssignmentError(
            f"The assignment of topic {asked.name!r} names partitions "
            f"{sorted(one.partition_index for one in asked.assignments)[:100]}: name 0 and all that follow, once each."
        )
    return [by_partition[partition] for partition in range(len(by_partition))]


def _configs(asked: _Asked) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in asked.configs:
        if config.name in configs:
            raise InvalidRequestError(f"The configuration {config.name!r} of topic {asked.name!r} is there twice.")
        if config.value is None:
            raise InvalidConfigError(f"{config.name} has no value: leave it out to have its default.")
        configs[config.name] = config.value
    return configs


def _refused(name: str, error: LogStoreError) -> _Result:
    return _Result(name=name, error_code=number_of(error), error_message=error.message)


def _created(
    store: KafkaStore,
    context: RequestContext,
    asked: _Asked,
    assignments: Sequence[Sequence[int]],
    configs: dict[str, str],
    topic: Topic | None,
) -> _Result:
    """Return the result for a topic that was made, or only checked (``topic`` is None). From version 5 on it describes
    the topic (KIP-525).
    """
    topic_id = bytes(16) if topic is None else topic.topic_id.bytes
    if not store.broker.authorizer.authorize(context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, (asked.name,)):
        return _Result(
            name=asked.name,
            topic_id=topic_id,
            error_message=None,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
            topic_config_error_code=TopicAuthorizationError.kafka_code,
        )
    settings = store.settings
    overrides = validate_overrides(configs)
    values = TopicConfig.parse(overrides, settings.topic_defaults).as_strings()
    if topic is not None:
        partitions = len(topic.partitions)
        replicas = len(store.broker.topics.leaders.partition_state(INTERNAL, topic, 0).replicas)
    elif assignments:
        partitions, replicas = len(assignments), len(assignments[0])
    else:
        partitions = settings.num_partitions if asked.num_partitions == _DEFAULT else asked.num_partitions
        replicas = asked.replication_factor
        if replicas == _DEFAULT:
            replicas = settings.default_replication_factor
    return _Result(
        name=asked.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreateTopicsResponse.CreatableTopicConfigs(
                name=key.name,
                value=values[key.name],
                config_source=SOURCES[topic_layers(settings, overrides, key)[0].source],
            )
            for key in CONFIG_KEYS
        ],
    )
