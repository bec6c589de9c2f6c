"""The batches of a query that a Delta sink may leave out."""

import msgspec
import pytest

from logstore.errors import InvalidRequestError
from logstore.spark.foreach_batch import QueryCommit, check_batch
from logstore.spark.sink_commits import parse_user_metadata, user_metadata

COMMIT = QueryCommit("query", "query", 3, 1_700_000_000_000, "digest", "run", "mine")


def newest(**changes: object) -> QueryCommit:
    return msgspec.structs.replace(COMMIT, **changes)


@pytest.mark.parametrize(
    "found",
    [
        COMMIT,
        newest(run_id="before", writer="other"),  # Spark repeats a batch of a run that has died
        newest(batch_id=2, planned_ms=1, run_id="before", writer="other"),
    ],
)
def test_a_batch_that_is_in_the_sink_or_follows_what_is_there(found):
    check_batch("sink", found, COMMIT)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"planned_ms": 1}, "planned 1970-01-01T00:00:00.001.*batch 3, planned 2023-11-14.* older than the table"),
        ({"offsets": "others"}, "older than the table"),
        ({"batch_id": 4}, "has batch 4 .* gives batch 3, .* older than the table"),
        ({"query_id": "other", "batch_id": 1}, "another query"),
        ({"run_id": "run"}, "another delta_writer of this query"),
    ],
)
def test_a_batch_that_would_be_left_out_for_another(changes, says):
    found = newest(**{"run_id": "before", "writer": "other"} | changes)
    with pytest.raises(InvalidRequestError, match=says):
        check_batch("sink", found, COMMIT)


def test_commits_of_a_release_that_did_not_say_what_was_planned():
    assert parse_user_metadata(user_metadata(COMMIT), QueryCommit) == COMMIT
    old = parse_user_metadata('{"logstore": {"appId": "query", "queryId": "query", "batchId": 3}}', QueryCommit)
    with pytest.raises(InvalidRequestError, match="older than the table"):
        check_batch("sink", old, COMMIT)
