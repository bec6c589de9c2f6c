"""Writes ``docs/configuration.md`` from the tables of keys, so that the page says what the code does.

``python -m conf.configuration_page docs/configuration.md`` (``make docs``).
"""

import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

from logstore.settings import ENV_PREFIX, Settings, setting_name
from logstore.topic_config import CONFIG_KEYS

_INTRODUCTION = """\
<!-- Made from the code by `make docs`. -->
# Configuration

There are settings of the store, which a broker reads once when it starts, and configuration of topics, which is stored
with each topic and changes while the store runs. Names are Kafka's where Kafka has the key.

## Settings of the store

An option of `logstore serve` wins over an environment variable, which wins over the file, which wins over the default.
The file is the one that `LOGSTORE_CONFIG` names, else `conf/logstore.toml` in the working directory if it is there. A
name that is not in this table is refused. Sizes are in bytes, or say their unit (`"64MiB"`); times are in ms, or say it
(`"60s"`, `"7d"`).

| In the file | In the environment | Default | Meaning |
|---|---|---|---|
"""

_TOPICS = """
## Topic configuration

A topic's own value wins over the store's default for topics (table `[topic]` of the file, or a variable such as
`LOGSTORE_TOPIC_RETENTION_MS`), which wins over the default below. A topic's own values are properties of its Delta
table, named `logstore.<key>`.

Set them when a topic is created (`logstore topic create flights --config retention.ms=7d`), later with
`logstore topic alter`, or over HTTP with `POST /v3/clusters/{cluster}/topics/{topic}/configs:alter`.

| Key | Default | Takes | Meaning |
|---|---|---|---|
"""


def render() -> str:
    """The whole page, in Markdown."""
    lines = [_INTRODUCTION]
    for name, field in Settings.model_fields.items():
        if name == "topic_defaults":
            continue
        default = "" if field.default in (None, ()) else _value(field.default)
        meaning = f"{field.description}{_choices(field.annotation)}"
        lines.append(f"| `{setting_name(name)}` | `{ENV_PREFIX}{name.upper()}` | {default} | {meaning} |\n")
    lines.append(_TOPICS)
    lines.extend(f"| `{key.name}` | `{key.default}` | {key.takes} | {key.doc} |\n" for key in CONFIG_KEYS)
    return "".join(lines)


def _choices(annotation: object) -> str:
    """The words that a setting of a few words takes."""
    return (
        f" One of {', '.join(f'`{word}`' for word in get_args(annotation))}."
        if get_origin(annotation) is Literal
        else ""
    )


def _value(default: object) -> str:
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
