"""The leader's count of the replicas of a partition."""

from collections.abc import Sequence

from logstore.log.in_sync_replicas import UNKNOWN_POSITION, InSyncReplicas


def of(committed: Sequence[int], *, replicas: Sequence[int] = (1, 2, 3), min_in_sync: int = 1) -> InSyncReplicas:
    return InSyncReplicas(1, replicas, committed, min_in_sync=lambda: min_in_sync, now=0.0)


def fetch(replicas: InSyncReplicas, broker: int, position: int, *, end: int = 10, now: float = 0.0) -> None:
    replicas.followers[broker].fetched(7, position, end, now)


def test_the_high_watermark_is_the_lowest_position_in_the_isr() -> None:
    replicas = of((1, 2, 3))
    assert replicas.high_watermark(10) == UNKNOWN_POSITION, "no follower has told where it is"
    fetch(replicas, 2, 8)
    fetch(replicas, 3, 6)
    assert replicas.high_watermark(10) == 6
    assert replicas.high_watermark(5) == 5, "the leader itself may have the least"
    assert of((1,)).high_watermark(10) == 10


def test_an_isr_that_is_being_written_counts_with_the_committed_one() -> None:
    replicas = of((1, 2))
    fetch(replicas, 2, 8)
    fetch(replicas, 3, 6)
    assert replicas.high_watermark(10) == 8
    replicas.proposed = (1, 2, 3)
    assert replicas.high_watermark(10) == 6
    replicas.proposed = (1,)
    assert replicas.high_watermark(10) == 8
    replicas.proposed = None
    replicas.commit((1, 2, 3), (1,), 0.0)
    assert replicas.high_watermark(10) == 10


def test_too_few_replicas_raise_no_high_watermark() -> None:
    replicas = of((1,), min_in_sync=2)
    assert (replicas.has_enough, replicas.high_watermark(10)) == (False, -1)
    assert of((1,), replicas=(1,), min_in_sync=2).has_enough, "there are no more"
    replicas.commit((1, 2, 3), (1, 2), 0.0)
    fetch(replicas, 2, 4)
    assert (replicas.has_enough, replicas.high_watermark(10)) == (True, 4)


def test_a_follower_joins_from_the_high_watermark_and_the_start_of_the_epoch_on() -> None:
    replicas = of((1, 2))
    assert not replicas.may_join(3, 0, 0), "it has not fetched"
    fetch(replicas, 3, 6)
    assert replicas.may_join(3, high_watermark=6, epoch_start=5)
    assert not replicas.may_join(3, high_watermark=7, epoch_start=5)
    assert not replicas.may_join(3, high_watermark=5, epoch_start=7)
    fetch(replicas, 2, 10)
    assert not replicas.may_join(2, 0, 0), "it is in sync"
    assert not replicas.may_join(4, 0, 0), "it is no replica"


def test_a_follower_is_behind_that_has_not_had_everything_for_too_long() -> None:
    replicas = of((1, 2, 3))
    fetch(replicas, 2, 10, end=10, now=1.0)
    fetch(replicas, 3, 5, end=10, now=1.0)
    assert replicas.behind(now=1.5, lag_max_s=2.0, log_end_offset=12) == []
    assert replicas.behind(now=2.5, lag_max_s=2.0, log_end_offset=12) == [3]
    assert replicas.behind(now=3.5, lag_max_s=2.0, log_end_offset=12) == [2, 3]
    assert replicas.behind(now=3.5, lag_max_s=2.0, log_end_offset=10) == [3], "who has everything is not behind"


def test_a_follower_under_load_is_not_behind_while_it_reaches_the_end_that_it_saw() -> None:
    replicas = of((1, 2))
    fetch(replicas, 2, 0, end=10, now=0.0)
    for step in range(1, 6):  # the log grows as fast as it fetches
        fetch(replicas, 2, 10 * step, end=10 * step + 10, now=float(step))
    assert replicas.behind(now=5.5, lag_max_s=2.0, log_end_offset=60) == []
    assert replicas.behind(now=6.5, lag_max_s=2.0, log_end_offset=60) == [2]


def test_a_follower_that_had_everything_for_long_is_not_behind_with_the_next_record() -> None:
    replicas = of((1, 2))
    fetch(replicas, 2, 10, end=10, now=0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        assert replicas.behind(now, lag_max_s=2.0, log_end_offset=10) == []
    assert replicas.behind(5.0, lag_max_s=2.0, log_end_offset=11) == [], "it had everything a second ago"
    assert replicas.behind(6.5, lag_max_s=2.0, log_end_offset=11) == [2]


def test_a_follower_that_was_found_behind_joins_once_it_has_fetched() -> None:
    replicas = of((1, 2), min_in_sync=2)
    fetch(replicas, 2, 10, end=10, now=0.0)
    assert replicas.behind(3.0, lag_max_s=2.0, log_end_offset=11) == [2]
    replicas.commit((1, 2), (1,), 3.0)
    assert not replicas.may_join(2, high_watermark=10, epoch_start=0), "it is cut off, and the high watermark stands"
    fetch(replicas, 2, 10, end=11, now=4.0)
    assert replicas.may_join(2, high_watermark=10, epoch_start=0)


def test_a_change_of_replicas_keeps_what_is_known_of_those_that_stay() -> None:
    replicas = of((1, 2, 3))
    fetch(replicas, 2, 8)
    replicas.commit((1, 2, 4), (1, 2), 3.0)
    assert {broker: one.position for broker, one in replicas.followers.items()} == {2: 8, 4: UNKNOWN_POSITION}
    assert replicas.followers[4].caught_up_at == 3.0


def test_sessions_are_woken() -> None:
    replicas = of((1, 2, 3))
    woken: list[int] = []
    replicas.followers[3].wake = lambda: woken.append(3)
    replicas.wake_followers()
    assert woken == [3]
