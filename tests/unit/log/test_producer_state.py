"""Epochs without batches: markers, and producers with an open transaction. ``tests/stateful`` tests batches alone."""

from collections import OrderedDict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import DuplicateSequenceError, InvalidProducerEpochError, LogStoreError, OutOfOrderSequenceError
from logstore.log import producer_state
from logstore.log.producer_state import BATCHES_REMEMBERED, ProducerStates, counted_at
from logstore.records.batch_identity import SEQUENCE_MAX, RememberedBatch, unpack_batches
from logstore.records.transactions import Marker

EXPIRATION_MS = 100


def states(*, in_transaction: set[int] | None = None) -> ProducerStates:
    return ProducerStates("t-0", expiration_ms=EXPIRATION_MS, in_transaction=in_transaction or set())


def batch(producer_id: int, epoch: int, sequence: int, offset: int, *, at_ms: int = 0) -> RememberedBatch:
    return RememberedBatch(producer_id, epoch, sequence, 1, offset, at_ms)


def marker(producer_id: int, epoch: int, offset: int, *, at_ms: int = 0) -> Marker:
    return Marker(producer_id, epoch, 3, offset, at_ms)


def stored_again(found: ProducerStates) -> ProducerStates:
    """Store the state in a snapshot and take it from there, as a start does."""
    again = states()
    again.replace(unpack_batches(found.pack()), found.markers)
    again.evicted_up_to = found.evicted_up_to
    return again


def test_a_marker_fences_the_batches_of_the_epoch_before() -> None:
    found = states()
    found.remember(batch(5, 1, 0, 10))
    found.remember_marker(marker(5, 2, 11))
    for each in (found, stored_again(found)):
        for sequence in (0, 1):  # a repetition, and the next batch
            with pytest.raises(InvalidProducerEpochError, match="the epoch is 2 by now"):
                each.check(5, 1, sequence, 1, 0)
        with pytest.raises(OutOfOrderSequenceError, match="begins at sequence 0"):
            each.check(5, 2, 1, 1, 0)
        assert each.check(5, 2, 0, 1, 0) is None
        assert each.check(5, 3, 0, 1, 0) is None
        assert each.num_batches == 0


def test_a_marker_fences_what_follows_a_batch_that_is_being_fsynced() -> None:
    found = states()
    found.begin(batch(5, 1, 0, 10))
    assert found.check(5, 1, 1, 1, 0) is None
    found.remember_marker(marker(5, 2, 11))
    with pytest.raises(InvalidProducerEpochError, match="the epoch is 2 by now"):
        found.check(5, 1, 1, 1, 0)


def test_a_marker_is_known_of_a_producer_without_a_batch() -> None:
    found = states()
    found.remember_marker(marker(5, 2, 11))
    assert 5 in found
    with pytest.raises(InvalidProducerEpochError):
        found.check(5, 1, 0, 1, 0)
    with pytest.raises(OutOfOrderSequenceError):
        found.check(5, 2, 7, 1, 0)
    assert found.check(5, 2, 0, 1, 0) is None
    assert found.markers == (marker(5, 2, 11),)


def test_a_marker_of_the_same_epoch_keeps_the_batches() -> None:
    """Continue the epoch after a marker, as producers did before KIP-890."""
    found = states()
    found.remember(batch(5, 1, 0, 10))
    found.remember_marker(marker(5, 1, 11))
    for each in (found, stored_again(found)):
        repeated = each.check(5, 1, 0, 1, 0)
        assert repeated is not None
        assert repeated.base_offset == 10
        assert each.check(5, 1, 1, 1, 0) is None


def test_batches_follow_a_marker() -> None:
    found = states()
    found.remember_marker(marker(5, 2, 11))
    found.remember(batch(5, 2, 0, 12))
    assert found.check(5, 2, 1, 1, 0) is None
    found.remember(batch(5, 3, 0, 13))
    with pytest.raises(InvalidProducerEpochError, match="the epoch is 3 by now"):
        found.check(5, 2, 1, 1, 0)
    assert found.markers == (marker(5, 2, 11),), "the coordinator's epoch counts on"


def test_a_producer_is_forgotten_after_its_last_marker() -> None:
    found = states()
    found.remember(batch(5, 1, 0, 10, at_ms=0))
    found.remember_marker(marker(5, 1, 11, at_ms=50))
    found.remember_marker(marker(6, 0, 12, at_ms=60))
    for each in (found, stored_again(found)):
        each.expire(149)
        assert 5 in each
        assert 6 in each
        each.expire(150)
        assert 5 not in each
        assert [found.producer_id for found in each.markers] == [6]
        each.expire(160)
        assert 6 not in each
        assert (each.markers, each.pack(), each.num_batches, each.evicted_up_to) == ((), b"", 0, 6)


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    in_transaction = {5}
    found = states(in_transaction=in_transaction)
    found.remember(batch(5, 1, 0, 10))
    found.remember(batch(6, 1, 0, 11))
    found.expire(10**9)
    assert 6 not in found
    with pytest.raises(InvalidProducerEpochError):
        found.check(5, 0, 0, 1, 10**9)
    in_transaction.remove(5)
    found.expire(10**9)
    assert 5 not in found


