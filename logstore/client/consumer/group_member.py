"""The consumer as a member of its group: carries out the steps of ``membership`` in two threads.

The member's own thread sends its requests, one at a time; joining may take as long as a rebalance. The consumer's
thread, in ``rebalance``, adds and gives up partitions, and calls the program's listener. Both use one lock, which is
never held during a request or a call of the listener.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from uuid import uuid4

import msgspec

from logstore.backoff import backoffs
from logstore.client.cluster_metadata import ClusterMetadata
from logstore.client.consumer.options import ConsumerOptions
from logstore.client.consumer.rebalance_listener import ConsumerRebalanceListener
from logstore.client.consumer.subscription_state import SubscriptionState
from logstore.client.metadata import MemberIdentity, TopicPartition, TopicPartitions, decode
from logstore.client.transport import Transport, group_path
from logstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    IllegalGenerationError,
    InvalidRequestError,
    LogStoreError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicError,
)
from logstore.protocol.members.classic_member import ClassicMember
from logstore.protocol.members.consumer_member import ConsumerMember
from logstore.protocol.members.membership import (
    Assigned,
    Hold,
    Lost,
    MemberOptions,
    Membership,
    PartitionCounts,
    Revoked,
    Step,
    Todo,
)
from logstore.protocol.messages.members import GroupRequest

_NO_MEMBER = (UnknownMemberIdError, FencedMemberEpochError)
_OTHER_GENERATION = (IllegalGenerationError, StaleMemberEpochError, RebalanceInProgressError)
_LEAVE_SECONDS_MAX = 5.0


class GroupMember:
    """The member of one consumer. Methods are for the consumer's thread, unless they say otherwise.

    It owns ``transport`` and closes it at the end. ``wake`` ends a wait of the consumer's thread for records.
    """

    def __init__(
        self,
        transport: Transport,
        metadata: ClusterMetadata,
        state: SubscriptionState,
        options: ConsumerOptions,
        wake: Callable[[], None],
    ) -> None:
        assert options.group_id is not None
        self._group_id = options.group_id
        self._transport = transport
        self._metadata = metadata
        self._state = state
        self._options = options
        self._wake = wake
        self._listener = ConsumerRebalanceListener()
        self._in_listener = False
        self._thread: threading.Thread | None = None
        # This lock guards the membership.
        self._changed = threading.Condition()
        self._membership: Membership | None = None
        self._stopping = False

    @property
    def is_member(self) -> bool:
        """True if the consumer has subscribed, so that its partitions come from the group."""
        return self._membership is not None

    def subscribe(
        self, topics: frozenset[str] | None, regex: str | None, listener: ConsumerRebalanceListener | None
    ) -> None:
        """Become a member at the next ``rebalance``. With ``topics`` None, subscribe to those that match ``regex``."""
        self._listener = listener or ConsumerRebalanceListener()
        if self._membership is None:
            self._membership = self._new_membership(topics, regex)
            return
        with self._changed:
            self._membership.resubscribe(topics, regex)
            self._changed.notify_all()

    def close(self) -> None:
        """Close the transport. Call ``leave`` first."""
        self._transport.close()

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Stop the clock of ``max_poll_interval_ms`` while the block runs."""
        membership = self._membership
        if membership is None:
            yield
            return
        if self._in_listener:
            raise InvalidRequestError("poll() is called from a rebalance listener: return from it first.")
        with self._changed:
            membership.begin_poll()
        try:
            yield
        finally:
            with self._changed:
                membership.end_poll(time.monotonic())
                self._changed.notify_all()

    # ---- rebalances -------------------------------------------------------------------------------------------------

    def rebalance(self, commit: Callable[[frozenset[TopicPartition]], bool]) -> bool:
        """Take the steps that are due. Return False if it has to be called again.

        ``commit`` commits the positions of partitions about to be revoked; it returns False if that takes longer than
        the consumer can wait now. Raises the error that ended the membership, and whatever the listener raises.
        """
        membership = self._membership
        if membership is None:
            return True
        self._start()
        while True:
            with self._changed:
                step = membership.step()
                self._changed.notify_all()
            if step is None:
                return True
            if isinstance(step, Revoked) and not commit(step.partitions):
                return False
            self._take(membership, step)

    def found_topics(self, subscribed: frozenset[str], partitions: Mapping[str, int]) -> None:
        """Set the topics that the subscription covers now, and the partition counts of these and of ``followed``."""
        if self._membership is not None:
            with self._changed:
                self._membership.found_topics(subscribed, partitions)
                self._changed.notify_all()

    @property
    def followed(self) -> frozenset[str]:
        """The topics of other members whose new partitions this one, as the leader, must notice."""
        if self._membership is None:
            return frozenset()
        with self._changed:
            return self._membership.followed

    def give_up(self) -> None:
        """Notify the listener that all partitions are given up. Raises what it raises."""
        if self._membership is None:
            return
        with self._changed:
            owned = frozenset(self._membership.owned)
            step = Lost(owned) if self._membership.is_lost else Revoked(owned)
        if owned:
            self._take(self._membership, step)

    def leave(self) -> None:
        """End the membership. Returns soon even while the store is away: then the session ends by itself."""
        membership = self._membership
        if membership is None:
            return
        self._stop()
        self._membership = None
        self._state.give_up(membership.give_up())
        if (farewell := membership.farewell("The consumer was closed, or has unsubscribed.")) is not None:
            # If it does not arrive, the session times out.
            with suppress(LogStoreError):
                self._send(farewell, _LEAVE_SECONDS_MAX)

    def _take(self, membership: Membership, step: Step) -> None:
        partitions = sorted(step.partitions)
        if isinstance(step, Assigned):
            self._state.add(step.partitions)
            with self._changed:
                membership.done(step)
                self._changed.notify_all()
            self._call_listener(self._listener.on_partitions_assigned, partitions)
            return
        listen = self._listener.on_partitions_revoked
        try:
            self._call_listener(self._listener.on_partitions_lost if isinstance(step, Lost) else listen, partitions)
        finally:
            self._state.give_up(step.partitions)
            with self._changed:
                membership.done(step)
                self._changed.notify_all()

    def _call_listener(self, listen: Callable[[list[TopicPartition]], None], partitions: list[TopicPartition]) -> None:
        self._in_listener = True
        try:
            listen(partitions)
        finally:
            self._in_listener = False

    # ---- commits ----------------------------------------------------------------------------------------------------

    def hold(self, partitions: Mapping[TopicPartition, int]) -> Hold | None:
        """Return a proof for ``commit`` that the consumer owns these now, or None if it is not a member.

        Raises CommitFailedError.
        """
        if self._membership is None:
            return None
        with self._changed:
            return self._membership.hold(partitions)

    def commit(self, hold: Hold | None, send: Callable[[MemberIdentity | None], None]) -> None:
        """Call ``send`` with the identity of the member that the consumer is now. Any thread may call it.

        If the group has meanwhile reached another generation, the commit is sent again in that one, as long as the
        consumer has owned the partitions all the time; otherwise raises CommitFailedError.
        """
        membership = self._membership
        if hold is None or membership is None:
            send(None)
            return
        give_up = time.monotonic() + self._options.default_api_timeout_ms / 1000
        for wait_s in backoffs():
            with self._changed:
                identity = membership.identity_of(hold)
            try:
                send(identity)
                return
            except FencedInstanceIdError as error:
                self._refuse(membership, identity, error)
                raise
            except _NO_MEMBER as error:
                self._refuse(membership, identity, error)
            except _OTHER_GENERATION as error:
                if isinstance(error, IllegalGenerationError) and membership.is_settled(identity):
                    self._refuse(membership, identity, error)
                elif time.monotonic() + wait_s > give_up:
                    raise CommitFailedError(f"The group was not ready to take the commit in time: {error}") from None
                else:
                    time.sleep(wait_s)

    def _refuse(self, membership: Membership, identity: MemberIdentity, error: LogStoreError) -> None:
        with self._changed:
            membership.refused(identity, error)
            self._changed.notify_all()
        self._wake()

    # ---- the member's own thread ------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self._run, args=(self._membership,), name="logstore-group")
            self._thread.daemon = True
            self._thread.start()

    def _stop(self) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._transport.interrupt()
        self._thread.join()
        self._thread = None

    def _run(self, membership: Membership) -> None:
        while (todo := self._next(membership)) is not None:
            response: object = None
            failure: LogStoreError | None = None
            try:
                response = self._do(todo)
            except LogStoreError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 (a bug here must be seen where records are waited for)
                failure = LogStoreError(f"The group cannot be followed: {error!r}")
            with self._changed:
                try:
                    if failure is None:
                        membership.answered(todo, response, time.monotonic())
                    else:
                        membership.failed(todo, failure, time.monotonic())
                except LogStoreError as error:
                    # The data that other members or the leader have sent cannot be read.
                    membership.broken(error)
                wants_poll = membership.wants_poll
            if wants_poll:
                self._wake()

    def _next(self, membership: Membership) -> Todo | None:
        """Return the next thing to do, or None when the member is to stop."""
        with self._changed:
            while not self._stopping:
                todo = membership.next(time.monotonic())
                if not isinstance(todo, float):
                    return todo
                self._changed.wait(None if todo == math.inf else todo)
            return None

    def _do(self, todo: Todo) -> object:
        if isinstance(todo, PartitionCounts):
            return self._count_partitions(todo.topics)
        options = self._options
        waits_s = options.max_poll_interval_ms / 1000 if todo.waits else 0.0
        return self._send(todo, options.request_timeout_ms / 1000 + waits_s, is_cancelled=lambda: self._stopping)

    def _count_partitions(self, topics: frozenset[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, topic in self._metadata.find(sorted(topics)).items():
            if isinstance(topic, TopicPartitions):
                found[name] = topic.count
            elif not isinstance(topic, UnknownTopicError):
                raise topic
        return found

    def _send(
        self, request: GroupRequest, timeout_s: float, is_cancelled: Callable[[], bool] = lambda: False
    ) -> object:
        response = self._metadata.ask_coordinator(
            self._group_id,
            lambda url: self._transport.request_once(
                "POST",
                group_path(self._group_id, request.path),
                msgspec.json.encode(request),
                headers={"Content-Type": "application/json"},
                timeout_s=timeout_s,
                is_cancelled=is_cancelled,
                at=url,
            ),
        )
        return None if request.response is None else decode(response.content, request.response)

    def _new_membership(self, topics: frozenset[str] | None, regex: str | None) -> Membership:
        options = self._options
        is_classic = options.group_protocol == "classic"
        member = MemberOptions(
            member_id=f"{options.client_id or 'consumer'}-{uuid4()}",
            group_instance_id=options.group_instance_id,
            assignors=options.assignors,
            session_timeout_s=options.session_timeout_s,
            heartbeat_interval_s=options.heartbeat_interval_s,
            max_poll_interval_s=options.max_poll_interval_ms / 1000,
            give_up_s=options.default_api_timeout_ms / 1000,
            topics=topics,
            regex=regex,
        )
        return ClassicMember(member) if is_classic else ConsumerMember(member)
