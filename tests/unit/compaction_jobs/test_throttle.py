"""A job moves no more bytes a second than its limit, whichever of its threads moves them."""

import pytest

from compaction_jobs.throttle import Throttle
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.local_jobs import compact


def test_bytes_wait_until_they_fit_into_the_rate():
    now, waits = [100.0], []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    throttle = Throttle(1000, lambda: now[0], sleep)
    for _ in range(10):
        throttle(500)
    assert now[0] == pytest.approx(105.0)
    now[0] += 60
    waits.clear()
    throttle(250)
    assert waits == [], "after a rest there is room for a moment, and no more"
    throttle(1000)
    assert waits == [pytest.approx(1.0)]
    with pytest.raises(ValueError, match="lets something through"):
        Throttle(0)


def test_all_bytes_of_a_job_go_through_the_throttle(tmp_path):
    moved = []

    class Counting(Throttle):
        def __call__(self, size: int) -> None:
            moved.append(size)

    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact")
    topic.roll({0: [Record(b"%d" % (n % 3), b"v" * 100, 1) for n in range(100)]})
    before = topic.table.snapshot().segments(0)[0].size
    report = compact(topic, 2, throttle=Counting(1))
    assert sum(moved) > before + report.after.bytes
