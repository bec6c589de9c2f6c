"""Topic ids: the header ``Logstore-Topic-Id`` names the topic that a request means, or a response is from (KIP-516)."""

from typing import Any, Final

from starlette.requests import Request
from starlette.types import Scope

from logstore.broker.authorizer import Operation
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.broker.topics.ids import require_topic_id, topic_id_text
from logstore.log.topic import Topic

TOPIC_ID: Final = "Logstore-Topic-Id"
TOPIC_ID_HEADER: Final = TOPIC_ID.lower().encode()
_IN_SCOPE: Final = "logstore.topic_id"

HEADER_PARAMETER: Final[dict[str, Any]] = {
    "name": TOPIC_ID,
    "in": "header",
    "description": "The id of the topic that is meant, as GET /topics/{topic} and the responses here give it. If "
    "the name belongs to another topic by now, the response is 404, 40406, and nothing is stored.",
    "schema": {"type": "string", "format": "uuid"},
}
RESPONSE_HEADERS: Final = {
    TOPIC_ID: {
        "schema": {"type": "string", "format": "uuid"},
        "description": "The id of the topic. If it differs from before, the topic was deleted and created again.",
    }
}


def topic_ids_of(request: Request) -> list[str]:
    """Return the topic ids in the request's headers; none if any topic with the name is meant."""
    return [value.decode("latin-1") for name, value in request.scope["headers"] if name == TOPIC_ID_HEADER]


def topic_to_read(context: RequestContext, request: Request, broker: Broker, operation: Operation) -> Topic:
    """Return the topic that the path names, for ``operation``; from here on the response has its id.

    Raises TopicAuthorizationError, UnknownTopicError, UnknownTopicIdError.
    """
    topic = broker.topics.served.topic(context, request.path_params["topic"], operation)
    request.scope[_IN_SCOPE] = topic_id_text(topic.topic_id)
    for topic_id in topic_ids_of(request):
        require_topic_id(topic, topic_id)
    return topic


async def topic_to_consume(context: RequestContext, request: Request, broker: Broker, partition: int) -> Topic:
    """Return the topic that ``topic_to_read`` returns, created first as ``Broker.find_or_create_topic`` does. The rest
    of the request has to be checked before.

    A request that names a topic id wants that topic and no new one.
    """
    if topic_ids_of(request):
        return topic_to_read(context, request, broker, Operation.READ)
    topic = await broker.topics.changes.find_or_create(context, request.path_params["topic"], Operation.READ, partition)
    request.scope[_IN_SCOPE] = topic_id_text(topic.topic_id)
    return topic


def topic_id_headers(scope: Scope) -> dict[str, str]:
    """Return headers for the response, also for an error."""
    return {TOPIC_ID: scope[_IN_SCOPE]} if _IN_SCOPE in scope else {}
