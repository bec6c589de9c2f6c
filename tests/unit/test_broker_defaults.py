from pathlib import Path

from logstore.broker_defaults import SYNONYMS, WITHOUT_MEANING, broker_default_names, why_without_meaning
from logstore.settings import plain_settings
from logstore.topic_config import CONFIG_KEYS

FROM_KAFKA = (Path(__file__).parents[2] / "docs/from-kafka.md").read_text()


def test_every_pair_has_a_key_of_topics_and_no_setting_has_two_meanings():
    assert SYNONYMS.keys() <= {key.name for key in CONFIG_KEYS}
    names = broker_default_names()
    assert len(names) == len(set(names))
    assert not set(names) & plain_settings().keys()
    assert not [name for name in [*names, *plain_settings()] if why_without_meaning(name)]


def test_the_page_for_people_from_kafka_names_every_setting_and_reason():
    rows = [f"| {', '.join(f'`{name}`' for name in names)} | {why} |" for names, why in WITHOUT_MEANING.items()]
    assert [row for row in rows if row not in FROM_KAFKA] == []
    assert [name for name in broker_default_names() if f"`{name}`" not in FROM_KAFKA] == []
