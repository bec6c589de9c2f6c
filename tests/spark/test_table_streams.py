"""The rows that a stream over a topic's table (``spark.readStream.format("delta")``) gets after each statement of other
writers: the table in docs/your-topic-as-a-table.md.
"""

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.test_foreign_writers import ROWS, STATEMENTS, path_of, served, topic  # noqa: F401 - a fixture

pytestmark = [pytest.mark.spark, pytest.mark.long]

DELETES, CHANGES = "ignoreDeletes", "skipChangeCommits"
EVERYTHING = [(p, o) for p in (0, 1) for o in range(ROWS)]
#: The option that a stream needs, and the rows that it gets besides those of the next roll.
EXPECTED: dict[str, tuple[str, list[tuple[int, int]]]] = {
    "OPTIMIZE": ("", []),
    "DELETE": (CHANGES, []),
    "UPDATE": (CHANGES, []),
    "MERGE": (CHANGES, []),
    "TRUNCATE": (DELETES, []),
    "INSERT": ("", [(0, 7)]),
    # Version 1 has the first 20 offsets; the store commits the files of all others again.
    "RESTORE": (DELETES, [(p, o) for p, o in EVERYTHING if o >= 20]),
    "INSERT OVERWRITE": (CHANGES, EVERYTHING),
    "ALTER TABLE": ("", []),
}


class TableStream:
    """A query on a topic's table, with the (partition, offset) of each row that it got."""

    def __init__(self, spark, path, checkpoint, option: str) -> None:
        options = {option: "true"} if option else {}
        self._source = spark.readStream.format("delta").options(**options).load(str(path))
        self._checkpoint = str(checkpoint)

    def read_on(self) -> list[tuple[int, int]]:
        """Read from the last position to the end, and return the rows."""
        got: list[tuple[int, int]] = []
        query = (
            self._source.select("partition", "offset")
            .writeStream.foreachBatch(lambda frame, _: got.extend((r.partition, r.offset) for r in frame.collect()))
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(got)


@pytest.mark.parametrize("statement", EXPECTED)
def test_a_stream_continues_after_a_statement(spark, store, topic, tmp_path, statement):  # noqa: F811
    needed, again = EXPECTED[statement]
    path = path_of(store, topic)
    stream = TableStream(spark, path, tmp_path / "checkpoint", needed)
    weaker = TableStream(spark, path, tmp_path / "weaker", DELETES if needed == CHANGES else "") if needed else None
    for reader in (stream, weaker):
        assert reader is None or reader.read_on() == EVERYTHING
    for text in STATEMENTS[statement][0]:
        spark.sql(text.format(t=f"delta.`{path}`")).collect()
    served(store, topic)
    store.produce(topic, 0, ROWS, ROWS + 5)
    store.roll(topic)
    assert stream.read_on() == sorted([*again, *((0, offset) for offset in range(ROWS, ROWS + 5))])
    if weaker is not None:
        with pytest.raises(StreamingQueryException, match=r"DELTA_SOURCE_(IGNORE_DELETE|TABLE_IGNORE_CHANGES)"):
            weaker.read_on()
