"""The position of a stream as the id of its events."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest_api.errors import ParameterError
from ingest_api.event_position import Partitions, StreamPartition, parse_position, position_around, position_text
from logstore.errors import UnknownTopicIdError

A, B = str(uuid.UUID(int=0x6C39D26B << 96)), str(uuid.UUID(int=0x0BADCAFE << 96))
ONE_TOPIC = tuple(StreamPartition("a", number, A) for number in (0, 1, 7))
TWO_TOPICS = (*ONE_TOPIC, StreamPartition("b", 0, B))


@pytest.mark.parametrize(
    ("partitions", "offsets", "text"),
    [
        (ONE_TOPIC, (17, 0, 5), "6c39d26b.0:17,1:0,7:5"),
        (ONE_TOPIC[:1], (2**63 - 1,), "6c39d26b.0:9223372036854775807"),
        (TWO_TOPICS, (17, 0, 5, 3), "6c39d26b.0:17,1:0,7:5;0badcafe.0:3"),
    ],
)
def test_the_text_that_the_page_shows(partitions: Partitions, offsets: tuple[int, ...], text: str) -> None:
    assert position_text(partitions, offsets).decode() == text
    assert parse_position(text, partitions, "x") == dict(zip(partitions, offsets, strict=True))


@given(st.lists(st.integers(0, 2**63 - 1), min_size=4, max_size=4), st.integers(0, 3))
def test_a_position_is_what_stands_around_any_of_its_offsets(offsets: list[int], index: int) -> None:
    before, after = position_around(TWO_TOPICS, offsets, index)
    assert b"%b%d%b" % (before, offsets[index], after) == position_text(TWO_TOPICS, offsets)


def test_partitions_may_be_left_out_and_so_may_the_only_topic() -> None:
    assert parse_position("7:5,0:1", ONE_TOPIC, "x") == {ONE_TOPIC[2]: 5, ONE_TOPIC[0]: 1}
    assert parse_position("0badcafe.0:5", TWO_TOPICS, "x") == {TWO_TOPICS[3]: 5}


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "17", "0:", ":1", "0:-1", "0:01", "0:1,", "0:1,0:2", "0:1;0:1", "2:1", "0:9223372036854775808"),
        *("0: 1", "6c39d26b", "6C39D26B.0:1", "6c39d26.0:1", "0:٣", "0:1\n", "0:1" * 20_000),
    ],
)
def test_another_text_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ParameterError, match=r"Last-Event-ID .*cannot") as refused:
        parse_position(text, ONE_TOPIC, "Last-Event-ID")
    assert len(refused.value.message) < 300


def test_several_topics_are_all_named() -> None:
    with pytest.raises(ParameterError):
        parse_position("0:1", TWO_TOPICS, "x")


def test_a_position_in_a_topic_that_was_made_again_is_noticed() -> None:
    with pytest.raises(UnknownTopicIdError, match="0badcafe"):
        parse_position("0badcafe.0:1", ONE_TOPIC, "x")
