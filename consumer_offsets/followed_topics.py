"""The topics that consumer groups follow: which exist, and which of them a regular expression matches.

Invariant: the matches of a regex are remembered, and it is matched again only with topics that were made or deleted
since then. A thousand regexes and thousands of topics would otherwise hold up the event loop for seconds.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import re2
from cachetools import LRUCache

from consumer_offsets.groups.events import TopicDescription, TopicImage
from consumer_offsets.groups_machine import TopicsChanged
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.errors import InvalidRegularExpressionError
from logstore.limits import KIB
from logstore.log.topic import Topic

# Topics are made and deleted many at a time: groups are notified once.
_REPORT_AFTER_S = 0.1
_REGEXES_CACHED = 100
# The limit is for the matches of all regexes together; a member keeps its own names anyway.
_MATCHES_CACHED = 1_000_000
# A regex that was not matched during this many changes is matched with all topics.
_CHANGES_KEPT = 1_000
# Names are short. At RE2's own bound a pattern of 20 characters takes 9 MB, and 0.1 s of the event loop.
_REGEX_BYTES_MAX = 256 * KIB


class _Matching(NamedTuple):
    version: int
    names: frozenset[str]


class FollowedTopics:
    """``on_change`` is called soon after a topic was made, was deleted or has grown."""

    def __init__(self, broker: Broker, on_change: Callable[[TopicsChanged], None]) -> None:
        self._broker = broker
        self._on_change = on_change
        self._image: dict[str, TopicDescription] = {}
        self._is_stale = True
        #: The version of the image.
        self._version = 0
        #: The matches of each regex in the image of a version: many members have the same regex.
        self._matching: LRUCache[str, _Matching] = LRUCache(_MATCHES_CACHED, lambda found: 1 + len(found.names))
        #: Topics that were made or deleted, with the version of that change, the latest last.
        self._changed: dict[str, int] = {}
        #: Changes up to this version are not all kept.
        self._forgotten = 0
        self._reporting: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._broker.leadership_listeners.append(self._on_leadership)
        self._broker.topics.served.removals.listeners.append(self._on_deleted)

    def close(self) -> None:
        self._broker.leadership_listeners.remove(self._on_leadership)
        self._broker.topics.served.removals.listeners.remove(self._on_deleted)
        if self._reporting is not None:
            self._reporting.cancel()

    @property
    def topics(self) -> TopicImage:
        """All topics but the internal ones. The mapping is never changed."""
        if self._is_stale:
            image = {
                topic.name: TopicDescription(topic.topic_id, len(topic.partitions))
                for topic in self._broker.topics.served.all(INTERNAL)
            }
            self._version += 1
            for name in image.keys() ^ self._image.keys():
                self._changed.pop(name, None)
                self._changed[name] = self._version
            while len(self._changed) > _CHANGES_KEPT:
                self._forgotten = self._changed.pop(next(iter(self._changed)))
            self._image, self._is_stale = image, False
        return self._image

    def matching(self, regex: str) -> frozenset[str]:
        """Return the topics whose whole name matches. Raises InvalidRegularExpressionError."""
        topics = self.topics
        found = self._matching.get(regex)
        if found is not None and found.version == self._version:
            return found.names
        if found is None or found.version < self._forgotten:
            looked_at, names = set(topics), frozenset[str]()
        else:
            later = itertools.takewhile(lambda change: change[1] > found.version, reversed(self._changed.items()))
            looked_at, names = {name for name, _ in later}, found.names
        if found is None or looked_at:
            pattern = compiled(regex)
            matching = {name for name in looked_at if name in topics and pattern.fullmatch(name)}
            if matching != names & looked_at:
                names = names - looked_at | matching
        self._matching[regex] = _Matching(self._version, names)
        return names

    def changed(self) -> TopicsChanged:
        """Return the topics in the form of an event for groups."""
        return TopicsChanged(self.topics, self._matches)

    def _matches(self, regexes: frozenset[str]) -> Mapping[str, frozenset[str]]:
        return {regex: self._matching_durable(regex) for regex in regexes}

    def _matching_durable(self, regex: str) -> frozenset[str]:
        """Return the matches of a stored regex. One that only another version of RE2 accepts matches nothing, so that
        its group can still be loaded.
        """
        try:
            return self.matching(regex)
        except InvalidRegularExpressionError:
            return frozenset()

    def _on_leadership(self, topic: Topic, partition: int) -> None:  # noqa: ARG002
        # The new partitions of a topic are led from the moment they exist.
        if not topic.is_internal:
            self._report_soon()

    async def _on_deleted(self, deleted: Topic) -> None:  # noqa: ARG002
        self._report_soon()

    def _report_soon(self) -> None:
        self._is_stale = True
        if self._reporting is None:
            self._reporting = asyncio.get_running_loop().call_later(_REPORT_AFTER_S, self._report)

    def _report(self) -> None:
        self._reporting = None
        self._is_stale = True
        self._on_change(self.changed())


@lru_cache(_REGEXES_CACHED)
def compiled(regex: str) -> Any:
    """Compile the pattern with RE2, whose time is linear in the text. Raises InvalidRegularExpressionError."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_BYTES_MAX
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        raise InvalidRegularExpressionError(
            f"The regular expression {regex!r} cannot be used (RE2): {error.args[0].decode(errors='replace')}."
        ) from None
