"""Fetch sessions agree with a model of them, and have bounds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from logstore.errors import FetchSessionNotFoundError, FetchSessionTopicIdError, InvalidFetchSessionEpochError
from logstore.kafka_listener.fetch_sessions import (
    EVICTION_S,
    Fetching,
    FetchSessions,
    Key,
    PartitionResponse,
    next_epoch,
)
from logstore.kafka_protocol.messages import FetchRequest, FetchResponse
from tests.support.manual_clock import ManualClock

SESSIONS_MAX = 3
NAMES = ("a", "b")
IDS = (b"A" * 16, b"B" * 16)


def request(
    keys: Iterable[Key] = (),
    *,
    session_id: int = 0,
    epoch: int = 0,
    forgotten: Iterable[Key] = (),
    offset: int = 0,
) -> FetchRequest:
    def named(topic: bytes | str) -> dict[str, Any]:
        return {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}

    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(
                **named(topic), partitions=[FetchRequest.FetchPartition(partition=number, fetch_offset=offset)]
            )
            for topic, number in keys
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(**named(topic), partitions=[number]) for topic, number in forgotten
        ],
    )


def sent(response: FetchResponse) -> list[Key]:
    return [
        (topic.topic or topic.topic_id, one.partition_index) for topic in response.responses for one in topic.partitions
    ]


def responses(fetching: Fetching, **fields: Any) -> list[tuple[Key, PartitionResponse]]:
    """Return the same answer for each partition."""
    return [(key, PartitionResponse(partition_index=key[1], **fields)) for key, _ in fetching.partitions]


@dataclass
class ModelSession:
    by_id: bool
    created: float
    used: float
    epoch: int = 1
    #: The last (high watermark, log start) of each partition that the client received; by key, in the order of reads.
    sent: dict[Key, tuple[int, int]] = field(default_factory=dict)
    offsets: dict[Key, int] = field(default_factory=dict)


@dataclass
class Begun:
    fetching: Fetching
    keys: list[Key]
    session_id: int
    epoch: int
    by_id: bool
    wants_session: bool
    offset: int


class Sessions(RuleBasedStateMachine):
    """Requests come in any order, and their answers follow later, in any order."""

    begun = Bundle("begun")
    keys = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=5, unique=True)
    some_keys = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=5, unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.sessions = FetchSessions(self.clock, sessions_max=SESSIONS_MAX, partitions_max=10**6)
        self.model: dict[int, ModelSession] = {}

    def named(self, keys: Sequence[tuple[int, int]], *, by_id: bool) -> list[Key]:
        return [((IDS if by_id else NAMES)[topic], number) for topic, number in keys]

    @rule(seconds=st.sampled_from([0.001, 1, EVICTION_S, EVICTION_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds * 1000)

    @rule(
        target=begun,
        chosen=keys,
        by_id=st.booleans(),
        old=st.integers(0, SESSIONS_MAX),
        ends=st.sampled_from([False, False, True]),
        offset=st.integers(0, 9),
    )
    def full(self, chosen: list[tuple[int, int]], by_id: bool, old: int, ends: bool, offset: int) -> Begun:
        known = [0, *self.model, 12345]
        old_id = known[old % len(known)]
        wanted = self.named(chosen, by_id=by_id)
        fetching = self.sessions.begin(
            request(wanted, session_id=old_id, epoch=-1 if ends else 0, offset=offset), by_id=by_id
        )
        self.model.pop(old_id, None)
        assert [key for key, _ in fetching.partitions] == wanted
        return Begun(fetching, wanted, 0, 0, by_id, not ends, offset)

    @rule(
        target=begun,
        at=st.integers(0, SESSIONS_MAX - 1),
        chosen=keys,
        forgotten=keys,
        by_id_too=st.sampled_from([True, True, True, False]),
        epoch_off=st.sampled_from([0, 0, 0, 0, 1, -1]),
        offset=st.integers(0, 9),
    )
    def incremental(
        self,
        at: int,
        chosen: list[tuple[int, int]],
        forgotten: list[tuple[int, int]],
        by_id_too: bool,
        epoch_off: int,
        offset: int,
    ) -> Any:
        if not self.model:
            with pytest.raises(FetchSessionNotFoundError):
                self.sessions.begin(request(session_id=77, epoch=1), by_id=True)
            return multiple()
        session_id = list(self.model)[at % len(self.model)]
        session = self.model[session_id]
        by_id = session.by_id if by_id_too else not session.by_id
        wanted, dropped = self.named(chosen, by_id=by_id), self.named(forgotten, by_id=by_id)
        epoch = max(1, session.epoch + epoch_off)
        asked = request(wanted, session_id=session_id, epoch=epoch, forgotten=dropped, offset=offset)
        if epoch != session.epoch:
            with pytest.raises(InvalidFetchSessionEpochError):
                self.sessions.begin(asked, by_id=by_id)
            return multiple()
        if by_id != session.by_id:
            with pytest.raises(FetchSessionTopicIdError):
                self.sessions.begin(asked, by_id=by_id)
            return multiple()
        fetching = self.sessions.begin(asked, by_id=by_id)
        for key in wanted:
            session.sent.setdefault(key, (-1, -1))
            session.offsets[key] = offset
        for key in dropped:
            session.sent.pop(key, None)
        if not session.sent:
            del self.model[session_id]
            return Begun(fetching, wanted, 0, 0, by_id, False, offset)
        session.used = self.clock.monotonic()
        session.epoch += 1
        found = list(fetching.partitions)
        assert [key for key, _ in found] == list(session.sent)
        assert [one.fetch_offset for _, one in found] == [session.offsets[key] for key in session.sent]
        return Begun(fetching, list(session.sent), session_id, session.epoch, by_id, False, offset)

    @rule(chosen=some_keys, by_id=st.booleans(), data=st.data())
    def opened(self, chosen: list[tuple[int, int]], by_id: bool, data: st.DataObject) -> None:
        self.answer(self.full(chosen, by_id, 0, False, 0), data)

    @precondition(lambda self: self.model)
    @rule(at=st.integers(0, SESSIONS_MAX - 1), chosen=keys, data=st.data())
    def answered(self, at: int, chosen: list[tuple[int, int]], data: st.DataObject) -> None:
        """Send a request and answer it before the next, as most clients do."""
        self.answer(self.incremental(at, chosen, [], True, 0, 0), data)

    @rule(one=consumes(begun), data=st.data())
    def answer(self, one: Begun, data: st.DataObject) -> None:
        given = [
            (
                key,
                PartitionResponse(
                    partition_index=key[1],
                    error_code=error,
                    high_watermark=-1 if error else data.draw(st.integers(0, 2)),
                    log_start_offset=-1 if error else data.draw(st.integers(0, 1)),
                    records=b"" if error else data.draw(st.sampled_from([b"", b"batch"])),
                ),
            )
            for key in one.keys
            for error in (data.draw(st.sampled_from([0, 0, 0, 6])),)
        ]
        before = dict(self.model)
        response = one.fetching.response(given)
        if one.session_id:
            self._check_incremental(one, given, response, before)
            return
        assert response.error_code == 0
        assert sent(response) == one.keys
        if not one.wants_session:
            assert response.session_id == 0
            return
        self._check_new(one, given, response.session_id)

    def _check_incremental(
        self,
        one: Begun,
        given: list[tuple[Key, PartitionResponse]],
        response: FetchResponse,
        before: dict[int, ModelSession],
    ) -> None:
        session = before.get(one.session_id)
        if session is None or session.epoch != one.epoch:
            # The session has moved on or is gone: the answer says so, or no client waits for it.
            assert response.error_code in (0, 71)
            if session is not None:
                assert (response.error_code, sent(response)) == (71, [])
            return
        expected = []
        for key, answer in given:
            now = (answer.high_watermark, answer.log_start_offset)
            if answer.error_code or answer.records or session.sent[key] != now:
                expected.append(key)
            session.sent[key] = (-1, -1) if answer.error_code else now
        for key, answer in given:
            if answer.records:
                session.sent[key] = session.sent.pop(key)
        assert (response.error_code, response.session_id, sent(response)) == (0, one.session_id, expected)

    def _check_new(self, one: Begun, given: list[tuple[Key, PartitionResponse]], session_id: int) -> None:
        now = self.clock.monotonic()
        if len(self.model) == SESSIONS_MAX:
            stale = [key for key, session in self.model.items() if now - session.used > EVICTION_S]
            old = [
                (len(session.sent), key) for key, session in self.model.items() if now - session.created > EVICTION_S
            ]
            evictable = {key for size, key in old if size == min(old)[0] and size < len(one.keys)}
            if stale:
                least = min(self.model[key].used for key in stale)
                evictable = {key for key in stale if self.model[key].used == least}
            if not evictable:
                assert session_id == 0
                return
            (evicted,) = [key for key in self.model if key not in self.sessions._sessions]
            assert evicted in evictable
            del self.model[evicted]
        assert session_id > 0
        self.model[session_id] = ModelSession(
            one.by_id,
            now,
            now,
            sent={
                key: (-1, -1) if answer.error_code else (answer.high_watermark, answer.log_start_offset)
                for key, answer in given
            },
            offsets=dict.fromkeys(one.keys, one.offset),
        )

    @invariant()
    def the_cache_is_the_models(self) -> None:
        assert set(self.sessions._sessions) == set(self.model)
        assert self.sessions.num_partitions == sum(len(session.sent) for session in self.model.values())
        assert len(self.sessions) <= SESSIONS_MAX


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_partitions_of_all_sessions_are_bounded() -> None:
    clock = ManualClock()
    sessions = FetchSessions(clock, partitions_max=10)
    first = sessions.begin(request([("t", n) for n in range(6)]), by_id=False)
    first_id = first.response(responses(first)).session_id
    assert first_id
    second = sessions.begin(request([("u", n) for n in range(5)]), by_id=False)
    assert second.response(responses(second)).session_id == 0
    with pytest.raises(FetchSessionNotFoundError):
        sessions.begin(request([("v", n) for n in range(5)], session_id=first_id, epoch=1), by_id=False)
    assert (len(sessions), sessions.num_partitions) == (0, 0)
    third = sessions.begin(request([("u", n) for n in range(11)]), by_id=False)
    assert third.response(responses(third)).session_id == 0
    for name in ("v", "w"):
        smaller = sessions.begin(request([(name, n) for n in range(5)]), by_id=False)
        assert smaller.response(responses(smaller)).session_id
    whole = sessions.begin(request([("u", n) for n in range(10)]), by_id=False)
    assert whole.response(responses(whole)).session_id == 0
    clock.advance(EVICTION_S * 1000 + 1)
    whole = sessions.begin(request([("u", n) for n in range(10)]), by_id=False)
    assert whole.response(responses(whole)).session_id
    assert (len(sessions), sessions.num_partitions) == (1, 10)


def opened(sessions: FetchSessions, name: str, size: int) -> int:
    """Return the id of a new session of ``size`` partitions."""
    fetching = sessions.begin(request([(name, n) for n in range(size)]), by_id=False)
    return fetching.response(responses(fetching)).session_id


def used(sessions: FetchSessions, session_id: int, epoch: int, **fields: Any) -> list[Key]:
    """Return the partitions of a session's next fetch, in their order; ``fields`` are those of all answers."""
    fetching = sessions.begin(request(session_id=session_id, epoch=epoch), by_id=False)
    keys = [key for key, _ in fetching.partitions]
    fetching.response(responses(fetching, **fields))
    return keys


