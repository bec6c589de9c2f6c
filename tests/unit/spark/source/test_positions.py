"""Options become offsets of the existing topics, as in a plain model of a log."""

import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRequestError
from logstore.spark.offset_ranges import LogBounds
from logstore.spark.source.data_loss import DataLossError
from logstore.spark.source.options import EARLIEST, LATEST, Offsets, ReadOptions, Subscription, Timestamps
from logstore.spark.source.positions import batch_ranges, ending_offsets, starting_offsets
from logstore.spark.source.slices import TopicRange
from logstore.spark.source.topics import SourceTopic

TOPICS = [
    SourceTopic("a", "id-a", (LogBounds(0, 5, 20), LogBounds(1, 0, 7))),
    SourceTopic("b", "id-b", (LogBounds(0, 3, 3),)),
]
EARLIESTS = {("a", 0): 5, ("a", 1): 0, ("b", 0): 3}
LATESTS = {("a", 0): 20, ("a", 1): 7, ("b", 0): 3}


def options(starting=None, ending=None, **more) -> ReadOptions:
    return ReadOptions(Subscription(topics=("a", "b")), "store:1", starting=starting, ending=ending, **more)


def times(found):
    """Return a store's answers: the offset for each time is the time itself, up to what ``found`` has."""

    def offsets_of_times(asked):
        return {key: time_ms if time_ms <= found[key] else None for key, time_ms in asked.items()}

    return offsets_of_times


def no_times(_):
    raise AssertionError


def start(given_options, offsets_of_times=no_times, *, streaming=False):
    return starting_offsets(given_options, TOPICS, offsets_of_times, streaming=streaming)


def test_without_options_a_batch_reads_all_and_a_stream_what_comes():
    assert start(options()) == EARLIESTS
    assert start(options(), streaming=True) == LATESTS
    assert ending_offsets(options(), TOPICS, no_times) == LATESTS
    assert batch_ranges(options(), TOPICS, no_times) == [
        TopicRange("a", "id-a", 0, 5, 20),
        TopicRange("a", "id-a", 1, 0, 7),
        TopicRange("b", "id-b", 0, 3, 3),
    ]


def test_words_and_kafkas_negative_numbers():
    for streaming in (False, True):
        assert start(options(Offsets(every=EARLIEST)), streaming=streaming) == EARLIESTS
        assert start(options(Offsets(every=LATEST)), streaming=streaming) == LATESTS
    mixed = Offsets(by_partition={("a", 0): 9, ("a", 1): EARLIEST, ("b", 0): LATEST})
    assert start(options(mixed)) == {("a", 0): 9, ("a", 1): 0, ("b", 0): 3}
    assert ending_offsets(options(ending=mixed), TOPICS, no_times)["a", 0] == 9


@pytest.mark.parametrize(
    ("by_partition", "message"),
    [
        ({("a", 0): 9, ("a", 1): 1}, "left out: b-0; not assigned: none. Specify all topic-partitions"),
        ({("a", 0): 9, ("a", 1): 1, ("b", 0): 3, ("c", 0): 1}, "left out: none; not assigned: c-0"),
        ({("c", p): 1 for p in range(12)}, r"not assigned: c-0, .*c-9 and 2 more\. Specify"),
    ],
)
def test_offsets_and_times_by_partition_name_every_partition_and_no_other(by_partition, message):
    for name, given_options in [
        ("startingOffsets", options(Offsets(by_partition=by_partition))),
        ("startingOffsetsByTimestamp", options(Timestamps(by_partition=by_partition))),
        ("endingOffsets", options(ending=Offsets(by_partition=by_partition))),
        ("endingOffsetsByTimestamp", options(ending=Timestamps(by_partition=by_partition))),
    ]:
        with pytest.raises(InvalidRequestError, match=f"{name} don't match what are assigned: .*{message}") as caught:
            batch_ranges(given_options, TOPICS, no_times)
        assert caught.value.message.endswith("-1 for latest, -2 for earliest") == ("Timestamp" not in name)


def test_a_stream_takes_partitions_that_were_added_since_it_was_written_from_earliest(caplog):
    named = {("a", 0): 9}
    topics, pattern = Subscription(topics=("a",)), Subscription(pattern=".*")
    with caplog.at_level(logging.WARNING):
        for by_partition, subscription, seen, expected in [
            (named, topics, TOPICS[:1], {("a", 0): 9, ("a", 1): 0}),
            (named, pattern, TOPICS, {("a", 0): 9, ("a", 1): 0, ("b", 0): 3}),
        ]:
            for given in (Offsets(by_partition=by_partition), Timestamps(by_partition=by_partition)):
                asked = ReadOptions(subscription, "store:1", starting=given)
                assert starting_offsets(asked, seen, times(LATESTS), streaming=True) == expected
    assert [record.args for record in caplog.records] == [("a-1",)] * 2 + [("a-1, b-0",)] * 2
    # A partition below a named one was left out; a topic or partition that has its own name is not new.
    for by_partition, subscription, seen in [
        ({("a", 1): 1}, topics, TOPICS[:1]),
        (named, Subscription(topics=("a", "b")), TOPICS),
        (named, Subscription(assigned={"a": (0, 1)}), TOPICS[:1]),
    ]:
        for given in (Offsets(by_partition=by_partition), Timestamps(by_partition=by_partition)):
            asked = ReadOptions(subscription, "store:1", starting=given)
            with pytest.raises(InvalidRequestError, match=r"left out: [ab]-"):
                starting_offsets(asked, seen, times(LATESTS), streaming=True)


