"""Takes back features that another writer has turned on for a topic's table: ``logstore topic take-feature-back``.

The store's own commits do this, even while a store is running. First the files with deletion vectors are rewritten
without the deleted rows. Then one commit writes the protocol without the features, and the metadata without their
entries. Readers see the same records before and after. Spark's ``DROP FEATURE`` does not know all features, and leaves
a newer protocol behind for a day.

Invariant: the commit that takes a feature back is made on a version in which nothing needs the feature any more.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from logstore.delta.actions import DomainMetadata, MetaData, Protocol
from logstore.delta.committer import Plan
from logstore.delta.schema import PROTOCOL
from logstore.delta.snapshot import TopicSnapshot, sharing
from logstore.delta.table_features import (
    APPEND_ONLY,
    BASE,
    COLUMN_MAPPING,
    DELETION_VECTORS,
    DOMAIN_METADATA,
    FEATURES,
    V2_CHECKPOINT,
    columns_in_the_way,
    matches,
    of_readers,
    remedy_of_unknown,
)
from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitRefusedError
from logstore.log.merge import MERGE, MergeGroup, merge_parts, merge_task
from logstore.segments.merge import write_here
from logstore.segments.writer import Segment
from logstore.topic_config import TopicConfig

OPERATION = "take-feature-back"
#: Other writers may delete rows while files are rewritten, so it is tried several times.
_ATTEMPTS = 5
#: Features by name, each with the features that cannot be on without it.
_NEED = {
    DOMAIN_METADATA: frozenset({"rowTracking", "clustering", "adaptiveMetadata-preview"}),
    COLUMN_MAPPING: frozenset({"icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "adaptiveMetadata-preview"}),
}


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The features that were taken back. ``features`` are names in the protocol; ``rewritten_files`` counts files that
    had vectors; ``version`` is the table's version afterwards.
    """

    features: tuple[str, ...]
    rewritten_files: int
    version: int


def features_to_take_back(snapshot: TopicSnapshot, feature: str | None) -> tuple[str, ...]:
    """Return ``feature`` and the features of the table that need it; with None, all features except append-only.

    Raises CommitRefusedError for a feature that the store cannot take back.
    """
    here = snapshot.features
    if feature is None:
        wanted = {name for name in here if name != APPEND_ONLY and (name not in BASE or _has_left(snapshot, name))}
    else:
        if feature not in FEATURES and feature not in here:
            raise CommitRefusedError(f"Delta has no feature {feature!r}; there are {', '.join(sorted(FEATURES))}")
        wanted = {feature, *_NEED.get(feature, ())} & here
    for name in sorted(wanted):
        known = FEATURES.get(name)
        if known is None:
            unknown = f"{snapshot.location}: this release does not know the feature {name}"
            raise CommitRefusedError(f"{unknown}. {remedy_of_unknown([name])}")
        if known.irremovable is not None:
            raise CommitRefusedError(f"{snapshot.location}: {known.words} cannot be taken back: {known.irremovable}")
        if (why := columns_in_the_way(name, snapshot.table)) is not None:
            raise CommitRefusedError(f"{snapshot.location}: {known.words} cannot be taken back: {why}")
    return tuple(sorted(wanted))


def take_back(
    table: TopicTable,
    topic: str,
    feature: str | None,
    config_of: Callable[[TopicSnapshot], TopicConfig],
    now_ms: int,
) -> TakenBack:
    """Take back the features that ``features_to_take_back`` returns. Blocking.

    Raises CommitRefusedError, CorruptionError, StorageError, and the errors of ``Committer.commit``. After an error the
    steps that were done are complete, and the command may be run again.
    """
    rewritten = 0
    for _ in range(_ATTEMPTS):
        snapshot = table.any_snapshot()
        features = features_to_take_back(snapshot, feature)
        if DELETION_VECTORS in features and snapshot.vectors:
            snapshot = table.snapshot()  # raises if records cannot be read
            rewritten += _rewrite(table, topic, snapshot, config_of(snapshot), now_ms)
        try:
            version = table.commit_taking_back(lambda now: _plan(now, feature))
        except VectorsLeftError:
            continue
        if V2_CHECKPOINT in features:
            # Readers of the old protocol know only checkpoints of the old form.
            table.checkpoint()
        return TakenBack(features, rewritten, version)
    raise CommitRefusedError(
        f"{table.files}: others deleted rows by deletion vectors while its files were rewritten: try again"
    )


