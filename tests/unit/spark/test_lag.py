"""Records behind latest, from the progress of a streaming query."""

import json

import pytest

from logstore.errors import InvalidRequestError
from logstore.spark.lag import RecordsBehind, records_behind

OURS = {
    "endOffset": {"a": {"0": 5, "1": 7}, "topic_ids": {"a": "1"}},
    "latestOffset": {"a": {"0": 8, "1": 6, "2": 4}, "topic_ids": {"a": "1"}},
}


def test_records_behind_by_topic_and_partition_and_in_total():
    kafka = {"endOffset": '{"b":{"0":1}}', "latestOffset": '{"b":{"0":3}}'}
    files = {"endOffset": {"logOffset": 3}, "latestOffset": None}
    progress = {"sources": [OURS, kafka, files, {"endOffset": 4, "latestOffset": 9}]}
    expected = RecordsBehind(9, {"a": {0: 3, 1: 0, 2: 4}, "b": {0: 2}})
    assert records_behind(progress) == records_behind(json.dumps(progress)) == expected


def test_a_topic_made_again_is_unread():
    again = OURS | {"latestOffset": {"a": {"0": 2}, "topic_ids": {"a": "2"}}}
    assert records_behind({"sources": [again]}) == RecordsBehind(2, {"a": {0: 2}})


def test_the_first_batch_and_two_sources_of_one_topic():
    first = OURS | {"endOffset": OURS["endOffset"] | {"initial offset": {"a": {"0": 1}}}}
    assert records_behind({"sources": [first, OURS]}).by_topic == {"a": {0: 6, 1: 0, 2: 8}}


def test_queries_without_a_batch_or_without_topics():
    class NewQuery:
        lastProgress = None  # noqa: N815 - Spark's name

    assert records_behind(NewQuery()) is None
    with pytest.raises(InvalidRequestError, match="the query reads no topics"):
        records_behind({"sources": [{"endOffset": {"logOffset": 3}, "latestOffset": None}]})
    with pytest.raises(InvalidRequestError, match="no streaming query"):
        records_behind(3)
