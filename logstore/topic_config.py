"""The configuration of a topic: one table of keys drives parsing, defaults, the command line, HTTP and the docs.

Owns the names (Kafka's, where Kafka has the key), the defaults and the checks of values. Invariants: a ``TopicConfig``
holds only checked values; ``TopicConfig.parse(config.as_strings()) == config``; a value's text has one normal form, so
that equal values are stored as equal texts in a table's properties.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from logstore.errors import InvalidConfigError
from logstore.limits import MIB
from logstore.quantities import DURATION_FORMS, SIZE_FORMS, duration_ms, size_bytes

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

Value = bool | int | float | str | frozenset[str]
#: Kafka's names of the types of values; secrets have the type password.
ConfigKind = Literal["boolean", "int", "long", "double", "string", "list", "password"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_UNITS: Mapping[str, tuple[Callable[[str], int], str]] = {
    "ms": (duration_ms, f", or a duration such as {DURATION_FORMS}"),
    "bytes": (size_bytes, f", or a size such as {SIZE_FORMS}"),
}


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key: ``kind`` is Kafka's type name, ``takes`` says in words which values are allowed. ``parse`` turns text
    into the checked value (raises ValueError if it is not allowed), ``format`` back into normal text.
    """

    name: str
    kind: ConfigKind
    default: str
    takes: str
    doc: str
    parse: Callable[[str], Value]
    format: Callable[[Any], str] = str

    @property
    def field(self) -> str:
        """The attribute of ``TopicConfig``."""
        return self.name.replace(".", "_")


def _no_unit(text: str) -> int:
    raise ValueError(text)


