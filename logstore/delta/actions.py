"""Actions of a log entry as this project reads them, and the digest that each of our entries carries about itself.

``commitInfo`` of an entry of ours has ``logstore.digest`` = ``<actions>:<sum>``: the number of actions after it, and
the sum modulo 2^32 of the CRC-32C of its version (decimal digits) and of every action in canonical form, including our
own keys of ``commitInfo``. The canonical form is JSON with sorted keys of the fields below and no others, without
nulls. Fields that another version of the writer adds, its order and its spacing do not count. Nor do the fields and
actions of table features (``_OF_FEATURES``), which earlier releases do not know, so that these can still check our
entries.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from logstore import __version__
from logstore.crc32c import crc32c
from logstore.segments.deletion_vectors import DeletionVector

OWN_PREFIX = "logstore."
#: The key in ``commitInfo`` of a value that no other commit has.
COMMIT_ID_KEY = OWN_PREFIX + "commit_id"
DIGEST_KEY = OWN_PREFIX + "digest"
#: The key in ``commitInfo`` of a table with in-commit timestamps.
IN_COMMIT_TIMESTAMP = "inCommitTimestamp"
OPERATION_KEY = OWN_PREFIX + "operation"
#: The operation that takes refused files of other writers out of the table.
DROP_FOREIGN_FILES = "drop-foreign-files"
#: The only field of ours that Spark's DESCRIBE HISTORY shows.
USER_METADATA_KEY = "userMetadata"


class _Part(msgspec.Struct, rename="camel", omit_defaults=True):
    """A part of an action. Every default is None, so that a missing field is never taken for one with a value."""


class Txn(_Part):
    app_id: str
    version: int


class Add(_Part):
    path: str
    size: int | None = None
    partition_values: dict[str, str | None] | None = None
    modification_time: int | None = None
    data_change: bool | None = None
    stats: str | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None


class Remove(_Part):
    path: str
    size: int | None = None
    partition_values: dict[str, str | None] | None = None
    deletion_timestamp: int | None = None
    data_change: bool | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None


class MetaData(_Part):
    id: str
    name: str | None = None
    description: str | None = None
    format: dict[str, Any] | None = None
    schema_string: str | None = None
    partition_columns: list[str] | None = None
    #: Other writers may set a value to null, which counts as no value.
    configuration: dict[str, str | None] | None = None
    created_time: int | None = None


class Protocol(_Part):
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class DomainMetadata(msgspec.Struct, rename="camel"):
    """The state of a table feature (Delta protocol, "Domain Metadata"). Readers require all of its fields."""

    domain: str
    configuration: str = ""
    removed: bool = False


class Sidecar(_Part):
    """A file with more actions of a V2 checkpoint."""

    path: str


class Action(_Part):
    commit_info: dict[str, Any] | None = None
    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    add: Add | None = None
    remove: Remove | None = None
    txn: Txn | None = None
    domain_metadata: DomainMetadata | None = None
    sidecar: Sidecar | None = None


DECODER = msgspec.json.Decoder(Action)
_ENCODER = msgspec.json.Encoder(order="sorted")


def entry_digest(version: int, actions: Sequence[Action]) -> str:
    """Return the digest of a whole entry, ``commitInfo`` included."""
    total = crc32c(b"%d" % version) + sum(crc32c(_ENCODER.encode(_canonical(action))) for action in actions)
    return f"{sum(action.commit_info is None for action in actions)}:{total & 0xFFFFFFFF:08x}"


def stored_digest(actions: Iterable[Action]) -> str | None:
    """Return the digest that the entry carries; None in another writer's entry."""
    for action in actions:
        if action.commit_info is not None:
            digest = action.commit_info.get(DIGEST_KEY)
            return None if digest is None else str(digest)
    return None


#: Fields that the digest leaves out.
_OF_FEATURES: dict[str, None] = dict.fromkeys(("deletion_vector", "base_row_id", "default_row_commit_version"))
_OF_PROTOCOL: dict[str, None] = dict.fromkeys(("reader_features", "writer_features"))


def _canonical(action: Action) -> Action:
    if action.commit_info is not None:
        ours = {
            key: value
            for key, value in action.commit_info.items()
            if key == USER_METADATA_KEY or (key.startswith(OWN_PREFIX) and key != DIGEST_KEY)
        }
        return Action(commit_info=ours)
    if action.meta_data is not None:
        schema = action.meta_data.schema_string or "null"
        with contextlib.suppress(msgspec.DecodeError):
            schema = _ENCODER.encode(msgspec.json.decode(schema)).decode()
        return Action(meta_data=msgspec.structs.replace(action.meta_data, schema_string=schema))
    if action.domain_metadata is not None:
        return Action()
    if action.protocol is not None:
        return Action(protocol=msgspec.structs.replace(action.protocol, **_OF_PROTOCOL))
    # An action without feature fields is used as it is: making a new object for each would take longer than its
    # checksum.
    if (add := action.add) is not None and (add.deletion_vector or add.base_row_id is not None):
        return Action(add=msgspec.structs.replace(add, **_OF_FEATURES))
    if (remove := action.remove) is not None and (remove.deletion_vector or remove.base_row_id is not None):
        return Action(remove=msgspec.structs.replace(remove, **_OF_FEATURES))
    return action


# ---- entries of ours ------------------------------------------------------------------------------------------------


def with_digest(version: int, info: dict[str, str], actions: Iterable[Action]) -> dict[str, str]:
    """Return ``info``, our keys of ``commitInfo``, with the digest of an entry that holds it and ``actions``."""
    return info | {DIGEST_KEY: entry_digest(version, [Action(commit_info=dict(info)), *actions])}


def transactions(values: dict[str, int]) -> list[Action]:
    return [Action(txn=Txn(app, value)) for app, value in values.items()]


def encode_entry(commit_info: dict[str, Any], actions: Iterable[Action]) -> bytes:
    """Encode a whole entry: ``commit_info``, with the digest of ``actions``, comes first."""
    lines: list[Any] = [{"commitInfo": commit_info}]
    for action in actions:
        line = msgspec.to_builtins(action)
        if action.remove is not None:
            line["remove"]["extendedFileMetadata"] = True  # size and partition values are included
        lines.append(line)
    return b"\n".join(map(msgspec.json.encode, lines))


def commit_info_of(
    operation: str, parameters: dict[str, str], timestamp_ms: int, info: dict[str, Any]
) -> dict[str, Any]:
    """Return a whole ``commitInfo``, as Delta's history shows it. ``info`` are keys of ours and of table features."""
    return {
        "timestamp": timestamp_ms,
        "operation": operation,
        "operationParameters": parameters,
        "engineInfo": f"logstore/{__version__}",
        **info,
    }


def signed(version: int, entry: bytes) -> bytes:
    """Return a whole entry with its digest in ``commitInfo``, for a new table, whose id the Delta writer chooses."""
    first, *rest = entry.splitlines()
    info = msgspec.json.decode(first)
    info["commitInfo"][DIGEST_KEY] = entry_digest(version, DECODER.decode_lines(entry))
    return b"\n".join([msgspec.json.encode(info), *rest])
