"""Each table feature of Delta 4.4 as Spark turns it on: protocol, properties, metadata of columns, metadata domains."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logstore.delta.log_entries import LogReplay, list_log
from logstore.table_files import open_table

#: Features that readers must support as well.
OF_READERS = frozenset(
    {
        "adaptiveMetadata-preview",
        "catalogManaged",
        "columnMapping",
        "deletionVectors",
        "geospatial",
        "geospatial-dev",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)

_ICT = {
    "delta.enableInCommitTimestamps": "true",
    "delta.inCommitTimestampEnablementVersion": "3",
    "delta.inCommitTimestampEnablementTimestamp": "1000",
}
PROPERTIES: dict[str, dict[str, str]] = {
    "deletionVectors": {"delta.enableDeletionVectors": "true"},
    "columnMapping": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"},
    "typeWidening": {"delta.enableTypeWidening": "true"},
    "typeWidening-preview": {"delta.enableTypeWidening": "true"},
    "rowTracking": {
        "delta.enableRowTracking": "true",
        "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-1",
        "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-1",
    },
    "inCommitTimestamp": _ICT,
    "icebergCompatV1": {"delta.enableIcebergCompatV1": "true", "delta.columnMapping.mode": "name"},
    "icebergCompatV2": {"delta.enableIcebergCompatV2": "true", "delta.columnMapping.mode": "name"},
    "icebergCompatV3": {"delta.enableIcebergCompatV3": "true", "delta.columnMapping.mode": "name"},
    "changeDataFeed": {"delta.enableChangeDataFeed": "true"},
    "checkConstraints": {"delta.constraints.positive": "offset >= 0"},
    "appendOnly": {"delta.appendOnly": "true"},
    "v2Checkpoint": {"delta.checkpointPolicy": "v2"},
    "checkpointProtection": {"delta.requireCheckpointProtectionBeforeVersion": "2"},
    "variantShredding": {"delta.enableVariantShredding": "true"},
    "materializePartitionColumns": {"delta.enableMaterializePartitionColumnsFeature": "true"},
    "coordinatedCommits-preview": {"delta.coordinatedCommits.commitCoordinator-preview": "dynamodb"},
}
#: Metadata of the column "value".
METADATA: dict[str, dict[str, Any]] = {
    "invariants": {"delta.invariants": '{"expression":{"expression":"value IS NOT NULL"}}'},
    "generatedColumns": {"delta.generationExpression": "key"},
    "identityColumns": {"delta.identity.start": 1, "delta.identity.step": 1},
    "allowColumnDefaults": {"CURRENT_DEFAULT": "X'00'"},
}
_NEEDED = {
    "rowTracking": ["domainMetadata"],
    "clustering": ["domainMetadata"],
    "icebergCompatV1": ["columnMapping"],
    "icebergCompatV2": ["columnMapping"],
    "icebergCompatV3": ["columnMapping"],
}
DOMAINS = {
    "rowTracking": {"domain": "delta.rowTracking", "configuration": '{"rowIdHighWaterMark":59}', "removed": False},
    "clustering": {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[]}', "removed": False},
}


def turn_on(
    table: Path, *features: str, change: Callable[[dict[str, Any]], None] | None = None, **properties: str
) -> None:
    """Commit the upgrade; ``change`` is called with the schema."""
    files = open_table(table)
    state = LogReplay(files).state().table
    assert state is not None
    all_of_them = {*features, *(more for name in features for more in _NEEDED.get(name, ()))}
    configured = {**state.properties, **properties}
    schema = json.loads(state.meta_data.schema_string or "")
    for name in all_of_them:
        configured |= PROPERTIES.get(name, {})
        for field in schema["fields"]:
            if field["name"] == "value":
                field["metadata"] |= METADATA.get(name, {})
    if "columnMapping" in all_of_them:
        map_columns(schema)
    if change is not None:
        change(schema)
    old = state.protocol
    readers = sorted({*(old.reader_features or ()), *(all_of_them & OF_READERS)})
    writers = sorted({*(old.writer_features or ()), *all_of_them, "appendOnly", "invariants"})
    protocol: dict[str, Any] = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    if readers:
        protocol["readerFeatures"] = readers
    table_now = state.meta_data
    info: dict[str, Any] = {"timestamp": 1, "operation": "SET TBLPROPERTIES", "operationParameters": {}}
    if "inCommitTimestamp" in all_of_them:
        info["inCommitTimestamp"] = 1000
    lines: list[dict[str, Any]] = [
        {"commitInfo": info},
        {"protocol": protocol | {"writerFeatures": writers}},
        {
            "metaData": {
                "id": table_now.id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": table_now.partition_columns,
                "configuration": configured,
                "createdTime": table_now.created_time,
            }
        },
        *({"domainMetadata": DOMAINS[name]} for name in sorted(all_of_them & DOMAINS.keys())),
    ]
    entry = table / "_delta_log" / f"{list_log(files).last_version + 1:020d}.json"
    with entry.open("x") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def map_columns(kind: Any, at: int = 1) -> int:
    """Give each field of a type its own name as physical name, and an id; return the next free id."""
    if not isinstance(kind, dict):
        return at
    for field in kind.get("fields", ()):
        mapping = {"delta.columnMapping.id": at, "delta.columnMapping.physicalName": field["name"]}
        field["metadata"] = mapping | field["metadata"]
        at = map_columns(field["type"], at + 1)
    return map_columns(kind.get("elementType"), at)


def rename(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(schema: dict[str, Any]) -> None:
        next(field for field in schema["fields"] if field["name"] == old)["name"] = new

    return change


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    def change(schema: dict[str, Any]) -> None:
        schema["fields"] = [field for field in schema["fields"] if field["name"] != name]

    return change


def add_column(name: str, kind: str, **metadata: object) -> Callable[[dict[str, Any]], None]:
    def change(schema: dict[str, Any]) -> None:
        schema["fields"].append({"name": name, "type": kind, "nullable": True, "metadata": metadata})

    return change
