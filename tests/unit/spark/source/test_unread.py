"""Offsets that a query has to read or has lost: partitions and topics come, go, or lose records."""

from logstore.spark.offset_ranges import LogBounds
from logstore.spark.source.slices import TopicRange
from logstore.spark.source.stream_offset import StreamOffset
from logstore.spark.source.topics import SourceTopic
from logstore.spark.source.unread import Unread, capped, latest, look, planned


def topic(name: str, *bounds: tuple[int, int], id: str = "") -> SourceTopic:
    """Return a topic with partitions from 0 on, by log start and end; None leaves one out."""
    return SourceTopic(name, id or f"id-{name}", tuple(LogBounds(p, *b) for p, b in enumerate(bounds) if b))


def at(offsets: dict, **ids: str) -> StreamOffset:
    return StreamOffset(offsets, ids)


def test_a_query_reads_from_its_position_to_the_ends():
    found = look(at({("a", 0): 3, ("a", 1): 5}, a="id-a"), [topic("a", (0, 10), (5, 5))])
    assert found.unread == {("a", 0): Unread(3, 10), ("a", 1): Unread(5, 5)}
    assert found.topic_ids == {"a": "id-a"}
    assert not found.losses


def test_new_partitions_and_topics_are_read_from_earliest():
    found = look(at({("a", 0): 3}), [topic("a", (0, 3), (0, 4)), topic("b", (0, 2))])
    assert found.unread == {("a", 0): Unread(3, 3), ("a", 1): Unread(0, 4), ("b", 0): Unread(0, 2)}
    assert not found.losses
    [loss] = look(at({}), [topic("a", (7, 9))]).losses
    assert loss == "topic a, partition 0 is new to the query and starts at offset 7 instead of 0"


def test_retention_that_overtook_the_query_is_a_loss_and_reading_continues_at_the_log_start():
    found = look(at({("a", 0): 3, ("a", 1): 8}), [topic("a", (8, 10), (8, 10))])
    assert found.unread == {("a", 0): Unread(8, 10), ("a", 1): Unread(8, 10)}
    [loss] = found.losses
    assert "topic a, partition 0: the query is at offset 3, and the log starts at 8: offsets 3 to 7 were" in loss
    # All records that existed are gone, and no new ones have come.
    assert look(at({("a", 0): 3}), [topic("a", (8, 8))]).unread == {("a", 0): Unread(8, 8)}


def test_a_store_that_shows_less_moves_no_position_back():
    found = look(at({("a", 0): 9}, a="id-a"), [topic("a", (0, 4))])
    assert found.unread == {("a", 0): Unread(9, 9)}
    assert not found.losses


def test_topics_and_partitions_that_are_gone_are_losses():
    found = look(at({("a", 0): 3, ("a", 1): 4, ("b", 0): 1, ("b", 1): 1}), [topic("a", (0, 5))])
    assert found.unread == {("a", 0): Unread(3, 5)}
    assert [loss.split(" is gone")[0] for loss in found.losses] == ["topic a, partition 1", "topic b"]


def test_a_partition_out_of_sight_keeps_its_position_and_continues_there():
    start = at({("a", 0): 3, ("a", 1): 4, ("b", 0): 7, ("c", 0): 1, ("c", 1): 1}, a="id-a", b="id-b", c="old")
    there = [topic("a", (0, 5)), topic("c", (0, 2), id="new")]
    found = look(start, there)
    assert found.absent == {("a", 1): 4, ("b", 0): 7}
    assert found.topic_ids == {"a": "id-a", "b": "id-b", "c": "new"}
    end = at({("a", 0): 5, ("a", 1): 4, ("b", 0): 7, ("c", 0): 2}, **found.topic_ids)
    ranges, losses = planned(start, end, there)
    assert ranges == [TopicRange("a", "id-a", 0, 3, 5), TopicRange("c", "new", 0, 0, 2)]
    assert len(losses) == 3
    back = look(end, [topic("a", (0, 5), (0, 6)), topic("b", (0, 9)), topic("c", (0, 2), id="new")])
    assert back.unread == {
        ("a", 0): Unread(5, 5),
        ("a", 1): Unread(4, 6),
        ("b", 0): Unread(7, 9),
        ("c", 0): Unread(2, 2),
    }
    assert not back.losses
    # A batch from the time of the topic has lost its records.
    assert len(planned(start, at({("b", 0): 9}, b="id-b"), there)[1]) == 4


def test_a_topic_that_was_made_again_is_another_one():
    position = at({("a", 0): 3, ("a", 1): 4}, a="old")
    found = look(position, [topic("a", (1, 9), id="new")])
    assert found.unread == {("a", 0): Unread(1, 9)}
    [loss] = found.losses
    assert loss.startswith("topic a was deleted and made again (its id is new, and was old)")
    # A checkpoint written by hand has no ids.
    assert not look(at({("a", 0): 3}), [topic("a", (0, 9), id="new")]).losses


def test_a_batch_is_planned_from_its_start_to_its_end():
    topics = [topic("a", (0, 20), (0, 20), (0, 20)), topic("b", (0, 20))]
    start = at({("a", 0): 3, ("a", 1): 5}, a="id-a")
    end = at({("a", 0): 10, ("a", 1): 5, ("a", 2): 4, ("b", 0): 2}, a="id-a", b="id-b")
    assert planned(start, end, topics) == (
        [TopicRange("a", "id-a", 0, 3, 10), TopicRange("a", "id-a", 2, 0, 4), TopicRange("b", "id-b", 0, 0, 2)],
        [],
    )


def test_a_batch_that_is_repeated_after_its_records_went():
    start, end = at({("a", 0): 3, ("b", 0): 1}, a="id-a", b="old"), at({("a", 0): 10, ("b", 0): 5}, a="id-a", b="old")
    ranges, losses = planned(start, end, [topic("a", (6, 20)), topic("b", (0, 20), id="new")])
    assert ranges == [TopicRange("a", "id-a", 0, 6, 10)]
    assert len(losses) == 3
    assert planned(start, end, [topic("a", (15, 20)), topic("b", (0, 20), id="new")])[0] == []
    # The batch's end knows the new topic.
    start, end = at({("b", 0): 7}, b="old"), at({("b", 0): 5}, b="new")
    ranges, losses = planned(start, end, [topic("b", (0, 20), id="new")])
    assert (ranges, len(losses)) == ([TopicRange("b", "new", 0, 0, 5)], 1)


def test_a_run_up_to_a_target_ends_there():
    target = [topic("a", (0, 10)), topic("c", (0, 9))]
    now = [topic("a", (2, 15), (3, 4)), topic("b", (0, 7)), topic("c", (1, 3), id="new")]
    # The query knows a partition or topic that came later, and reads nothing of it.
    assert latest(capped(now, target)) == {("a", 0): 10, ("a", 1): 3, ("b", 0): 0, ("c", 0): 1}
    # In one case retention has passed the target; in the other the store shows less than the target.
    assert latest(capped([topic("a", (12, 15))], target)) == {("a", 0): 12}
    assert latest(capped([topic("a", (0, 4))], target)) == {("a", 0): 4}
