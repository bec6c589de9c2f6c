"""Names of topics; creation and deletion in one step."""

from pathlib import Path

import pytest

from logstore.broker.topics.catalog import TopicCatalog, check_no_collision, check_topic_name
from logstore.errors import InvalidTopicError, TopicExistsError
from logstore.names import INTERNAL_TOPICS, is_internal
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.table_root import open_root


@pytest.mark.parametrize(
    "name", ["a", "A-b_c.9", "...", "x" * 249, "__debezium-heartbeat.srv1", "__strimzi_canary", "__"]
)
def test_allowed_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a\0", "x" * 250])
def test_refused_names(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        check_topic_name(name)


@pytest.mark.parametrize("name", [*sorted(INTERNAL_TOPICS), "__Audit", "__consumer.offsets"])
def test_names_that_are_reserved_or_collide_with_reserved_ones(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="is reserved for the store"):
        check_topic_name(name)


def test_internal_topics_are_those_of_the_list() -> None:
    assert is_internal(OFFSETS_TOPIC)
    assert is_internal("__erasures")
    assert not is_internal("__strimzi_canary")
    assert not is_internal("__Audit")


@pytest.mark.parametrize(("name", "other"), [("a.b", "a_b"), ("Flights", "flights"), ("A_b", "a.B")])
def test_names_that_are_too_alike(name: str, other: str) -> None:
    with pytest.raises(InvalidTopicError, match="collides"):
        check_no_collision(name, [other])


def test_the_same_name() -> None:
    with pytest.raises(TopicExistsError):
        check_no_collision("a", ["b", "a"])


def test_a_topic_is_there_after_a_restart_and_gone_after_removal(tmp_path: Path) -> None:
    catalog = TopicCatalog(open_root(tmp_path))
    made = catalog.create("flights", num_partitions=3, config_overrides={"retention.ms": "5"})
    loaded, _ = TopicCatalog(open_root(tmp_path)).load()
    assert list(loaded) == ["flights"]
    snapshot = loaded["flights"].snapshot()
    assert snapshot.topic_id == made.snapshot().topic_id
    assert snapshot.num_partitions == 3
    catalog.remove("flights", snapshot.topic_id)
    assert TopicCatalog(open_root(tmp_path)).load() == ({}, {})
    assert not list((tmp_path / "topics").iterdir())
    assert list(catalog.deleted()) == [snapshot.topic_id], "so that what the journal has of it is not missed"
    assert not list((tmp_path / "deleted").glob("*/*"))
    catalog.forget_deleted([snapshot.topic_id])
    assert catalog.deleted()
    catalog.forget_deleted([])
    assert not catalog.deleted()


def test_directories_that_are_no_topics_are_left_alone(tmp_path: Path) -> None:
    catalog = TopicCatalog(open_root(tmp_path))
    (tmp_path / "topics" / "notes").mkdir()
    assert catalog.load() == ({}, {})
    assert (tmp_path / "topics" / "notes").is_dir()
