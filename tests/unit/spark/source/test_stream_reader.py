"""A stream reads a data root without a store, which is not always reachable."""

import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from logstore.delta.topic_table import TopicTable
from logstore.errors import DataDirectoryError
from logstore.spark.source.options import parse_read_options
from logstore.spark.source.stream_reader import StreamReader
from logstore.table_files import open_table
from tests.support.table_paths import create_table
from tests.support.topics import roll


@pytest.fixture
def data(tmp_path):
    """Create two topics with ten records each."""
    for topic in ("flights", "weather"):
        roll(create_table(tmp_path / "data/topics" / topic, num_partitions=1, config_overrides={}), 0, 0, 10)
    return tmp_path / "data"


def reader(data, subscription="subscribe", topics="flights,weather") -> StreamReader:
    options = {"storage": str(data), subscription: topics, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    return StreamReader(parse_read_options(options))


def spans(slices) -> list[tuple[str, int, int]]:
    return [(part.topic, part.start, part.end) for part in slices]


@pytest.mark.parametrize(("subscription", "topics"), [("subscribe", "flights,weather"), ("subscribePattern", ".*")])
def test_a_mount_that_is_away_fails_the_query_and_moves_no_position(data, subscription, topics):
    query = reader(data, subscription, topics)
    at = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    data.rename(data.with_name("away"))
    with pytest.raises(DataDirectoryError, match="there is no data root of a store at"):
        query.latestOffset(at, ReadAllAvailable())
    data.with_name("away").rename(data)
    assert query.latestOffset(at, ReadAllAvailable()) == at


def test_a_topic_that_is_out_of_sight_continues_where_it_was(data, caplog):
    query = reader(data)
    at = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    weather, flights = data / "topics/weather", data / "topics/flights"
    weather.rename(data / "away")
    for end in (20, 30):
        roll(TopicTable(open_table(flights)), 0, end - 10, end)
        start, at = at, query.latestOffset(at, ReadAllAvailable())
        assert spans(query.partitions(start, at)) == [("flights", end - 10, end)]
    assert caplog.text.count("topic weather is gone") == 1
    (data / "away").rename(weather)
    roll(TopicTable(open_table(weather)), 0, 10, 15)
    end = query.latestOffset(at, ReadAllAvailable())
    assert spans(query.partitions(at, end)) == [("weather", 10, 15)]


def test_a_topic_that_goes_after_the_look_is_a_warning(data, caplog):
    query = reader(data)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    slices = query.partitions(start, end)
    shutil.rmtree(data / "topics/weather")
    query = reader(data)
    assert spans(query.partitions(start, end)) == [("flights", 0, 10)]
    # The files are gone after the plan.
    rows = [(part.topic, batch.num_rows) for part in slices for batch in query.read(part)]
    assert rows == [("flights", 10)]
    assert "topic weather, partition 0: a read up to offset 10 is gone with its topic (it was deleted)" in caplog.text