def _integer(name: str, default: int, low: int, high: int, doc: str) -> ConfigKey:
    """Return a key for a number. A ``*.ms`` key also accepts a duration, a ``*.bytes`` key a size; both are stored as
    the number.
    """
    read_unit, forms = _UNITS.get(name.rpartition(".")[2], (_no_unit, ""))

    def parse(text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else read_unit(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    takes = f"a whole number of at least {low}" if high == LONG_MAX else f"a whole number from {low} to {high}"
    return ConfigKey(name, "long" if high > INT_MAX else "int", str(default), takes + forms, doc, parse)


def _ratio(name: str, default: float, doc: str) -> ConfigKey:
    def parse(text: str) -> float:
        value = float(text)
        if math.isnan(value) or not 0 <= value <= 1:
            raise ValueError(text)
        return value + 0.0  # -0.0 and 0.0 have one text

    return ConfigKey(name, "double", str(default), "a number from 0 to 1", doc, parse)


def _choice(name: str, choices: tuple[str, ...], doc: str, reserved: tuple[str, ...] = ()) -> ConfigKey:
    """Return a key with these values. ``reserved`` are values of a later release."""

    def parse(text: str) -> str:
        if text in reserved:
            raise InvalidConfigError(
                f"{name} cannot be '{text}' in this release, which has no schema registry: it takes one of "
                f"{', '.join(choices)}"
            )
        if text not in choices:
            raise ValueError(text)
        return text

    return ConfigKey(name, "string", choices[0], f"one of {', '.join(choices)}", doc, parse)


def _flag(name: str, doc: str) -> ConfigKey:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"

    return ConfigKey(name, "boolean", "false", "true or false", doc, parse, lambda value: str(value).lower())


def _choice_set(name: str, choices: tuple[str, ...], doc: str) -> ConfigKey:
    def parse(text: str) -> frozenset[str]:
        values = frozenset(part.strip() for part in text.split(","))
        if not values <= frozenset(choices):
            raise ValueError(text)
        return values

    def normal(values: frozenset[str]) -> str:
        return ",".join(sorted(values))

    takes = f"one or more of {', '.join(choices)}, separated by commas"
    return ConfigKey(name, "list", choices[0], takes, doc, parse, normal)


CONFIG_KEYS: tuple[ConfigKey, ...] = (
    _integer(
        "segment.bytes",
        128 * MIB,
        1,
        INT_MAX,
        "Roll a partition's un-sealed records into a Parquet segment when they have this many bytes.",
    ),
    _integer(
        "segment.ms",
        60_000,
        1,
        LONG_MAX,
        "Roll when the oldest un-sealed record is this old: plain Delta readers see a record after about this time.",
    ),
    _integer(
        "retention.ms",
        -1,
        -1,
        LONG_MAX,
        "Delete segments whose newest timestamp is older than this; -1 keeps them. Kafka's default: 604800000.",
    ),
    _integer(
        "retention.bytes",
        -1,
        -1,
        LONG_MAX,
        "Delete a partition's oldest segments while it holds more bytes than this; -1 keeps them.",
    ),
    _choice_set(
        "cleanup.policy",
        ("delete", "compact"),
        "Treatment of old records: `delete` by retention, `compact` to the latest value of each key, or both.",
    ),
    _ratio(
        "min.cleanable.dirty.ratio",
        0.5,
        "Compact a partition when at least this share of its bytes was never compacted.",
    ),
    _integer("min.compaction.lag.ms", 0, 0, LONG_MAX, "Records younger than this are not compacted."),
    _integer(
        "max.compaction.lag.ms",
        LONG_MAX,
        1,
        LONG_MAX,
        "A partition with an un-compacted record older than this is compacted, whatever its dirty ratio; the default "
        "means never.",
    ),
    _integer(
        "delete.retention.ms",
        86_400_000,
        0,
        LONG_MAX,
        "How long compaction keeps tombstones (null values), for readers that are behind.",
    ),
    _integer(
        "file.delete.delay.ms",
        604_800_000,
        0,
        LONG_MAX,
        "How long a file that was removed from the table stays on storage, for readers of older snapshots.",
    ),
    _integer(
        "max.message.bytes",
        MIB,
        1,
        INT_MAX,
        "The largest record (key, value and headers), or record batch of Kafka's clients, as it is sent.",
    ),
    _integer(
        "merge.target.bytes",
        -1,
        -1,
        INT_MAX,
        "Small segments are joined until a file has this many bytes of Parquet; -1 means `segment.bytes`, 0 turns it "
        "off. Kafka has no such key.",
    ),
    _choice(
        "compression.type",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "Codec of segment files. With `producer` batches stay in the journal as sent, and segments are zstd.",
    ),
    _choice(
        "message.timestamp.type",
        ("CreateTime", "LogAppendTime"),
        "The clock that gives a record its timestamp: the producer's, or the broker's at the append.",
    ),
    _choice(
        "key.format",
        ("json", "string"),
        'How keys of JSON requests without `key_format` are stored. With `json` a key is its JSON text (`"ada"` '
        "with its quotes, as in REST Proxy); with `string` a JSON string is stored as its UTF-8 bytes (`ada`, as "
        "Kafka clients and "
        "`logstore produce` send it), and JSON readers get keys as text. Kafka has no such key.",
    ),
    _integer(
        "idempotency.window.ms",
        600_000,
        0,
        LONG_MAX,
        "How long a request with an `Idempotency-Key` is remembered. A retry within this time gets the same "
        "response, and its records are not stored again.",
    ),
    _integer(
        "idempotency.keys.max",
        100_000,
        0,
        INT_MAX,
        "How many idempotency keys a partition remembers. Beyond that, requests with a new key get 429.",
    ),
    _integer(
        "min.insync.replicas",
        1,
        1,
        INT_MAX,
        "An append with `acks=all` is refused with fewer in-sync replicas than this (or than the partition has "
        "replicas).",
    ),
    _flag(
        "unclean.leader.election.enable",
        "Let a replica that is not in sync become leader if no other can; acknowledged records may be lost.",
    ),
    _choice(
        "table.columns.mode",
        ("none", "declared"),
        "Which columns the table has beside the log's: `declared` derives those of `logstore topic columns` from JSON "
        "values; `none` derives none, and leaves in the table what is there. Kafka has no such key.",
        reserved=("schema_id", "schema_latest"),
    ),
)

_KEYS = {key.name: key for key in CONFIG_KEYS}
_PARQUET_CODECS = {"producer": "zstd", "uncompressed": "none"}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective configuration of one topic. Times are in ms, sizes in bytes; -1 as retention means "no bound"."""

    segment_bytes: int
    segment_ms: int
    retention_ms: int
    retention_bytes: int
    cleanup_policy: frozenset[str]
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    max_message_bytes: int
    merge_target_bytes: int
    compression_type: str
    message_timestamp_type: str
    key_format: str
    idempotency_window_ms: int
    idempotency_keys_max: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    table_columns_mode: str

    @classmethod
    def parse(cls, overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> Self:
        """Combine a topic's overrides with the store's defaults and those of ``CONFIG_KEYS``, in this order of
        precedence.

        An empty value is a key that is not set (a table property cannot be removed, only emptied). Raises
        InvalidConfigError naming the key, the value and the allowed values.
        """
        texts = {key.name: key.default for key in CONFIG_KEYS}
        for layer in (defaults or {}, overrides):
            texts.update({name: text for name, text in layer.items() if text})
        config = cls(**{config_key(name).field: _parse_value(name, text) for name, text in texts.items()})
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is above "
                f"max.compaction.lag.ms ({config.max_compaction_lag_ms}); lower the first or raise the second"
            )
        return config

    @staticmethod
    def usable(overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return ``overrides`` without the values that ``parse`` refuses. Such values were set with ALTER TABLE, not
        through the store.
        """
        kept: dict[str, str] = {}
        for name in sorted(overrides):
            try:
                TopicConfig.parse({**kept, name: overrides[name]}, defaults)
            except InvalidConfigError:
                continue
            kept[name] = overrides[name]
        return kept

    def as_strings(self) -> dict[str, str]:
        """Return every key in Kafka's spelling with its value's normal text, in the order of ``CONFIG_KEYS``."""
        return {key.name: key.format(getattr(self, key.field)) for key in CONFIG_KEYS}

    @property
    def compacted(self) -> bool:
        """True if records must have a key, because compaction keeps the latest one of each."""
        return "compact" in self.cleanup_policy

    @property
    def merge_target(self) -> int:
        """The size in bytes of a segment that needs no merge."""
        return self.segment_bytes if self.merge_target_bytes < 0 else self.merge_target_bytes

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def string_keys(self) -> bool:
        """True if keys in JSON are texts, stored without their quotes."""
        return self.key_format == "string"

    @property
    def segment_codec(self) -> str:
        """The Parquet codec of segment files, as pyarrow spells it."""
        return _PARQUET_CODECS.get(self.compression_type, self.compression_type)


def config_key(name: str) -> ConfigKey:
    """Return the key called ``name``. Raises InvalidConfigError, which names the nearest one, if it does not exist."""
    try:
        return _KEYS[name]
    except KeyError:
        raise InvalidConfigError(f"no topic configuration key '{name}'; {nearest(name, _KEYS)}") from None


def validate_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return checked overrides in their normal text. Raises InvalidConfigError for an unknown key or a wrong value."""
    normal = {name: config_key(name).format(_parse_value(name, text)) for name, text in overrides.items()}
    TopicConfig.parse(normal)
    return normal


def nearest(name: str, known: Iterable[str]) -> str:
    """Return advice for a misspelt name: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"the keys are {', '.join(names)}"


def _parse_value(name: str, text: str) -> Any:
    key = config_key(name)
    try:
        return key.parse(text.strip())
    except ValueError:
        raise InvalidConfigError(f"{name} cannot be '{text}': it takes {key.takes}") from None