def test_room_is_made_by_others_than_those_with_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_PER_PARTITION_MAX", 2)
    in_transaction = {1}
    found = states(in_transaction=in_transaction)
    for producer_id in (1, 2, 3):
        found.remember(batch(producer_id, 0, 0, producer_id))
    assert [producer_id in found for producer_id in (1, 2, 3)] == [True, False, True]
    found.remember_marker(marker(4, 0, 4))
    assert [producer_id in found for producer_id in (1, 3, 4)] == [True, False, True]
    in_transaction.update((4, 5))
    found.remember(batch(5, 0, 0, 5))
    assert [producer_id in found for producer_id in (1, 4, 5)] == [True, True, True], "nothing may go"


# ---- producers that are unknown (KIP-360) ---------------------------------------------------------------------------


def test_an_unknown_producer_begins_at_any_sequence_and_follows_itself_from_there() -> None:
    found = states()
    for sequence in (0, 1, 57, SEQUENCE_MAX):
        assert found.check(5, 3, sequence, 1, 0) is None
    found.begin(batch(5, 3, 57, 0))
    for is_durable in (False, True):
        if is_durable:
            found.complete(5, stored=True)
        assert found.check(5, 3, 57, 1, 0) == batch(5, 3, 57, 0), "a repetition"
        assert found.check(5, 3, 58, 1, 0) is None
        for missing in (56, 59):
            with pytest.raises(OutOfOrderSequenceError, match="58 is next"):
                found.check(5, 3, missing, 1, 0)
        assert found.check(5, 4, 0, 1, 0) is None
        with pytest.raises(OutOfOrderSequenceError, match="begins at sequence 0"):
            found.check(5, 4, 58, 1, 0)
        with pytest.raises(InvalidProducerEpochError):
            found.check(5, 2, 58, 1, 0)


@pytest.mark.parametrize("count", [1, BATCHES_REMEMBERED, 2 * BATCHES_REMEMBERED])
def test_batches_before_a_producers_first_one_count_as_stored_only_if_that_was_number_0(count: int) -> None:
    """Expect DUPLICATE_SEQUENCE_NUMBER only for stored batches, because to a client it means stored."""
    for begin, expected in ((40, OutOfOrderSequenceError), (0, DuplicateSequenceError)):
        found = states()
        for n in range(count):
            found.remember(batch(5, 0, begin + n, n))
        newest = begin + count
        for each in (found, stored_again(found)):
            assert each.check(5, 0, newest, 1, 0) is None
            for sequence in range(begin - 3, newest - BATCHES_REMEMBERED):
                if sequence >= 0:
                    with pytest.raises(expected):
                        each.check(5, 0, sequence, 1, 0)
            for sequence in (begin - 1, begin - 3) if begin else ():
                with pytest.raises(OutOfOrderSequenceError, match=f"{newest} is next"):
                    each.check(5, 0, sequence, 1, 0)


# ---- truncations (C16) ----------------------------------------------------------------------------------------------


def following(committed: list[int]) -> ProducerStates:
    return ProducerStates("t-0", expiration_ms=10**12, committed_end=lambda: committed[0])


def counted(found: ProducerStates, end: int = 1 << 62) -> list[RememberedBatch]:
    return counted_at(unpack_batches(found.pack()), end)


def test_c16_a_truncated_epoch_brings_back_the_one_before() -> None:
    """Truncate the records of a leader without followers, at which the producer continued with a new epoch."""
    found = following([7])
    for sequence in range(7):
        found.remember(batch(5, 0, sequence, sequence))
    for sequence in range(20):
        found.remember(batch(5, 1, sequence, 7 + sequence))
    found.forget_from(7)
    assert counted(found) == [batch(5, 0, sequence, sequence) for sequence in range(2, 7)]
    assert found.check(5, 0, 6, 1, 0) == batch(5, 0, 6, 6), "a retry is no new batch"
    with pytest.raises(OutOfOrderSequenceError):
        found.check(5, 0, 8, 1, 0)
    assert found.check(5, 0, 7, 1, 0) is None
    assert found.evicted_up_to == -1


