"""Topic ids (KIP-516): whether a topic is the one that a request means. Another topic may have the name by now."""

import functools
import uuid

from logstore.errors import UnknownTopicIdError
from logstore.log.topic import Topic

_SHOWN_CHARS = 36


@functools.lru_cache(4096)
def topic_id_text(topic_id: uuid.UUID) -> str:
    """A topic id as answers give it. Cached, because a fetch compares one per partition."""
    return str(topic_id)


def require_topic_id(topic: Topic, topic_id: str | None) -> None:
    """``topic_id`` as answers give it; None: whichever topic has the name. Raises UnknownTopicIdError."""
    if topic_id is not None and topic_id != topic_id_text(topic.topic_id):
        raise UnknownTopicIdError(
            f"Topic {topic.name!r} has id {topic.topic_id}, not {topic_id[:_SHOWN_CHARS]!r}: it was deleted and made "
            "again. Offsets and sequence numbers of the other one mean nothing here."
        )
