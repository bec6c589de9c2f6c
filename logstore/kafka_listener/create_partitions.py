"""CreatePartitions (37), versions 0 to 3: each topic by itself, at the controller."""

from logstore.broker.authorizer import Operation
from logstore.broker.context import RequestContext
from logstore.errors import InvalidPartitionsError, InvalidRequestError, LogStoreError
from logstore.kafka_listener.change_requests import Deadline, answers, once
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import NONE, number_of
from logstore.kafka_protocol.messages import CreatePartitionsRequest, CreatePartitionsResponse

_Asked = CreatePartitionsRequest.CreatePartitionsTopic
_Result = CreatePartitionsResponse.CreatePartitionsTopicResult


async def create_partitions(
    store: KafkaStore,
    context: RequestContext,
    request: CreatePartitionsRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> CreatePartitionsResponse:
    deadline = Deadline(request.timeout_ms)
    single, repeated = once(request.topics, lambda topic: topic.name)

    async def answer(asked: _Asked) -> _Result:
        try:
            there = len(store.broker.topics.served.topic(context, asked.name, Operation.ALTER).partitions)
            if asked.count == there:  # HTTP accepts this, because a request may be repeated there.
                raise InvalidPartitionsError(f"Topic {asked.name!r} has {there} partitions already.")
            async with deadline.wait(f"Adding partitions to topic {asked.name!r}"):
                await store.broker.topics.changes.add_partitions(
                    context,
                    asked.name,
                    asked.count,
                    assignments=[one.broker_ids for one in asked.assignments or ()],
                    validate_only=request.validate_only,
                )
        except LogStoreError as error:
            return _result(asked, error)
        return _result(asked)

    twice = [_result(topic, InvalidRequestError(f"Topic {topic.name!r} is there twice.")) for topic in repeated]
    return CreatePartitionsResponse(results=[*await answers(single, answer), *twice])


def _result(asked: _Asked, error: LogStoreError | None = None) -> _Result:
    if error is None:
        return _Result(name=asked.name, error_code=NONE)
    return _Result(name=asked.name, error_code=number_of(error), error_message=error.message)