def test_a_time_without_a_record_is_an_error_or_the_latest_at_the_start_and_the_latest_at_the_end():
    found = times({("a", 0): 20, ("a", 1): 5, ("b", 0): 100})
    every = Timestamps(every=6)
    no_match = r"No offset matched from request of topic-partition a-1 and timestamp 6\. .*Strategy to latest"
    with pytest.raises(InvalidRequestError, match=no_match):
        start(options(every), found)
    expected = {("a", 0): 6, ("a", 1): 7, ("b", 0): 3}
    assert start(options(every, starting_timestamp_strategy="latest"), found) == expected
    assert ending_offsets(options(ending=every), TOPICS, found) == expected
    each = Timestamps(by_partition={("a", 0): 8, ("a", 1): 1, ("b", 0): 0})
    # The log of b begins at 3, because retention ran after the time was looked up.
    assert start(options(each), found, streaming=True) == {("a", 0): 8, ("a", 1): 1, ("b", 0): 3}


@pytest.mark.parametrize(
    ("offset", "kept", "streaming"), [(4, 5, False), (0, 5, True), (21, 20, True), (2**62, 20, True)]
)
def test_a_start_outside_the_log_is_data_loss(offset, kept, streaming, caplog):
    starting = Offsets(by_partition=EARLIESTS | {("a", 0): offset})
    outside = f"offset {offset} of topic-partition a-0 is out of range"
    lost = f"startingOffsets: {outside}; it has offsets 5 to 19, and 20 is the end"
    with pytest.raises(DataLossError, match=f"{lost}.* set the source option failOnDataLoss to false$"):
        start(options(starting), streaming=streaming)
    with caplog.at_level(logging.WARNING):
        assert start(options(starting, fail_on_data_loss=False), streaming=streaming)["a", 0] == kept
    assert [bool(re.search(f"{lost}.* failOnDataLoss to true$", r.message)) for r in caplog.records] == [True]


@pytest.mark.parametrize(("offset", "kept"), [(4, 5), (21, 20)])
def test_an_end_outside_the_log_is_data_loss(offset, kept, caplog):
    ending = Offsets(by_partition=LATESTS | {("a", 0): offset})
    with pytest.raises(DataLossError, match=f"endingOffsets: offset {offset} of topic-partition a-0 is out of range"):
        ending_offsets(options(ending=ending), TOPICS, no_times)
    with caplog.at_level(logging.WARNING):
        assert ending_offsets(options(ending=ending, fail_on_data_loss=False), TOPICS, no_times)["a", 0] == kept
    assert len(caplog.records) == 1


def test_a_batch_that_starts_above_its_end_is_refused_whatever_is_said_of_data_loss():
    above = Offsets(by_partition=EARLIESTS | {("a", 0): 21})
    message = "resolved start offset 21 is greater than the resolved end offset 20 for topic a partition 0"
    with pytest.raises(InvalidRequestError, match=message):
        batch_ranges(options(above, fail_on_data_loss=False), TOPICS, no_times)
    with pytest.raises(InvalidRequestError, match="start offset 9 is greater than the resolved end offset 8"):
        batch_ranges(
            options(Offsets(by_partition=EARLIESTS | {("a", 0): 9}), Timestamps(every=8)),
            TOPICS,
            times({("a", 0): 20, ("a", 1): 0, ("b", 0): 0}),
        )


def test_offsets_of_a_topic_that_was_made_again_are_data_loss(caplog):
    taken = Offsets(by_partition=EARLIESTS | {("a", 0): 9}, topic_ids={"a": "id-old", "b": "id-b", "c": "id-c"})
    with pytest.raises(DataLossError, match="topic a was deleted and made again since these offsets were taken"):
        start(options(taken), streaming=True)
    with caplog.at_level(logging.WARNING):
        assert start(options(taken, fail_on_data_loss=False), streaming=True) == EARLIESTS
        assert ending_offsets(options(ending=taken, fail_on_data_loss=False), TOPICS, no_times) == LATESTS | {
            ("b", 0): 3
        }
    assert len(caplog.records) == 2


@given(st.data())
def test_ranges_are_the_offsets_between_the_ends(data):
    """Compare with a model: a partition's log is a list of (offset, time) with gaps, and a range is a filter of it."""
    topics, logs = [], {}
    for partition in range(data.draw(st.integers(1, 3))):
        first, last = sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
        offsets = sorted(data.draw(st.sets(st.integers(first, last)))) if first < last else []
        logs["t", partition] = [(o, data.draw(st.integers(0, 9))) for o in offsets if o < last]
        topics.append(LogBounds(partition, first, last))
    topic = SourceTopic("t", "id", tuple(topics))

    def offsets_of_times(asked):
        return {key: next((o for o, time in logs[key] if time >= at), None) for key, at in asked.items()}

    starts = {key: data.draw(st.integers(-2, 9)) for key in logs}
    ends = {key: data.draw(st.integers(-1, 9)) for key in logs}
    time = data.draw(st.none() | st.integers(0, 9))
    given_options = options(
        Offsets(by_partition=starts),
        Offsets(by_partition=ends) if time is None else Timestamps(every=time),
        fail_on_data_loss=False,
    )
    try:
        ranges = batch_ranges(given_options, [topic], offsets_of_times)
    except InvalidRequestError:
        return
    for r, has in zip(ranges, topics, strict=True):
        key = "t", r.partition
        assert has.log_start_offset <= r.start <= r.end <= has.end_offset
        wanted = [
            o for o, _ in logs[key] if (starts[key] == LATEST and o >= has.end_offset) or o >= starts[key] != LATEST
        ]
        if time is None:
            wanted = [o for o in wanted if ends[key] == LATEST or o < ends[key]]
        else:
            first = offsets_of_times({key: time})[key]
            wanted = [o for o in wanted if first is None or o < first]
        assert [o for o, _ in logs[key] if r.start <= o < r.end] == wanted