def test_a_new_session_takes_the_place_of_a_smaller_old_one() -> None:
    clock = ManualClock()
    sessions = FetchSessions(clock, sessions_max=2)
    small, large = opened(sessions, "a", 2), opened(sessions, "b", 3)
    assert opened(sessions, "c", 9) == 0, "both are new"
    clock.advance(EVICTION_S * 1000 - 500)
    used(sessions, small, 1)
    used(sessions, large, 1)
    clock.advance(1000)
    assert opened(sessions, "c", 2) == 0
    assert opened(sessions, "c", 3)
    with pytest.raises(FetchSessionNotFoundError):
        used(sessions, small, 2)
    used(sessions, large, 2)


def test_partitions_with_records_come_last_the_next_time() -> None:
    sessions = FetchSessions(ManualClock())
    session_id = opened(sessions, "a", 3)
    fetching = sessions.begin(request(session_id=session_id, epoch=1), by_id=False)
    first, *others = responses(fetching)
    records = (first[0], PartitionResponse(partition_index=0, records=b"batch"))
    assert sent(fetching.response([records, *others])) == [("a", 0)]
    assert used(sessions, session_id, 2) == [("a", 1), ("a", 2), ("a", 0)]


def test_adjacent_partitions_of_a_topic_are_sent_together() -> None:
    fetching = FetchSessions(ManualClock()).begin(request([("t", 1), ("t", 0), ("u", 0), ("t", 2)]), by_id=False)
    response = fetching.response(responses(fetching))
    assert [(topic.topic, len(topic.partitions)) for topic in response.responses] == [("t", 2), ("u", 1), ("t", 1)]


