"""The ranges that tasks wrote are joined by partition."""

from logstore.spark.sink.commit_message import RecordsWritten, WrittenRange, joined


def test_messages_of_tasks_are_joined_by_partition_and_those_of_failed_tasks_left_out():
    one = RecordsWritten((WrittenRange("t", 1, 10, 14, 5), WrittenRange("t", 0, 0, 0, 1)), requests=1)
    other = RecordsWritten((WrittenRange("t", 1, 5, 6, 2), WrittenRange("s", 0, 3, 3, 1)), requests=2, replayed=1)
    whole = joined([one, None, other])
    assert whole == RecordsWritten(
        (WrittenRange("s", 0, 3, 3, 1), WrittenRange("t", 0, 0, 0, 1), WrittenRange("t", 1, 5, 14, 7)), 3, 1
    )
    assert (whole.records, whole.topics) == (9, 2)
    assert joined([]) == RecordsWritten()
