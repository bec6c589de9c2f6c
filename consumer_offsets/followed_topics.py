"""The topics that consumer groups follow: which there are, and which of them a regular expression matches."""

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import re2

from consumer_offsets.groups.events import TopicDescription, TopicImage
from consumer_offsets.groups_machine import TopicsChanged
from logstore.broker.broker import Broker, Topic
from logstore.broker.context import INTERNAL
from logstore.errors import InvalidRegularExpressionError
from logstore.limits import KIB

# Topics are made and deleted many at a time: groups are told once.
_TELL_AFTER_S = 0.1
_REGEXES_CACHED = 100
# Names are short. At RE2's own bound a pattern of 20 characters takes 9 MB, and 0.1 s of the event loop.
_REGEX_BYTES_MAX = 256 * KIB


class FollowedTopics:
    """``on_change`` is called, soon after, when a topic was made, deleted or has grown."""

    def __init__(self, broker: Broker, on_change: Callable[[TopicsChanged], None]) -> None:
        self._broker = broker
        self._on_change = on_change
        self._image: dict[str, TopicDescription] | None = None
        #: What some regexes match in the image: many members have the same one.
        self._matching: dict[str, frozenset[str]] = {}
        self._telling: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._broker.leadership_listeners.append(self._on_leadership)
        self._broker.topic_deleted_listeners.append(self._on_deleted)

    def close(self) -> None:
        self._broker.leadership_listeners.remove(self._on_leadership)
        self._broker.topic_deleted_listeners.remove(self._on_deleted)
        if self._telling is not None:
            self._telling.cancel()

    @property
    def topics(self) -> TopicImage:
        """All topics, without the store's own. The mapping is not changed later."""
        if self._image is None:
            self._image = {
                topic.name: TopicDescription(topic.topic_id, len(topic.partitions))
                for topic in self._broker.topics(INTERNAL)
            }
            self._matching.clear()
        return self._image

    def matching(self, regex: str) -> frozenset[str]:
        """Topics whose whole name matches. InvalidRegularExpressionError."""
        topics = self.topics
        found = self._matching.get(regex)
        if found is None:
            pattern = compiled(regex)
            found = frozenset(name for name in topics if pattern.fullmatch(name))
            if len(self._matching) >= _REGEXES_CACHED:
                self._matching.clear()
            self._matching[regex] = found
        return found

    def changed(self) -> TopicsChanged:
        """What groups are told now."""
        return TopicsChanged(self.topics, self._matches)

    def _matches(self, regexes: frozenset[str]) -> Mapping[str, frozenset[str]]:
        return {regex: self._matching_durable(regex) for regex in regexes}

    def _matching_durable(self, regex: str) -> frozenset[str]:
        """One that another version of RE2 took keeps no group from being loaded: it matches nothing."""
        try:
            return self.matching(regex)
        except InvalidRegularExpressionError:
            return frozenset()

    def _on_leadership(self, topic: Topic, partition: int) -> None:  # noqa: ARG002
        # The new partitions of a topic are led from the moment they are there.
        if not topic.is_internal:
            self._tell()

    async def _on_deleted(self, deleted: Topic) -> None:  # noqa: ARG002
        self._tell()

    def _tell(self) -> None:
        self._image = None
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_TELL_AFTER_S, self._told)

    def _told(self) -> None:
        self._telling = None
        self._image = None
        self._on_change(self.changed())


@lru_cache(_REGEXES_CACHED)
def compiled(regex: str) -> Any:
    """The pattern, of RE2: its time is linear in the text. InvalidRegularExpressionError."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_BYTES_MAX
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        raise InvalidRegularExpressionError(
            f"The regular expression {regex!r} cannot be used (RE2): {error.args[0].decode(errors='replace')}."
        ) from None