def _plan(snapshot: TopicSnapshot, feature: str | None) -> Plan | None:
    """Return the commit, or None if there is nothing to take back.

    Raises CommitRefusedError if files still need a feature.
    """
    features = features_to_take_back(snapshot, feature)
    if not features:
        return None
    if DELETION_VECTORS in features and snapshot.vectors:
        raise VectorsLeftError(f"{snapshot.location}: files have deletion vectors")
    known = [FEATURES[name] for name in features]
    properties = [key for one in known for key in one.properties]
    domains = [one.domain for one in known if one.domain is not None]
    if DOMAIN_METADATA in features:
        domains += snapshot.table.domains
    return Plan(
        OPERATION,
        protocol=_protocol(snapshot.table.protocol, snapshot.features - set(features)),
        meta_data=_without(snapshot.table.meta_data, properties, [key for one in known for key in one.metadata]),
        domains=tuple(
            DomainMetadata(name, configuration, True)
            for name, configuration in snapshot.table.domains.items()
            if name in domains
        ),
    )


class VectorsLeftError(CommitRefusedError):
    """Files got deletion vectors after they were rewritten."""


def _has_left(snapshot: TopicSnapshot, name: str) -> bool:
    """Return whether a feature that every table has is in use."""
    keys = FEATURES[name].metadata
    return bool(keys) and any(f'"{key}' in (snapshot.table.meta_data.schema_string or "") for key in keys)


def _protocol(old: Protocol, features: Collection[str]) -> Protocol:
    """Return the lowest protocol with these features."""
    more = set(features) - BASE
    if not more:
        return Protocol(*PROTOCOL)
    readers = sorted(more & of_readers(old))
    writers = sorted(more | BASE)
    if readers == [COLUMN_MAPPING]:
        return Protocol(2, 7, None, writers)
    return Protocol(3 if readers else 1, 7, readers or None, writers)


def _without(table: MetaData, properties: Sequence[str], keys: Sequence[str]) -> MetaData:
    configured = {
        name: value
        for name, value in (table.configuration or {}).items()
        if value is not None and not any(matches(name, key) for key in properties)
    }
    schema = json.loads(table.schema_string or "{}")
    return msgspec.structs.replace(
        table, configuration=configured, schema_string=json.dumps(_stripped(schema, keys), separators=(",", ":"))
    )


def _stripped(kind: Any, keys: Sequence[str]) -> Any:
    """Return a type of Delta without these keys in the metadata of its fields."""
    if isinstance(kind, list):
        return [_stripped(part, keys) for part in kind]
    if not isinstance(kind, Mapping):
        return kind
    return {
        name: {key: told for key, told in part.items() if not any(matches(key, one) for one in keys)}
        if name == "metadata" and isinstance(part, Mapping)
        else _stripped(part, keys)
        for name, part in kind.items()
    }


# ---- files with vectors ---------------------------------------------------------------------------------------------


def _rewrite(table: TopicTable, topic: str, snapshot: TopicSnapshot, config: TopicConfig, now_ms: int) -> int:
    """Replace the files that have vectors by segments without the deleted rows; return the number of files."""
    if snapshot.unserved:
        raise CommitRefusedError(
            f"{snapshot.location} has files of other writers that are not served: run logstore topic "
            f"drop-foreign-files {topic} first"
        )
    joined: list[tuple[MergeGroup, Segment]] = []
    for partition in snapshot.partitions:
        files = snapshot.segments(partition)
        for file in sharing(files, {path for one in files for path in one.masked_paths}):
            group = MergeGroup(partition, (file,), file.base_offset)
            task = merge_task(group, topic, table.files.uri, snapshot, config, now_ms)
            joined.append((group, write_here(len(joined), task, files=table.files).segment))
    done = table.commit_rewrites(merge_parts(joined), data_change=False, operation=MERGE, taking_back=True)
    for error in done.refused.values():
        if not isinstance(error, CommitRefusedError):
            raise error
    return sum(len(group.files[0].paths) for group, _ in joined if group.partition in done.committed)
