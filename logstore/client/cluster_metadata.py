"""A client's view of its cluster: the brokers, the leaders of the partitions that it uses, the coordinators of groups.

A request goes to the broker that handles it. Any broker can be asked for the view. The client asks when it first needs
the view, when the view is old, and when a request has met a broker that is gone or no longer right. Where the view
knows nothing, and on one node, a request goes to any broker, which forwards it.

Invariants:

- Of two leaders of a partition the one with the higher leader epoch counts, whichever is reported later: an old broker
  takes nothing back.
- A lookup sees one response as a whole. Lookups take no lock.
- A broker whose advertised address cannot be reached from here gets its requests through another one, which forwards
  them, until it leaves the cluster, gets another address, or the view is old.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final, TypeAlias, TypeVar

from logstore import errors
from logstore.client.metadata import TopicPartitions, decode
from logstore.client.transport import Transport, stores_nothing
from logstore.errors import LogStoreError
from logstore.protocol.error_codes import error_of
from logstore.protocol.messages.metadata import Metadata, TopicMetadata

log = logging.getLogger(__name__)

#: Used in place of a broker's id: any broker may be asked.
ANY_BROKER: Final = None
#: Used in place of a broker's id: the partition has no leader now.
NO_LEADER: Final = -1

DEFAULT_MAX_AGE_MS: Final = 300_000
# One broker that hangs must not use up the time of a request that waits for the view.
_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 5.0
# A broker that started a moment ago may not know a topic yet, so others are asked before the topic counts as gone.
_DOUBT_S: Final = 5.0
# An attempt to reach a broker may take seconds.
_UNREACHABLE_S_MIN: Final = 30.0
# The head of a request may have 64 KiB.
_NAMES_LENGTH_MAX: Final = 16_000

T = TypeVar("T")
#: The leader of a partition (topic, number), or the coordinator of a group (its name).
Role: TypeAlias = tuple[str, int] | str


@dataclass(frozen=True, slots=True)
class _Leaders:
    """The leaders and leader epochs of the topic with ``topic_id``, by partition."""

    topic_id: str
    leaders: tuple[int, ...]
    epochs: tuple[int, ...]

    def newer(self, found: "_Leaders") -> "_Leaders":
        """Return ``found``, but keep our leader where its epoch is higher or ``found`` lacks the partition."""
        if found.topic_id != self.topic_id:
            return found
        pairs = zip_longest(found.by_epoch(), self.by_epoch(), fillvalue=(-2, NO_LEADER))
        best = [max(pair, key=lambda one: one[0]) for pair in pairs]  # max() takes the first of equals
        return _Leaders(found.topic_id, tuple(leader for _, leader in best), tuple(epoch for epoch, _ in best))

    def by_epoch(self) -> Iterator[tuple[int, int]]:
        return zip(self.epochs, self.leaders, strict=True)


@dataclass(slots=True)
class Way:
    """The route of a request; without ``url`` any broker forwards it. ``was_refused``: its response is a refusal."""

    url: str | None
    was_refused: bool = False


@dataclass(frozen=True, slots=True)
class _View:
    """A snapshot of the cluster. ``urls`` are those of a cluster's brokers by id, empty on one node and at first."""

    cluster_id: str = ""
    controller_id: int = -1
    urls: Mapping[int, str] = field(default_factory=dict)
    topics: Mapping[str, _Leaders] = field(default_factory=dict)
    coordinators: Mapping[str, int] = field(default_factory=dict)


