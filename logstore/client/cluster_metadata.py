"""A client's view of its cluster: the brokers, the leaders of the partitions that it uses, the coordinators of groups.

Requests go to the broker that answers them. The view is asked for from any broker, when it is first needed, when it is
old, and when a request has met a broker that is gone or no longer right. Where the view has nothing, and on one node, a
request goes to any broker, which forwards it.

Invariants:

- Of two leaders of a partition the one with the higher leader epoch counts, whichever is told later: an old broker
  takes nothing back.
- Whoever looks something up sees one answer as a whole. Looking up takes no lock.
- A broker whose own address cannot be reached from here gets its requests through another one, which forwards them,
  until it leaves the cluster, gets another address, or the view is old.
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
from logstore.client.metadata import TopicMetadata, TopicPartitions, decode
from logstore.client.transport import Transport, stores_nothing
from logstore.errors import LogStoreError
from logstore.protocol.error_codes import error_of

log = logging.getLogger(__name__)

#: In the place of a broker: any of them.
ANY_BROKER: Final = None
#: In the place of a broker: the partition has no leader now.
NO_LEADER: Final = -1

DEFAULT_MAX_AGE_MS: Final = 300_000
# One broker that hangs must not use up the time of a request that waits for the view.
_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 5.0
# A broker that has started a moment ago may not have heard of a topic yet: others are asked before it is gone.
_DOUBT_S: Final = 5.0
# An attempt to reach a broker may take seconds.
_UNREACHABLE_S_MIN: Final = 30.0
# A request's head has 64 KiB.
_NAMES_LENGTH_MAX: Final = 16_000

T = TypeVar("T")
#: The leader of a partition, by topic and number, or the coordinator of a group, by name.
Role: TypeAlias = tuple[str, int] | str


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """``url`` is None on one node."""

    broker_id: int
    url: str | None


@dataclass(frozen=True, slots=True)
class _Answer:
    cluster_id: str
    controller_id: int
    brokers: tuple[_Endpoint, ...]
    topics: tuple[TopicMetadata, ...]
    coordinator_id: int | None


@dataclass(frozen=True, slots=True)
class _Leaders:
    """Of the topic with ``topic_id``, by partition."""

    topic_id: str
    leaders: tuple[int, ...]
    epochs: tuple[int, ...]

    def newer(self, found: "_Leaders") -> "_Leaders":
        """``found``, but for partitions whose leader here has a higher epoch, and for those that it does not know."""
        if found.topic_id != self.topic_id:
            return found
        pairs = zip_longest(found.by_epoch(), self.by_epoch(), fillvalue=(-2, NO_LEADER))
        best = [max(pair, key=lambda one: one[0]) for pair in pairs]  # the first of equals
        return _Leaders(found.topic_id, tuple(leader for _, leader in best), tuple(epoch for epoch, _ in best))

    def by_epoch(self) -> Iterator[tuple[int, int]]:
        return zip(self.epochs, self.leaders, strict=True)


@dataclass(slots=True)
class Way:
    """``url`` None: to any broker, which forwards. ``was_refused``: there is an answer, and it is a refusal."""

    url: str | None
    was_refused: bool = False


@dataclass(frozen=True, slots=True)
class _View:
    """``urls`` are those of the brokers of a cluster, by id; none on one node, and before the first answer."""

    cluster_id: str = ""
    controller_id: int = -1
    urls: Mapping[int, str] = field(default_factory=dict)
    topics: Mapping[str, _Leaders] = field(default_factory=dict)
    coordinators: Mapping[str, int] = field(default_factory=dict)


class ClusterMetadata:
    """The view of one client. Safe from several threads. It is asked for over ``transport``; that one, and those that
    are ``add``-ed, are told the brokers' addresses.
    """

    def __init__(self, transport: Transport, *, max_age_ms: float = DEFAULT_MAX_AGE_MS) -> None:
        self._transport = transport
        self._transports = [transport]
        self._max_age_s = max_age_ms / 1000
        self._view = _View()
        #: When the view was asked for that there is now (monotonic): of a topic, of a group's coordinator.
        self._asked: dict[str, float] = {}
        self._asked_coordinator: dict[str, float] = {}
        self._asked_at_all = 0.0
        # By URL since when; guarded by the lock of changes, as are the views.
        self._unreachable: dict[str, float] = {}
        self._told: set[str] = set()
        # Topics of the view that a broker does not know, since when.
        self._doubted: dict[str, float] = {}
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Ask for nothing any more; the view stays as it is. Whoever waits for it waits no longer."""
        self._closed = True
        self._transport.interrupt()

    def add(self, transport: Transport) -> Transport:
        """Tell ``transport`` the brokers' addresses, too."""
        with self._lock:
            self._transports.append(transport)
        transport.set_brokers(self._view.urls.values())
        return transport

    # ---- looking up -------------------------------------------------------------------------------------------------

    @property
    def is_cluster(self) -> bool:
        """Whether there are brokers to choose from; False as long as nothing is known."""
        return bool(self._view.urls)

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty as long as nothing is known."""
        return self._view.cluster_id

    @property
    def destinations(self) -> int:
        """How many destinations requests can have: one on one node; else each broker, any, and NO_LEADER."""
        urls = self._view.urls
        return len(urls) + 2 if urls else 1

    def leaders(self, topic: str) -> Sequence[int] | None:
        """The leader of each partition of ``topic``: a broker's id, or NO_LEADER. None: any broker may be asked."""
        view = self._view
        found = view.topics.get(topic) if view.urls else None
        return None if found is None else found.leaders

    def leader(self, topic: str, partition: int) -> int | None:
        """Id of the leader, NO_LEADER, or ANY_BROKER where nothing is known."""
        leaders = self.leaders(topic)
        return ANY_BROKER if leaders is None or partition >= len(leaders) else leaders[partition]

    def is_unheard_of(
        self, error: LogStoreError, topic: str, topic_id: str, partition: int | None = None, *, began: float
    ) -> bool:
        """Whether the leader that has refused a request with ``error``, sent at ``began``, has only not heard yet of
        the topic, or of a new partition of it.
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
        """The way to a broker, for a request that the block sends. ``role`` is why the request goes there.

        A broker that takes no connection gets the next requests by way of others.
        """
        url = None if broker_id is ANY_BROKER else self._view.urls.get(broker_id)
        since = None if url is None else self._unreachable.get(url)
        if url is None or (since is not None and time.monotonic() < since + max(self._max_age_s, _UNREACHABLE_S_MIN)):
            yield (way := Way(None))
            if url is not None and url not in self._told and not way.was_refused:
                self._tell(broker_id, url, role)
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
                self._told.discard(url)

    def _tell(self, broker_id: int | None, url: str, role: Role) -> None:
        """A request for a broker that takes no connection was answered: it is unreachable from here, or has died, and
        another one has taken its place.
        """
        with suppress(LogStoreError):
            if isinstance(role, str):
                self.refresh(group=role)
                right = self._view.coordinators.get(role)
            else:
                self.refresh([role[0]])
                right = self.leader(*role)
            if right == broker_id and url in self._unreachable and url not in self._told:
                self._told.add(url)
                log.warning(
                    "Broker %s cannot be reached at %s from here: its requests go through another broker. Is that its "
                    "advertised address, and can this machine reach it?",
                    broker_id,
                    url,
                )

    def ask_coordinator(self, group: str, send: Callable[[str | None], T]) -> T:
        """``send`` a request to the coordinator of ``group``: called with its URL, or None for any broker.

        Raises what ``send`` raises; the next request finds the coordinator anew if this one may have moved.
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
        """``send`` a request to the leader of a partition, as ``ask_coordinator``.

        ``topic_id``: a leader that has not heard of the topic with this id yet is LeaderNotAvailableError.
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
        """Whether another broker may answer now, after a request that failed with ``error``."""
        if isinstance(error, errors.ThrottledError):
            return False
        lost = (errors.NetworkError, errors.RequestTimedOutError, errors.NotEnoughReplicasAfterAppendError)
        return isinstance(error, lost) or stores_nothing(error)

    def find(
        self, topics: Iterable[str], *, timeout_s: float | None = None, may_create: bool = False
    ) -> dict[str, TopicPartitions | LogStoreError]:
        """Ask for these topics: their ids and numbers of partitions, or why they cannot be told of.

        ``may_create``: a topic that is not there is created, if the store does so. Raises as ``Transport.ask_around``.
        """
        names = list(dict.fromkeys(topics))
        answered = self.refresh(names, timeout_s=timeout_s, may_create=may_create)
        return {name: self._found(name, answered.get(name)) for name in names}

    def _found(self, name: str, topic: TopicMetadata | None) -> TopicPartitions | LogStoreError:
        if (known := self._view.topics.get(name)) is not None:
            return TopicPartitions(known.topic_id, len(known.leaders))
        if topic is None:  # no name: the store took it for several
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
        """Ask for these topics, this coordinator and the brokers; what was answered of the topics, by name.

        ``may_create`` as of ``find``. ``since`` (monotonic): what was asked for after that is not asked for again.
        Raises as ``Transport.ask_around``.
        """
        found: dict[str, TopicMetadata] = {}
        for names in _pieces(topics):
            found |= self._refresh(names, group, since, timeout_s, may_create=may_create)
            group = None
        return found

    def after(self, error: LogStoreError, topics: Iterable[str], began: float) -> None:
        """A request for ``topics``, sent at ``began`` (monotonic), has failed with ``error``: ask anew, if the view may
        be wrong, and if nobody has since. Errors of asking are left to the next request.
        """
        if self.is_cluster and self.may_have_moved(error):
            with suppress(LogStoreError):
                self.refresh(topics, since=began)

    def keep_fresh(self, topics: Iterable[str]) -> bool:
        """Ask for those of ``topics`` that are not known, or old; whether there were any. Errors of asking are left to
        the next request.
        """
        now = time.monotonic()
        old = [topic for topic in topics if now >= self._asked.get(topic, -self._max_age_s) + self._max_age_s]
        if not old:
            return False
        try:
            self.refresh(old, timeout_s=_TIMEOUT_S)
        except LogStoreError:
            # Not before each request, while there is no answer.
            self._asked.update(dict.fromkeys(old, now - self._max_age_s + _RETRY_S))
        return True

    def load(self, *, timeout_s: float | None = None) -> None:
        """Ask for the brokers, unless they are known. Raises as ``refresh``."""
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
        answer = decode(content, _Answer)
        with self._lock:
            self._take(answer, names, group, began)
            transports, urls = list(self._transports), tuple(self._view.urls.values())
            is_doubted = any(name in self._doubted for name in names)
        for transport in transports:
            transport.set_brokers(urls)
        if is_doubted:
            self._transport.prefer_another()
        return {topic.name: topic for topic in answer.topics}

    def _take(self, answer: _Answer, names: Sequence[str], group: str | None, began: float) -> None:
        """Under the lock."""
        view = self._view
        topics, coordinators = dict(view.topics), dict(view.coordinators)
        urls = {one.broker_id: one.url for one in answer.brokers if one.url is not None}
        for name in names:
            self._asked[name] = began
        for topic in answer.topics:
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
        if group is not None and answer.coordinator_id is not None:
            coordinators[group] = answer.coordinator_id
            self._asked_coordinator[group] = began
        self._unreachable = {url: at for url, at in self._unreachable.items() if url in urls.values()}
        self._told.intersection_update(urls.values())
        self._asked_at_all = began
        self._view = _View(answer.cluster_id, answer.controller_id, urls, topics, coordinators)


def _pieces(names: Iterable[str]) -> Iterator[list[str]]:
    """``names`` in pieces that fit into a request each; at least one piece, which may be empty."""
    piece: list[str] = []
    length = 0
    for name in dict.fromkeys(names):
        if piece and length + len(name) >= _NAMES_LENGTH_MAX:
            yield piece
            piece, length = [], 0
        piece.append(name)
        length += len(name) + 1
    yield piece
