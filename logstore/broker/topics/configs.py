"""Configurations as clients see them: each value with the layers that could give it, for any listener.

Keys of a topic are set on the topic, by the store's settings, or not at all; settings of a broker are set in its file
or its environment, or not at all. A setting that was set to its default counts as default: the two look the same.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from logstore.broker_defaults import set_synonyms
from logstore.settings import Settings, secret_settings
from logstore.topic_config import ConfigKey

#: Kafka's names of the layers.
ConfigSource = Literal["DYNAMIC_TOPIC_CONFIG", "STATIC_BROKER_CONFIG", "DEFAULT_CONFIG"]


class ConfigLayer(NamedTuple):
    """A value, and the name under which it was given."""

    source: ConfigSource
    name: str
    value: str


class SettingLayers(NamedTuple):
    """A broker's setting. ``layers`` is empty for a secret, whose values are never shown."""

    value: str | None
    source: ConfigSource
    layers: list[ConfigLayer]
    is_secret: bool


def topic_layers(settings: Settings, overrides: Mapping[str, str], key: ConfigKey) -> list[ConfigLayer]:
    """Return every layer that gives a topic's key a value; the first one counts. ``overrides`` are set on the topic."""
    of_store = list(set_synonyms(key.name, settings.broker_defaults))
    if not of_store and key.name in settings.topic_defaults:
        of_store = [(key.name, settings.topic_defaults[key.name])]
    layers = [
        ConfigLayer("DYNAMIC_TOPIC_CONFIG", key.name, overrides.get(key.name, "")),
        *(ConfigLayer("STATIC_BROKER_CONFIG", name, value) for name, value in of_store),
        ConfigLayer("DEFAULT_CONFIG", key.name, key.default),
    ]
    return [layer for layer in layers if layer.value]


def setting_layers(settings: Settings, name: str, field: str) -> SettingLayers:
    """Return the setting called ``name`` in the file."""
    default, value = _text(Settings.model_fields[field].default), _text(getattr(settings, field))
    is_secret, is_set = field in secret_settings(), value != default
    layers: list[tuple[ConfigSource, str | None]] = [
        ("STATIC_BROKER_CONFIG", value if is_set else None),
        ("DEFAULT_CONFIG", default),
    ]
    return SettingLayers(
        None if is_secret else value,
        "STATIC_BROKER_CONFIG" if is_set else "DEFAULT_CONFIG",
        [ConfigLayer(source, name, text) for source, text in layers if text is not None and not is_secret],
        is_secret,
    )


def _text(value: object) -> str | None:
    """Format a setting as in the configuration file."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)
