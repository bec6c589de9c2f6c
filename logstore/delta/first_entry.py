"""The first entry of a topic table's log: protocol, metadata, and a ``sealed`` for each partition, which is 0 in a new
table. In a rebuilt log it also has the other facts of partitions, and all files.

It is the same entry that delta-rs writes for a new table. Here it is made in memory, with its digest, so that a table
appears in one step on any storage.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from logstore import __version__
from logstore.delta.actions import Add, Protocol, signed
from logstore.delta.schema import PARTITION_COLUMNS, PROTOCOL, SEALED, app_id
from logstore.entropy import new_uuid


def schema_string_of(schema: pa.Schema) -> str:
    """Return the columns as metadata of a table has them."""
    from deltalake import Schema

    return Schema.from_arrow(schema).to_json()


def first_entry(
    schema_string: str,
    configuration: Mapping[str, str],
    num_partitions: int,
    info: Mapping[str, str],
    now_ms: int,
    protocol: Protocol = Protocol(*PROTOCOL),  # noqa: B008  it is not changed
    *,
    table_id: uuid.UUID | None = None,
    transactions: Mapping[str, int] | None = None,
    added: Sequence[Add] = (),
) -> bytes:
    """Return the first entry. ``schema_string`` has the table's columns; ``configuration`` are its properties;
    ``info`` are our keys of ``commitInfo``; ``now_ms`` is the time of the commit.

    A new table has a new ``table_id``, no ``transactions`` except a ``sealed`` of 0 for each partition, and no files.
    """
    metadata = {
        "id": str(table_id or new_uuid()),
        "name": None,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_string,
        "partitionColumns": PARTITION_COLUMNS,
        "createdTime": now_ms,
        "configuration": dict(configuration),
    }
    commit_info = {
        "timestamp": now_ms,
        "operation": "CREATE TABLE",
        "operationParameters": {"mode": "ErrorIfExists"},
        "engineInfo": f"logstore/{__version__}",
        **info,
    }
    facts = {app_id(partition, SEALED): 0 for partition in range(num_partitions)} | dict(transactions or {})
    actions: list[dict[str, Any]] = [
        {"commitInfo": commit_info},
        {"protocol": protocol},
        {"metaData": metadata},
        *({"txn": {"appId": app, "version": value}} for app, value in facts.items()),
        *({"add": add} for add in added),
    ]
    return signed(0, b"\n".join(map(msgspec.json.encode, actions)))