def test_an_answer_that_only_throttles_keeps_the_session() -> None:
    sessions = FetchSessions(ManualClock())
    first = sessions.begin(request([("t", 0)]), by_id=False)
    assert first.throttled(500) == FetchResponse(throttle_time_ms=500)
    session_id = first.response(responses(first, high_watermark=3)).session_id
    one, _ = sessions.begin(request(session_id=session_id, epoch=1), by_id=False), None
    assert one.throttled(500) == FetchResponse(throttle_time_ms=500, session_id=session_id)
    two = sessions.begin(request(session_id=session_id, epoch=2), by_id=False)
    assert one.throttled(500).error_code == 71
    assert sent(two.response(responses(two, high_watermark=3, log_start_offset=-1))) == []


@pytest.mark.parametrize(("epoch", "following"), [(0, 1), (1, 2), (2**31 - 1, 1)])
def test_epochs_continue_at_one(epoch: int, following: int) -> None:
    assert next_epoch(epoch) == following


def test_a_session_that_ends_while_its_last_fetch_waits_leaves_that_without_an_answer_of_its_own() -> None:
    sessions = FetchSessions(ManualClock())
    session_id = opened(sessions, "t", 2)
    waiting = sessions.begin(request(session_id=session_id, epoch=1), by_id=False)
    keys = [key for key, _ in waiting.partitions]
    sessions.begin(request(session_id=session_id, epoch=2, forgotten=keys), by_id=False)
    assert len(sessions) == 0
    response = waiting.response([(key, PartitionResponse(partition_index=key[1], records=b"batch")) for key in keys])
    assert (response.error_code, sent(response)) == (InvalidFetchSessionEpochError.kafka_code, [])
