"""AlterConfigs (33), versions 0 to 2, and IncrementalAlterConfigs (44), versions 0 and 1: keys of topics.

Java's clients send both to any broker: a broker that is not the controller passes the change to the controller. The
settings of brokers are read at their start, and no request changes them.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from logstore.broker.authorizer import Operation
from logstore.broker.context import RequestContext
from logstore.errors import InvalidConfigError, InvalidRequestError, LogStoreError
from logstore.kafka_listener.change_requests import answers, once
from logstore.kafka_listener.config_numbers import BROKER, GROUP, TOPIC
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import NONE, number_of
from logstore.kafka_protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from logstore.log.topic import Topic
from logstore.topic_config import config_key

_Replacing = AlterConfigsRequest.AlterConfigsResource
_Incremental = IncrementalAlterConfigsRequest.AlterConfigsResource
_Resource = TypeVar("_Resource", bound=_Replacing | _Incremental)


class _Operation(IntEnum):
    """``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _Outcome(NamedTuple):
    """The fields of both responses, in their order."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


async def alter_configs(
    store: KafkaStore,
    context: RequestContext,
    request: AlterConfigsRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> AlterConfigsResponse:
    """Set the keys in the request. Other keys of a topic go back to their defaults."""

    def changes(topic: Topic, asked: _Replacing) -> dict[str, str | None]:
        return dict.fromkeys(topic.config_overrides) | {one.name: _given(one.name, one.value) for one in asked.configs}

    outcomes = await _alter(store, context, request.resources, changes, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=[AlterConfigsResponse.AlterConfigsResourceResponse(*one) for one in outcomes])


async def incremental_alter_configs(
    store: KafkaStore,
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
    version: int,  # noqa: ARG001
) -> IncrementalAlterConfigsResponse:
    """Change the keys in the request. Other keys of a topic stay as they are (KIP-339)."""

    def changes(topic: Topic, asked: _Incremental) -> dict[str, str | None]:
        values = topic.config.as_strings()
        # As in Kafka, an unknown key is ignored: MirrorMaker deletes keys that its source leaves at defaults, whether
        # or not the target has such keys.
        named = (one for one in asked.configs if one.config_operation != _Operation.DELETE or one.name in values)
        return {one.name: _changed(one, values) for one in named}

    outcomes = await _alter(store, context, request.resources, changes, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(*one) for one in outcomes]
    )


async def _alter(
    store: KafkaStore,
    context: RequestContext,
    resources: Sequence[_Resource],
    changes: Callable[[Topic, _Resource], Mapping[str, str | None]],
    *,
    validate_only: bool,
) -> list[_Outcome]:
    broker = store.broker
    await broker.elsewhere.until_known(one.resource_name for one in resources if one.resource_type == TOPIC)

    async def alter(asked: _Resource) -> _Outcome:
        try:
            _require_changeable(asked)
            topic = broker.topics.served.topic(context, asked.resource_name, Operation.ALTER_CONFIGS)
            changed = changes(topic, asked)
            alter = broker.topics.changes if broker.is_controller or not changed else broker.elsewhere
            await alter.alter_configs(context, topic.name, changed, validate_only=validate_only)
        except LogStoreError as error:
            return _outcome(asked, error)
        return _outcome(asked)

    def resource(one: _Resource) -> tuple[int, str]:
        return one.resource_type, one.resource_name

    single, repeated = once(resources, resource)
    twice = InvalidRequestError("The resource is there twice: send it once.")
    return [*await answers(single, alter), *(_outcome(asked, twice) for asked in repeated)]


def _require_changeable(asked: _Replacing | _Incremental) -> None:
    if asked.resource_type == BROKER:
        raise InvalidRequestError(
            "The settings of brokers are read at their start: change conf/logstore.toml or LOGSTORE_* variables, and "
            "restart the broker."
        )
    if asked.resource_type == GROUP:
        raise InvalidRequestError(
            "Groups have no configuration of their own here: group.consumer.session.timeout.ms and "
            "group.consumer.heartbeat.interval.ms of conf/logstore.toml count for all of them."
        )
    if asked.resource_type != TOPIC:
        raise InvalidRequestError(
            f"Resources of type {asked.resource_type} have no configuration here: only topics (2) are changed."
        )
    names = [one.name for one in asked.configs]
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"Configurations of {asked.resource_name} are there twice: send each once.")


def _given(name: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequestError(f"{name} has no value: a key is reset by DELETE of IncrementalAlterConfigs.")
    return value


def _changed(one: IncrementalAlterConfigsRequest.AlterableConfig, values: Mapping[str, str]) -> str | None:
    """Return the new value of a key; None is its default. ``values`` are the present ones."""
    operation = one.config_operation
    if operation == _Operation.DELETE:
        return None
    value = _given(one.name, one.value)
    if operation == _Operation.SET:
        return value
    if operation not in (_Operation.APPEND, _Operation.SUBTRACT):
        raise InvalidRequestError(
            f"{one.name} has the operation {operation}: send 0 (SET), 1 (DELETE), 2 (APPEND) or 3 (SUBTRACT)."
        )
    if config_key(one.name).kind != "list":
        raise InvalidConfigError(f"{one.name} is no list: nothing is appended to it or subtracted from it.")
    there, named = values[one.name].split(","), [part.strip() for part in value.split(",")]
    if operation == _Operation.APPEND:
        return ",".join(dict.fromkeys([*there, *named]))
    if not (left := [part for part in there if part not in named]):
        raise InvalidConfigError(f"{one.name} cannot be empty: it takes {config_key(one.name).takes}.")
    return ",".join(left)


def _outcome(asked: _Replacing | _Incremental, error: LogStoreError | None = None) -> _Outcome:
    if error is None:
        return _Outcome(NONE, None, asked.resource_type, asked.resource_name)
    return _Outcome(number_of(error), error.message, asked.resource_type, asked.resource_name)