def test_c16_a_producer_whose_only_batches_were_truncated_is_unknown() -> None:
    found = following([0])
    found.remember(batch(5, 3, 0, 0))
    found.forget_from(0)
    assert 5 not in found
    assert found.check(5, 0, 1, 1, 0) is None


def test_a_truncation_below_what_was_committed_leaves_producers_that_may_have_been_there() -> None:
    """Truncate as after an unclean election, where older batches are unknown."""
    committed = [30]
    found = following(committed)
    for sequence in range(30):
        found.remember(batch(5, 0, sequence, sequence))
    found.pack()
    found.forget_from(10)
    assert found.evicted_up_to == 5


def test_the_footer_of_a_segment_has_producers_that_continued_after_it() -> None:
    committed = [8]
    found = following(committed)
    for sequence in range(8):
        found.remember(batch(5, 0, sequence, sequence))
    for sequence in range(9):
        found.remember(batch(5, 1, sequence, 8 + sequence))
    assert counted(found, end=8) == [batch(5, 0, sequence, sequence) for sequence in range(3, 8)]


def test_few_committed_batches_are_remembered() -> None:
    committed = [0]
    found = following(committed)
    for sequence in range(1000):
        committed[0] = sequence
        found.remember(batch(5, 0, sequence, sequence))
        assert found.num_batches <= 3 * BATCHES_REMEMBERED
    assert len(list(unpack_batches(found.pack()))) == found.num_batches == BATCHES_REMEMBERED + 1


class Model:
    """Every producer that ever was, by id: (epoch, next sequence) and the time of the last append."""

    def __init__(self) -> None:
        self.producers: OrderedDict[int, tuple[int, int, int]] = OrderedDict()

    def append(self, producer_id: int, epoch: int, next_sequence: int, at_ms: int) -> None:
        self.producers[producer_id] = epoch, next_sequence, at_ms
        self.producers.move_to_end(producer_id)

    def expire(self, now_ms: int, kept: set[int]) -> None:
        for producer_id, (_, _, at_ms) in list(self.producers.items()):
            if at_ms + EXPIRATION_MS <= now_ms and producer_id not in kept:
                del self.producers[producer_id]

    def expected(self, producer_id: int, epoch: int, sequence: int) -> type[LogStoreError] | None:
        known, following, _ = self.producers[producer_id]
        if epoch < known:
            return InvalidProducerEpochError
        return None if sequence == (following if epoch == known else 0) else OutOfOrderSequenceError


steps = st.tuples(
    st.sampled_from(["batch", "marker", "expire", "store"]),
    st.integers(0, 2),
    st.integers(0, 1),
    st.integers(0, 60),
)


def _trials(model: Model) -> Iterator[tuple[int, int, int]]:
    for producer_id, (epoch, following, _) in model.producers.items():
        for tried in {max(0, epoch - 1), epoch, epoch + 1}:
            # These are no repetitions, because their numbers differ from the stored ones.
            for sequence in {0 if following == 0 or tried > epoch else following, following + 1}:
                yield producer_id, tried, sequence


@given(st.lists(steps, max_size=30), st.sets(st.integers(0, 2)))
def test_markers_and_batches_in_any_order(taken: list[tuple[str, int, int, int]], in_transaction: set[int]) -> None:
    found, model, now_ms = states(in_transaction=in_transaction), Model(), 0
    for offset, (what, producer_id, bump, elapsed_ms) in enumerate(taken):
        now_ms += elapsed_ms
        epoch, following, _ = model.producers.get(producer_id, (0, 0, 0))
        if what == "batch":
            sequence = 0 if bump else following
            found.remember(batch(producer_id, epoch + bump, sequence, offset, at_ms=now_ms))
            model.append(producer_id, epoch + bump, sequence + 1, now_ms)
        elif what == "marker":
            found.remember_marker(marker(producer_id, epoch + bump, offset, at_ms=now_ms))
            model.append(producer_id, epoch + bump, 0 if bump else following, now_ms)
        elif what == "expire":
            found.expire(now_ms)
            model.expire(now_ms, in_transaction)
        else:
            before = found
            found = ProducerStates("t-0", expiration_ms=EXPIRATION_MS, in_transaction=in_transaction)
            found.replace(unpack_batches(before.pack()), before.markers)
            assert (found.pack(), found.markers) == (before.pack(), before.markers)
        assert {each for each in range(3) if each in found} == set(model.producers)
        assert found.num_batches == sum(1 for _ in unpack_batches(found.pack()))
        found.remembered_ms = 10**9  # a trial must not forget a producer
        for trial in _trials(model):
            expected = model.expected(*trial)
            if expected is None:
                assert found.check(*trial, 1, now_ms) is None
            else:
                with pytest.raises(expected):
                    found.check(*trial, 1, now_ms)
        found.remembered_ms = EXPIRATION_MS
