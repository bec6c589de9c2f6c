"""Topic ids (KIP-516): a check that a topic is the one that a request means, as another may have the name now."""

import functools
import uuid

from logstore.errors import UnknownTopicIdError
from logstore.log.topic import Topic

_SHOWN_CHARS = 36


@functools.lru_cache(4096)
def topic_id_text(topic_id: uuid.UUID) -> str:
    """Return a topic id as responses have it. Cached, because a fetch compares one per partition."""
    return str(topic_id)


def require_topic_id(topic: Topic, topic_id: str | None) -> None:
    """Raise UnknownTopicIdError if the topic has another id. ``topic_id`` is written as in responses; None allows any
    topic of the name.
    """
    if topic_id is not None and topic_id != topic_id_text(topic.topic_id):
        raise UnknownTopicIdError(
            f"Topic {topic.name!r} has id {topic.topic_id}, not {topic_id[:_SHOWN_CHARS]!r}: it was deleted and made "
            "again. Offsets and sequence numbers of the other one mean nothing here."
        )
