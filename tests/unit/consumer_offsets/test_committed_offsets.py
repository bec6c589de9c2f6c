"""Committed offsets agree with the log: each key has the record with the highest offset that counts."""

from dataclasses import dataclass
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_offsets.committed_offsets import CommittedOffsets, TopicPartition
from logstore.records.offset_record import OffsetCommit, OffsetKey
from tests.support.examples import examples


@dataclass(frozen=True)
class Written:
    """Records of one append; with a producer, those of its transaction."""

    records: list[tuple[OffsetKey, OffsetCommit | None]]
    producer_id: int = -1


@dataclass(frozen=True)
class Marker:
    producer_id: int
    committed: bool


Log = list[Written | Marker]

# There are few keys, so that records meet.
keys = st.sampled_from([OffsetKey("a", "t", 0), OffsetKey("a", "t", 1), OffsetKey("a", "u", 0), OffsetKey("b", "t", 0)])
commits = st.builds(
    OffsetCommit,
    offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=st.sampled_from(["", "m"]),
    generation=st.integers(-1, 2**31 - 1),
    topic_id=st.integers(0, 2).map(lambda n: str(UUID(int=n))),
    commit_timestamp=st.integers(0, 100),
)
records = st.lists(st.tuples(keys, st.none() | commits), min_size=1, max_size=4)
logs = st.lists(
    st.builds(Written, records)
    | st.builds(Written, records, st.integers(0, 1))
    | st.builds(Marker, st.integers(0, 1), st.booleans()),
    max_size=25,
)


def replayed(log: Log) -> CommittedOffsets:
    offsets, log_offset = CommittedOffsets(), 0
    for entry in log:
        if isinstance(entry, Marker):
            offsets.replay_marker(entry.producer_id, committed=entry.committed)
            log_offset += 1
        else:
            for key, commit in entry.records:
                offsets.replay(log_offset, key, commit, entry.producer_id)
                log_offset += 1
        offsets.validate()
    return offsets


def outcome(log: Log, at: int) -> bool | None:
    """Return whether the records of the entry count; None while their transaction is open."""
    entry = log[at]
    assert isinstance(entry, Written)
    if entry.producer_id == -1:
        return True
    ends = (end.committed for end in log[at:] if isinstance(end, Marker) and end.producer_id == entry.producer_id)
    return next(ends, None)


def expected(log: Log) -> dict[OffsetKey, OffsetCommit]:
    """Return the last counting record of each key."""
    latest: dict[OffsetKey, OffsetCommit | None] = {}
    for at, entry in enumerate(log):
        if isinstance(entry, Written) and outcome(log, at):
            latest.update(entry.records)
    return {key: commit for key, commit in latest.items() if commit is not None}


def found(offsets: CommittedOffsets) -> dict[OffsetKey, OffsetCommit]:
    groups = offsets.groups()
    assert len(groups) == len(set(groups))
    return {OffsetKey(group, *place): c for group in groups for place, c in offsets.commits(group).items()}


@settings(max_examples=examples(300), deadline=None)
@given(logs)
def test_the_last_record_that_counts_is_the_commit(log: Log) -> None:
    offsets = replayed(log)
    model = expected(log)
    assert found(offsets) == model
    assert len(offsets) == len(model)
    assert set(offsets.groups()) == {key.group for key in model}
    for group in "ab":
        assert sorted(offsets.keys(group)) == sorted((k.topic, k.partition) for k in model if k.group == group)
        assert offsets.pending(group) <= {
            (key.topic, key.partition)
            for at, entry in enumerate(log)
            if isinstance(entry, Written) and outcome(log, at) is None
            for key, _ in entry.records
            if key.group == group
        }
    ids = {"t": str(UUID(int=0)), "u": str(UUID(int=1))}
    are_current = {key: ids[key.topic] == commit.topic_id for key, commit in model.items()}
    assert sorted(offsets.current(ids)) == sorted({key.group for key, current in are_current.items() if current})
    assert sorted(offsets.stale(ids)) == sorted({key.group for key, current in are_current.items() if not current})
    assert sorted(offsets.stale({})) == sorted({key.group for key in model})
    old = {key.group for key, commit in model.items() if commit.commit_timestamp < 50}
    assert sorted(offsets.expired(50)) == sorted(old)
    for topic in "tu":
        assert sorted(offsets.of_topic(topic)) == sorted({key.group for key in model if key.topic == topic})


@settings(max_examples=examples(50), deadline=None)
@given(logs, logs)
def test_rows_of_what_was_deleted_are_used_again(first: Log, then: Log) -> None:
    cleared = [*first, *(Marker(producer, False) for producer in (0, 1))]
    cleared.append(Written([(key, None) for key in expected(cleared)]))
    log = [*cleared, *then]
    offsets = replayed(log)
    assert found(offsets) == expected(log)
    keys_of_first = {key for entry in first if isinstance(entry, Written) for key, _ in entry.records}
    keys_of_then = {key for entry in then if isinstance(entry, Written) for key, _ in entry.records}
    assert len(offsets._next) <= max(len(keys_of_first), len(keys_of_then))


def commit(offset: int) -> OffsetCommit:
    return OffsetCommit(offset, -1, "", -1, str(UUID(int=1)), 5)


def test_an_offset_of_a_transaction_counts_after_its_marker_at_the_place_of_its_record() -> None:
    offsets, key = CommittedOffsets(), OffsetKey("g", "t", 0)
    place = TopicPartition("t", 0)
    offsets.replay(0, key, commit(1))
    offsets.replay(1, key, commit(2), producer_id=7)
    assert offsets.commits("g")[place].offset == 1
    assert offsets.pending("g") == {place}
    offsets.replay(2, key, commit(3), producer_id=8)
    offsets.replay_marker(8, committed=True)
    assert offsets.commits("g")[place].offset == 3
    # The marker comes last, but the record is before that of the other transaction.
    offsets.replay_marker(7, committed=True)
    assert offsets.commits("g")[place].offset == 3
    assert offsets.pending("g") == set()


def test_a_transaction_that_is_aborted_leaves_nothing() -> None:
    offsets, key = CommittedOffsets(), OffsetKey("g", "t", 0)
    offsets.replay(0, key, commit(2), producer_id=7)
    offsets.replay_marker(7, committed=False)
    assert offsets.groups() == []
    assert offsets.pending("g") == set()


def test_a_deletion_takes_what_a_transaction_had_committed_before_it() -> None:
    offsets, key = CommittedOffsets(), OffsetKey("g", "t", 0)
    offsets.replay(0, key, commit(2), producer_id=7)
    offsets.replay(1, key, None)
    assert offsets.pending("g") == set()
    offsets.replay_marker(7, committed=True)
    assert offsets.groups() == []
