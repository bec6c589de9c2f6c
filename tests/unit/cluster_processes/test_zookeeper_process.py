"""How often ZooKeeper is started again."""

from logstore.cluster_processes.zookeeper_process import Restarts


def test_it_is_started_at_once_and_then_after_pauses_and_not_for_ever():
    restarts = Restarts()
    assert [restarts.pause(served_s) for served_s in (5.0, 0.0, 3.0, 0.0, 60.0)] == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert restarts.pause(1.0) is None
    assert restarts.pause(0.0) is None


def test_one_that_has_served_for_a_while_is_started_at_once_again():
    restarts = Restarts()
    for _ in range(5):
        restarts.pause(0.0)
    assert [restarts.pause(served_s) for served_s in (61.0, 0.0, 61.0, 0.0)] == [0.0, 1.0, 0.0, 1.0]
