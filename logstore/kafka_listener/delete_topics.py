"""DeleteTopics (20), versions 1 to 6: each topic by itself, by name or (version 6) by id, at the controller."""

from typing import Final, NamedTuple
from uuid import UUID

from logstore.broker.context import RequestContext
from logstore.errors import InvalidRequestError, LogStoreError
from logstore.kafka_listener.change_requests import Deadline, answers, once
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse

_NO_ID: Final = bytes(16)

_Result = DeleteTopicsResponse.DeletableTopicResult


class _Asked(NamedTuple):
    name: str | None
    topic_id: bytes = _NO_ID


async def delete_topics(
    store: KafkaStore, context: RequestContext, request: DeleteTopicsRequest, version: int
) -> DeleteTopicsResponse:
    deadline = Deadline(request.timeout_ms)
    given = (
        [_Asked(name) for name in request.topic_names]
        if version < 6
        else [_Asked(topic.name, topic.topic_id) for topic in request.topics]
    )
    single, repeated = once(given, lambda asked: asked)

    async def answer(asked: _Asked) -> _Result:
        name, topic_id = asked.name, None
        try:
            if (name is None) == (asked.topic_id == _NO_ID):
                raise InvalidRequestError("A topic is deleted by its name or by its id: send one of the two.")
            if name is None:
                topic_id = UUID(bytes=asked.topic_id)
                # A client that may not describe the topic does not see its name.
                name = store.broker.topics.served.topic_by_id(context, topic_id).name
            async with deadline.wait(f"The deletion of topic {name!r}"):
                await store.broker.topics.changes.delete(context, name, topic_id)
        except LogStoreError as error:
            return _refused(_Asked(name, asked.topic_id), error)
        return _Result(name=name, topic_id=asked.topic_id)

    twice = [_refused(asked, InvalidRequestError("The topic is there twice: send it once.")) for asked in repeated]
    return DeleteTopicsResponse(responses=[*await answers(single, answer), *twice])


def _refused(asked: _Asked, error: LogStoreError) -> _Result:
    return _Result(name=asked.name, topic_id=asked.topic_id, error_code=number_of(error), error_message=error.message)
