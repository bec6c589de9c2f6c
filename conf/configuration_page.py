"""Writes ``docs/configuration.md`` from the tables of keys, so that the page agrees with the code.

``python -m conf.configuration_page docs/configuration.md`` (``make docs``).
"""

import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

from logstore.broker_defaults import SYNONYMS
from logstore.settings import Settings, plain_settings
from logstore.settings_sources import variable_name
from logstore.topic_config import CONFIG_KEYS

_INTRODUCTION = """\
<!-- Made from the code by `make docs`. -->
# Configuration

There are settings of the store, which a broker reads once when it starts, and configuration of topics, which is stored
with each topic and changes while the store runs. Names are Kafka's where Kafka has the key.

## Settings of the store

An option of `logstore serve` wins over an environment variable, which wins over the file, which wins over the default.
The file is the one that `LOGSTORE_CONFIG` names, else `conf/logstore.toml` in the working directory if it is there. A
name that is not on this page is refused. Sizes are in bytes, or say their unit (`"64MiB"`); times are in ms, or say it
(`"60s"`, `"7d"`).

| In the file | In the environment | Default | Meaning |
|---|---|---|---|
"""

_TOPICS = """
## Topic configuration

A topic's own value wins over the store's default for topics, which wins over the default below. A topic's own values
are properties of its Delta table, named `logstore.<key>`.

The store's default is a setting of the store, with Kafka's name (second column): `log.retention.hours = 168` in the
file, or `LOGSTORE_LOG_RETENTION_HOURS=168` in the environment. If several are set, the first in the column counts, as
in Kafka: ms over minutes over hours. -1 means no limit in each unit. The table `[topic]` of the file takes the keys of
topics themselves, also those without a name in the second column (variables: `LOGSTORE_TOPIC_KEY_FORMAT`). The store
does not start if the two set different values for one key. Jobs need the same defaults as the store: use the same file
for both.

Set a topic's own values when it is created (`logstore topic create flights --config retention.ms=7d`), later with
`logstore topic alter`, or over HTTP with `POST /v3/clusters/{cluster}/topics/{topic}/configs:alter`.

| Key | Default of the store | Default | Takes | Meaning |
|---|---|---|---|---|
"""


def render() -> str:
    """Return the whole page, in Markdown."""
    lines = [_INTRODUCTION]
    for name, attribute in plain_settings().items():
        field = Settings.model_fields[attribute]
        default = "" if field.default in (None, ()) else _value(field.default)
        meaning = f"{field.description}{_choices(field.annotation)}"
        lines.append(f"| `{name}` | `{variable_name(name)}` | {default} | {meaning} |\n")
    lines.append(_TOPICS)
    for key in CONFIG_KEYS:
        settings = ", ".join(f"`{name}`" for name in SYNONYMS.get(key.name, ()))
        lines.append(f"| `{key.name}` | {settings} | `{key.default}` | {key.takes} | {key.doc} |\n")
    return "".join(lines)


def _choices(annotation: object) -> str:
    """Return the allowed words of a setting that has only a few."""
    return (
        f" One of {', '.join(f'`{word}`' for word in get_args(annotation))}."
        if get_origin(annotation) is Literal
        else ""
    )


def _value(default: object) -> str:
    if isinstance(default, tuple):
        return f"`{','.join(default)}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
