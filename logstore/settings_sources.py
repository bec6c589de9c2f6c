"""The two sources of settings besides arguments: ``LOGSTORE_*`` variables and a TOML file. Owns the spelling of names
in both, and which unknown names are refused.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from logstore.broker_defaults import SYNONYMS, broker_default_names, why_without_meaning
from logstore.errors import DataDirectoryError, InvalidConfigError
from logstore.local_path import local_path
from logstore.topic_config import CONFIG_KEYS, nearest

ENV_PREFIX = "LOGSTORE_"
CONFIG_FILE = Path("conf/logstore.toml")
#: Fields with the defaults of topic keys; they are not single settings.
DEFAULTS_FIELDS = ("broker_defaults", "topic_defaults")
_TOPIC_PREFIX = "topic."
#: A variable of clients that looks like a misspelt one of the store.
_OF_CLIENTS = "LOGSTORE_SSL_PASSWORD"


def variable_name(setting: str) -> str:
    """Return the environment variable of a setting, which is spelt as in the file."""
    return f"{ENV_PREFIX}{setting.upper().replace('.', '_')}"


def from_environment(environment: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of ``fields``, by setting, and of the tables of defaults.

    Raises InvalidConfigError for a name close to a setting's, as misspelt, and for Kafka's settings without meaning
    here. Other names are ignored.
    """
    by_variable = {variable_name(name): field for name, field in fields.items()}
    broker_names = {variable_name(name): name for name in broker_default_names()}
    topic_keys = {variable_name(f"{_TOPIC_PREFIX}{key.name}"): key.name for key in CONFIG_KEYS}
    values: dict[str, Any] = {}
    broker_defaults: dict[str, str] = {}
    topic_defaults: dict[str, str] = {}
    for variable, text in environment.items():
        if variable in by_variable:
            values[by_variable[variable]] = text
        elif variable in broker_names:
            broker_defaults[broker_names[variable]] = text
        elif variable in topic_keys:
            topic_defaults[topic_keys[variable]] = text
        elif variable.startswith(ENV_PREFIX) and variable != _OF_CLIENTS:
            name = variable.removeprefix(ENV_PREFIX).lower().replace("_", ".")
            if reason := why_without_meaning(name):
                raise InvalidConfigError(f"no setting {variable}: {reason}")
            close = difflib.get_close_matches(variable, [*by_variable, *broker_names, *topic_keys], n=1, cutoff=0.9)
            if close:
                raise InvalidConfigError(f"no setting {variable}; did you mean {close[0]}?")
    return {**values, "broker_defaults": broker_defaults, "topic_defaults": topic_defaults}


def from_file(named: str | None, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the same from the TOML file ``named``, else ``./conf/logstore.toml`` if it exists; no unknown name is
    ignored. Raises InvalidConfigError.
    """
    try:
        path = local_path(named) if named else CONFIG_FILE
    except DataDirectoryError as error:
        raise InvalidConfigError(f"cannot read {named}: {error.message}") from None
    if not named and not path.is_file():
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidConfigError(f"cannot read {path}: {error}") from None
    broker_names, topic_keys = broker_default_names(), {key.name for key in CONFIG_KEYS}
    values: dict[str, Any] = {}
    broker_defaults: dict[str, str] = {}
    topic_defaults: dict[str, str] = {}
    for name, value in _flatten(document):
        if name.startswith(_TOPIC_PREFIX):
            topic_defaults[name.removeprefix(_TOPIC_PREFIX)] = _toml_text(value)
        elif name in broker_names:
            broker_defaults[name] = _toml_text(value)
        elif name in fields:
            values[fields[name]] = value
        elif reason := why_without_meaning(name):
            raise InvalidConfigError(f"{path}: no setting '{name}': {reason}")
        elif name in topic_keys:
            raise InvalidConfigError(
                f"{path}: '{name}' is a key of topics: its default stands in the table [topic]"
                + (f", or as {' or '.join(SYNONYMS[name])}" if name in SYNONYMS else "")
            )
        else:
            raise InvalidConfigError(f"{path}: no setting '{name}'; {nearest(name, [*fields, *broker_names])}")
    return {**values, "broker_defaults": broker_defaults, "topic_defaults": topic_defaults}


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values: TOML reads ``journal.max.bytes = 1`` as tables in tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _toml_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
