"""Names of topics that a pattern matches, without the store's internal ones."""

from pathlib import Path

from logstore.broker.topics.catalog import TopicCatalog
from logstore.spark.source.options import parse_read_options
from logstore.spark.source.topics import SourceTopics
from logstore.table_root import open_root


def test_a_pattern_matches_users_topics_with_the_prefix_of_internal_ones(tmp_path: Path) -> None:
    catalog = TopicCatalog(open_root(tmp_path))
    for name in ("__audit", "__consumer_offsets", "__strimzi_canary"):
        catalog.create(name, num_partitions=1, config_overrides={})
    options = parse_read_options({"storage": str(tmp_path), "subscribePattern": "__.*"})
    assert [topic.topic for topic in SourceTopics(options).look()] == ["__strimzi_canary"]
