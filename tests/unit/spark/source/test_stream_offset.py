"""The offsets of a streaming query are JSON in Spark's checkpoint."""

import pytest

from logstore.errors import InvalidRequestError
from logstore.spark.source.stream_offset import StreamOffset


def test_the_json_is_that_of_sparks_kafka_source_in_order_and_topic_ids():
    offset = StreamOffset({("flights", 10): 45, ("flights", 2): 23, ("delays", 0): 7}, {"flights": "f", "delays": "d"})
    text = {
        "delays": {"0": 7},
        "flights": {"2": 23, "10": 45},
        "topic_ids": {"delays": "d", "flights": "f"},
    }
    assert offset.json() == text
    assert [*offset.json()["flights"]] == ["2", "10"]
    assert StreamOffset.of(text) == offset


def test_ids_are_ignored_where_they_are_absent():
    offset = StreamOffset.of({"flights": {"0": 23}})
    assert (offset.offsets, offset.topic_ids) == ({("flights", 0): 23}, {})
    assert offset.is_of("flights", "any")
    assert not StreamOffset.of({"flights": {"0": 1}, "topic_ids": {"flights": "a"}}).is_of("flights", "b")


def test_a_topic_named_topic_ids_is_a_topic():
    offset = StreamOffset({("topic_ids", 0): 5, ("0", 0): 3}, {"topic_ids": "t", "0": "zero"})
    assert offset.json() == {"0": {"0": 3}, "topic_ids": {"0": 5}}
    assert StreamOffset.of(offset.json()) == StreamOffset(offset.offsets, {})


def test_the_first_batch_says_where_it_begins():
    offset = StreamOffset({("t", 0): 9}, {"t": "a"}, StreamOffset({("t", 0): 4}, {"t": "a"}))
    assert offset.json()["initial offset"] == {"t": {"0": 4}, "topic_ids": {"t": "a"}}
    assert StreamOffset.of(offset.json()) == offset


@pytest.mark.parametrize("value", [{"t": 3}, {"t": {"0": -1}}, {"t": {"x": 1}}, {"t": {"0": "1"}}])
def test_an_offset_of_another_form_is_refused(value):
    with pytest.raises(InvalidRequestError, match=r"no offset of this source: Expected e.g."):
        StreamOffset.of(value)