class ClusterMetadata:
    """The view of one client. Safe from several threads.

    It is requested over ``transport``. That transport, and those passed to ``add``, receive the brokers' addresses.
    """

    def __init__(self, transport: Transport, *, max_age_ms: float = DEFAULT_MAX_AGE_MS) -> None:
        self._transport = transport
        self._transports = [transport]
        self._max_age_s = max_age_ms / 1000
        self._view = _View()
        #: When the current view of a topic, or of a group's coordinator, was requested (monotonic).
        self._asked: dict[str, float] = {}
        self._asked_coordinator: dict[str, float] = {}
        self._asked_at_all = 0.0
        # Unreachable URLs with the time since when; the lock guards them, as it guards the views.
        self._unreachable: dict[str, float] = {}
        self._warned: set[str] = set()
        # Topics of the view that a broker does not know, with the time since when.
        self._doubted: dict[str, float] = {}
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Send no more requests and end the waits for them; the view stays as it is."""
        self._closed = True
        self._transport.interrupt()

    def add(self, transport: Transport) -> Transport:
        """Keep the addresses of ``transport`` up to date also."""
        with self._lock:
            self._transports.append(transport)
        transport.set_brokers(self._view.urls.values())
        return transport

    # ---- looking up -------------------------------------------------------------------------------------------------

    @property
    def is_cluster(self) -> bool:
        """True if there are brokers to choose from; False as long as nothing is known."""
        return bool(self._view.urls)

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty as long as nothing is known."""
        return self._view.cluster_id

    @property
    def destinations(self) -> int:
        """The number of possible destinations: 1 on one node, else each broker, ANY_BROKER, and NO_LEADER."""
        urls = self._view.urls
        return len(urls) + 2 if urls else 1

    def leaders(self, topic: str) -> Sequence[int] | None:
        """Return the leader's id, or NO_LEADER, for each partition of ``topic``; None if any broker may be asked."""
        view = self._view
        found = view.topics.get(topic) if view.urls else None
        return None if found is None else found.leaders

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the id of the leader, NO_LEADER, or ANY_BROKER if nothing is known."""
        leaders = self.leaders(topic)
        return ANY_BROKER if leaders is None or partition >= len(leaders) else leaders[partition]

    def is_unheard_of(
        self, error: LogStoreError, topic: str, topic_id: str, partition: int | None = None, *, began: float
    ) -> bool:
        """Return True if the leader refused a request with ``error``, sent at ``began``, only because it does not know
        the topic, or a new partition of it, yet.
        """
        if not self.is_cluster or not isinstance(error, (errors.UnknownTopicError, errors.UnknownPartitionError)):
            return False
        with suppress(LogStoreError):
            self.refresh([topic], since=began)
        found = self._view.topics.get(topic)
        return found is not None and found.topic_id == topic_id and (partition or 0) < len(found.leaders)

    # ---- the way to a broker ----------------------------------------------------------------------------------------

    @contextmanager
    def way_to(self, broker_id: int | None, role: Role) -> Iterator["Way"]:
        """Yield the route to a broker for a request that the block sends. ``role`` is why the request goes there.

        If a broker accepts no connection, the next requests for it go through other brokers.
        """
        url = None if broker_id is ANY_BROKER else self._view.urls.get(broker_id)
        since = None if url is None else self._unreachable.get(url)
        if url is None or (since is not None and time.monotonic() < since + max(self._max_age_s, _UNREACHABLE_S_MIN)):
            yield (way := Way(None))
            if url is not None and url not in self._warned and not way.was_refused:
                self._warn(broker_id, url, role)
            return
        try:
            yield Way(url)
        except errors.StoreUnreachableError:
            with self._lock:
                if url in self._view.urls.values():
                    self._unreachable[url] = time.monotonic()
            raise
        if since is not None:
            with self._lock:
                self._unreachable.pop(url, None)
                self._warned.discard(url)

    def _warn(self, broker_id: int | None, url: str, role: Role) -> None:
        """Warn if a broker is unreachable from here, after another one has handled its request.

        It may instead have died and been replaced in its role.
        """
        with suppress(LogStoreError):
            if isinstance(role, str):
                self.refresh(group=role)
                right = self._view.coordinators.get(role)
            else:
                self.refresh([role[0]])
                right = self.leader(*role)
            if right == broker_id and url in self._unreachable and url not in self._warned:
                self._warned.add(url)
                log.warning(
                    "Broker %s cannot be reached at %s from here: its requests go through another broker. Is that its "
                    "advertised address, and can this machine reach it?",
                    broker_id,
                    url,
                )

    def ask_coordinator(self, group: str, send: Callable[[str | None], T]) -> T:
        """Call ``send`` with the URL of the coordinator of ``group``, or with None for any broker.

        Raises what ``send`` raises. If the coordinator may have moved, the next request looks it up again.
        """
        if self.is_cluster and self._view.coordinators.get(group) not in self._view.urls:
            with suppress(LogStoreError):
                self.refresh(group=group)
        began = time.monotonic()
        try:
            with self.way_to(self._view.coordinators.get(group, ANY_BROKER), group) as way:
                return send(way.url)
        except LogStoreError as error:
            if self.may_have_moved(error):
                with self._lock:
                    if self._asked_coordinator.get(group, began) <= began:
                        others = {one: at for one, at in self._view.coordinators.items() if one != group}
                        self._view = replace(self._view, coordinators=others)
            raise

    def ask_leader(
        self, topic: str, partition: int, send: Callable[[str | None], T], *, topic_id: str | None = None
    ) -> T:
        """Call ``send`` with the URL of a partition's leader, as ``ask_coordinator`` does.

        Raises LeaderNotAvailableError if the leader does not know the topic with ``topic_id`` yet.
        """
        if self.is_cluster:
            self.keep_fresh([topic])
        began = time.monotonic()
        try:
            with self.way_to(self.leader(topic, partition), (topic, partition)) as way:
                return send(way.url)
        except LogStoreError as error:
            self.after(error, [topic], began)
            if topic_id is not None and self.is_unheard_of(error, topic, topic_id, partition, began=began):
                raise errors.LeaderNotAvailableError(f"The leader has not heard of it yet: {error.message}") from None
            raise

    # ---- asking -----------------------------------------------------------------------------------------------------

    @staticmethod
    def may_have_moved(error: LogStoreError) -> bool:
        """Return True if another broker may handle the request that failed with ``error``."""
        if isinstance(error, errors.ThrottledError):
            return False
        lost = (errors.NetworkError, errors.RequestTimedOutError, errors.NotEnoughReplicasAfterAppendError)
        return isinstance(error, lost) or stores_nothing(error)

    def find(
        self, topics: Iterable[str], *, timeout_s: float | None = None, may_create: bool = False
    ) -> dict[str, TopicPartitions | LogStoreError]:
        """Request these topics; return the id and partition count of each, or the error that the store gives for it.

        With ``may_create`` a topic that does not exist is created, if the store does so. Raises as
        ``Transport.ask_around``.
        """
        names = list(dict.fromkeys(topics))
        answered = self.refresh(names, timeout_s=timeout_s, may_create=may_create)
        return {name: self._found(name, answered.get(name)) for name in names}

    def _found(self, name: str, topic: TopicMetadata | None) -> TopicPartitions | LogStoreError:
        if (known := self._view.topics.get(name)) is not None:
            return TopicPartitions(known.topic_id, len(known.leaders))
        if topic is None:  # the name is empty, or has a comma: the store saw several
            return errors.UnknownTopicError(f"Topic {name!r} not found.")
        if topic.topic_id is None:
            return error_of(topic.error_code or 500, topic.message or "")
        return TopicPartitions(topic.topic_id, len(topic.partitions))

    def refresh(
        self,
        topics: Iterable[str] = (),
        group: str | None = None,
        *,
        since: float | None = None,
        timeout_s: float | None = None,
        may_create: bool = False,
    ) -> dict[str, TopicMetadata]:
        """Request these topics, this coordinator and the brokers; return the store's response on the topics, by name.

        ``may_create`` is as for ``find``. What was requested after ``since`` (monotonic) is not requested again. Raises
        as ``Transport.ask_around``.
        """
        found: dict[str, TopicMetadata] = {}
        for names in _pieces(topics):
            found |= self._refresh(names, group, since, timeout_s, may_create=may_create)
            group = None
        return found

    def after(self, error: LogStoreError, topics: Iterable[str], began: float) -> None:
        """Request the view again after a request for ``topics``, sent at ``began`` (monotonic), failed with ``error``.

        It is requested only if it may be wrong and no thread has done so since. Errors are left to the next request.
        """
        if self.is_cluster and self.may_have_moved(error):
            with suppress(LogStoreError):
                self.refresh(topics, since=began)

    def keep_fresh(self, topics: Iterable[str]) -> bool:
        """Request those of ``topics`` that are unknown or old; return True if there were any.

        Errors are left to the next request.
        """
        now = time.monotonic()
        old = [topic for topic in topics if now >= self._asked.get(topic, -self._max_age_s) + self._max_age_s]
        if not old:
            return False
        try:
            self.refresh(old, timeout_s=_TIMEOUT_S)
        except LogStoreError:
            # While there is no response, do not ask again before each request.
            self._asked.update(dict.fromkeys(old, now - self._max_age_s + _RETRY_S))
        return True

    def load(self, *, timeout_s: float | None = None) -> None:
        """Request the brokers, unless they are known. Raises as ``refresh``."""
        if not self._view.cluster_id:
            self.refresh(timeout_s=timeout_s)

    def _refresh(
        self,
        names: Sequence[str],
        group: str | None,
        since: float | None,
        timeout_s: float | None,
        *,
        may_create: bool,
    ) -> dict[str, TopicMetadata]:
        if since is not None:
            names = [name for name in names if self._asked.get(name, since) <= since]
            if not names and group is None and self._asked_at_all > since:
                return {}
        params = {"topics": ",".join(names)} if names else {}
        if names and not may_create:
            params["allow_auto_topic_creation"] = "false"
        if group is not None:
            params["group"] = group
        began = time.monotonic()
        timeout_s = self._transport.request_timeout_s if timeout_s is None else timeout_s
        if self.is_cluster:
            timeout_s = min(timeout_s, _TIMEOUT_S)
        content = self._transport.ask_around(
            "/metadata", params=params, timeout_s=timeout_s, is_cancelled=lambda: self._closed
        ).content
        response = decode(content, Metadata)
        with self._lock:
            self._take(response, names, group, began)
            transports, urls = list(self._transports), tuple(self._view.urls.values())
            is_doubted = any(name in self._doubted for name in names)
        for transport in transports:
            transport.set_brokers(urls)
        if is_doubted:
            self._transport.prefer_another()
        return {topic.name: topic for topic in response.topics}

    def _take(self, response: Metadata, names: Sequence[str], group: str | None, began: float) -> None:
        """Store a response in a new view. The caller holds the lock."""
        view = self._view
        topics, coordinators = dict(view.topics), dict(view.coordinators)
        urls = {one.broker_id: one.url for one in response.brokers if one.url is not None}
        for name in names:
            self._asked[name] = began
        for topic in response.topics:
            if topic.topic_id is None:
                self._asked[topic.name] = began - self._max_age_s + _RETRY_S
                since = self._doubted.setdefault(topic.name, began)
                if topic.name not in topics or not urls or began - since >= _DOUBT_S:
                    topics.pop(topic.name, None)
                    del self._doubted[topic.name]
                continue
            self._doubted.pop(topic.name, None)
            found = _Leaders(
                topic.topic_id,
                tuple(partition.leader for partition in topic.partitions),
                tuple(partition.leader_epoch for partition in topic.partitions),
            )
            topics[topic.name] = topics[topic.name].newer(found) if topic.name in topics else found
        if group is not None and response.coordinator_id is not None:
            coordinators[group] = response.coordinator_id
            self._asked_coordinator[group] = began
        self._unreachable = {url: at for url, at in self._unreachable.items() if url in urls.values()}
        self._warned.intersection_update(urls.values())
        self._asked_at_all = began
        self._view = _View(response.cluster_id, response.controller_id, urls, topics, coordinators)


def _pieces(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield ``names`` in pieces that fit into one request each; at least one piece, which may be empty."""
    piece: list[str] = []
    length = 0
    for name in dict.fromkeys(names):
        if piece and length + len(name) >= _NAMES_LENGTH_MAX:
            yield piece
            piece, length = [], 0
        piece.append(name)
        length += len(name) + 1
    yield piece
