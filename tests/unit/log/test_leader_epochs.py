"""Leader epochs rise, and only those of leaders that wrote are kept."""

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


def test_the_end_of_an_epoch_is_where_the_next_one_began() -> None:
    epochs = LeaderEpochs([(2, 5), (4, 10), (7, 20)])
    assert epochs.end_of(7, 30) == (7, 30)
    assert epochs.end_of(9, 30) == (7, 30), "the newest there is"
    assert epochs.end_of(4, 30) == (4, 20)
    assert epochs.end_of(6, 30) == (4, 20), "the newest up to it"
    assert epochs.end_of(2, 30) == (2, 10)
    assert epochs.end_of(1, 30) == (-1, 5), "all are newer"
    assert LeaderEpochs().end_of(3, 8) == (-1, 8)


def test_the_epoch_of_an_offset() -> None:
    epochs = LeaderEpochs([(2, 5), (4, 10)])
    assert [epochs.epoch_of(offset) for offset in (4, 5, 9, 10, 99)] == [None, 2, 2, 4, 4]


def test_truncated_epochs_are_gone() -> None:
    epochs = LeaderEpochs([(2, 5), (4, 10), (7, 20)])
    epochs.truncate(10)
    assert epochs.entries == ((2, 5),)
    epochs.assign(5, 10)
    assert epochs.entries == ((2, 5), (5, 10))
