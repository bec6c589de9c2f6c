"""Kafka's broker settings: settings that give topic keys their defaults, and settings without a meaning here.

Owns the pairs of names (Kafka: ``ServerTopicConfigSynonyms``), the rule which of several settings counts (ms over
minutes over hours), and the reasons why other settings of Kafka are refused.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from logstore.errors import InvalidConfigError
from logstore.topic_config import config_key, validate_overrides

#: The settings of the store for each topic key; the first one that is set counts.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "segment.bytes": ("log.segment.bytes",),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "retention.bytes": ("log.retention.bytes",),
    "cleanup.policy": ("log.cleanup.policy",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "compression.type": ("compression.type",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.insync.replicas": ("min.insync.replicas",),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}

#: Refused settings of Kafka's brokers, as names or globs, and the reasons.
WITHOUT_MEANING: Mapping[tuple[str, ...], str] = {
    ("log.flush.*",): "every acknowledgement is synced",
    ("log.index.*",): "there are no index files: Parquet and the Delta log have the indexes",
    ("log.preallocate",): "segments are written whole",
    ("log.roll.jitter.ms", "log.roll.jitter.hours"): "a roll commits one topic, and rolls run one after the other",
    ("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.*"): "key compaction has no buffers of a fixed size",
    ("log.message.timestamp.*.max.ms",): "timestamps are not bounded",
    ("log.message.format.version", "log.message.downconversion.enable"): "there is one format of records",
    ("log.local.retention.*", "remote.log.*"): "history is in the table from the first roll on",
    ("log.dir",): "tables are in the setting data, and the journal of a broker of a cluster in log.dirs",
    (
        "listeners",
        "advertised.listeners",
    ): "HTTP has host, port, allowed.hosts; Kafka's clients have kafka.listeners, kafka.advertised.listeners",
    ("socket.request.max.bytes",): "the largest request is max.request.size",
    ("num.network.threads", "num.io.threads", "background.threads"): "there is one event loop, and threads as needed",
    ("replica.high.watermark.checkpoint.interval.ms",): "the high watermark has no checkpoint: logs are cut by epochs",
    (
        "process.roles",
        "node.id",
        "controller.listener.*",
        "controller.quorum.*",
        "controller.socket.*",
    ): "brokers agree through ZooKeeper: broker.id, zookeeper.connect",
    ("broker.id.generation.enable", "reserved.broker.max.id"): "each broker has its own broker.id in its settings",
    ("zookeeper.connection.timeout.ms",): "the time to connect is zookeeper.session.timeout.ms",
    ("transaction.state.log.*",): "there are no transactions yet",
}

_TIME_UNITS_MS = {"minutes": 60_000, "hours": 3_600_000}
_KEYS = {setting: key for key, settings in SYNONYMS.items() for setting in settings}


def broker_default_names() -> list[str]:
    """Return every setting that gives a topic key its default."""
    return list(_KEYS)


def why_without_meaning(name: str) -> str | None:
    """Return why a setting of Kafka has no meaning here; None for any other name."""
    found = (
        reason for names, reason in WITHOUT_MEANING.items() if any(fnmatchcase(name, pattern) for pattern in names)
    )
    return next(found, None)


def set_synonyms(key: str, settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return names and values of the ``settings`` that are set and belong to a topic's ``key``; the first counts."""
    return ((name, settings[name]) for name in SYNONYMS.get(key, ()) if name in settings)


def topic_defaults_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of topic keys from Kafka's ``settings``, in the normal text of those keys. Raises
    InvalidConfigError naming the setting, its value and the allowed values.
    """
    values = {setting: _value(setting, text) for setting, text in settings.items()}
    return {key: value for key in SYNONYMS for _, value in list(set_synonyms(key, values))[:1]}


def _value(setting: str, text: str) -> str:
    key, number = _KEYS[setting], text.strip()
    factor = _TIME_UNITS_MS.get(setting.rpartition(".")[2], 1)
    try:
        # The number -1 means "no bound" in any unit.
        value = str(int(number) * factor) if factor > 1 and int(number) > 0 else number
        value = validate_overrides({key: value})[key]
        if key == "retention.ms" and value == "0":
            raise ValueError(text)  # Kafka also refuses it: it would remove everything
        return value
    except (InvalidConfigError, ValueError):
        takes = config_key(key).takes if factor == 1 else "a whole number of at least 1"
        if key == "retention.ms":
            takes = f"-1, or {takes.replace('-1', '1')}"
        raise InvalidConfigError(f"{setting} cannot be '{text}': it takes {takes}") from None
