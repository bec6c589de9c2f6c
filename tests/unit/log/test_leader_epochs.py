"""Leader epochs: rising, only of leaders that wrote."""

from logstore.log.leader_epochs import LeaderEpochs


def test_an_epoch_is_listed_once_with_the_offset_it_began_at() -> None:
    epochs = LeaderEpochs()
    for epoch, offset in ((1, 0), (1, 50), (3, 80), (3, 90)):
        epochs.assign(epoch, offset)
    assert epochs.entries == ((1, 0), (3, 80))


def test_an_epoch_that_wrote_nothing_that_is_left_is_dropped() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 80)])
    epochs.assign(4, 80)
    assert epochs.entries == ((1, 0), (4, 80))


def test_an_older_epoch_changes_nothing() -> None:
    epochs = LeaderEpochs([(5, 10)])
    epochs.assign(4, 20)
    assert epochs.entries == ((5, 10),)


def test_the_history_below_an_offset() -> None:
    assert LeaderEpochs([(1, 0), (2, 80)]).up_to(80) == ((1, 0),)
    assert LeaderEpochs([(1, 0), (2, 80)]).up_to(81) == ((1, 0), (2, 80))
