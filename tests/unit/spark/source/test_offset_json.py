"""JSON forms of Spark's Kafka source: written text is read back, and all other text is refused with an example."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.spark.source.offset_json import read_offsets, read_partitions, read_times, write_offsets

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=8) | st.just("topic_ids")
PARTITIONS = st.integers(0, 2**31 - 1)


@given(st.dictionaries(st.tuples(TOPICS, PARTITIONS), st.integers(-2, 2**63 - 1)), st.dictionaries(TOPICS, st.uuids()))
def test_offsets_come_back_as_they_were_written(offsets, topic_ids):
    ids = {topic: str(found) for topic, found in topic_ids.items()}
    if ids and any(topic == "topic_ids" for topic, _ in offsets):
        return  # one of the two is lost, because the text has the key only once
    assert read_offsets(write_offsets(offsets, ids)) == (offsets, ids)


def test_the_text_is_that_of_sparks_kafka_source():
    assert write_offsets({("b", 0): 7, ("a", 10): 1, ("a", 2): -1}) == '{"a":{"2":-1,"10":1},"b":{"0":7}}'
    assert read_partitions('{"a": [2, 0, 2], "b": [1], "c": []}') == {"a": (0, 2), "b": (1,)}
    assert read_times(' {"a": {"0": 1700000000000}} ') == {("a", 0): 1_700_000_000_000}


def test_an_offset_of_a_streaming_querys_first_batch_is_read_without_where_it_began():
    text = '{"a":{"0":7},"topic_ids":{"a":"6c39"},"initial offset":{"a":{"0":5},"topic_ids":{"a":"6c39"}}}'
    assert read_offsets(text) == ({("a", 0): 7}, {"a": "6c39"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        '"a"',
        "{",
        '{"a": 1}',
        '{"a": [1]}',
        '{"a": {"0": "1"}}',
        '{"a": {"0": 1.0}}',
        '{"a": {"0": true}}',
        '{"a": {"0": null}}',
        '{"a": {"0": -3}}',
        '{"a": {"0": 9223372036854775808}}',
        '{"a": {"-1": 1}}',
        '{"a": {"x": 1}}',
        '{"a": {"\u0663": 1}}',
        '{"a": {"2147483648": 1}}',
        '{"a": {"0": 1, "0": 2}}',
        '{"a": {"0": 1, "00": 2}}',
        '{"a": {"0": 1}, "a": {"0": 1}}',
        '{"topic_ids": {"a": 1, "b": "x"}}',
        "[" * 100_000,
    ],
)
def test_offsets_that_cannot_be_read_are_answered_with_an_example(text):
    with pytest.raises(ValueError, match=r'^Expected e\.g\. \{"topicA":\{"0":23,"1":-1\},"topicB":\{"0":-2\}\}, got '):
        read_offsets(text)


@pytest.mark.parametrize("text", ["{", "[0]", '{"a": 0}', '{"a": ["0"]}', '{"a": [-1]}', '{"a": [true]}', '{"a": {}}'])
def test_partitions_that_cannot_be_read_are_answered_with_an_example(text):
    with pytest.raises(ValueError, match=r'^Expected e\.g\. \{"topicA":\[0,1\],"topicB":\[0,1\]\}, got '):
        read_partitions(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_any_json_is_read_or_refused(value):
    for read in (read_offsets, read_partitions, read_times):
        with contextlib.suppress(ValueError):
            read(json.dumps(value))


def test_times_before_1970_are_refused():
    with pytest.raises(ValueError, match=r'got {"a": {"0": -1}}$'):
        read_times('{"a": {"0": -1}}')
