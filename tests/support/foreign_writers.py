"""Changes of other writers to a topic's table, by delta-rs: one line for each."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from logstore.records.schema import TABLE_SCHEMA
from tests.support.topics import log_batch


def rows_of(offsets: list[int], partition: int = 0) -> pa.Table:
    """Return rows of a topic's table with the values of ``log_batch``."""
    rows = pa.Table.from_batches([log_batch(offsets)])
    rows = rows.append_column("partition", pa.array([partition] * len(offsets), pa.int32()))
    return rows.select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA)


def optimize(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


def z_order(table: Path, *, target_size: int | None = None) -> None:
    DeltaTable(str(table)).optimize.z_order(["value"], target_size=target_size)


def delete(table: Path, predicate: str) -> None:
    DeltaTable(str(table)).delete(predicate)


def update(table: Path, predicate: str, value: str) -> None:
    DeltaTable(str(table)).update(predicate=predicate, updates={"value": f"CAST('{value}' AS BYTEA)"})


def merge(table: Path, offsets: list[int], value: bytes, partition: int = 0) -> None:
    """Set the values of records."""
    source = pa.table(
        {
            "offset": pa.array(offsets, pa.int64()),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "value": pa.array([value] * len(offsets), pa.binary()),
        }
    )
    DeltaTable(str(table)).merge(
        source, 's."offset" = t."offset" AND s.partition = t.partition', source_alias="s", target_alias="t"
    ).when_matched_update({"value": "s.value"}).execute()


def append(table: Path, offsets: list[int], partition: int = 0) -> None:
    write_deltalake(str(table), rows_of(offsets, partition), mode="append")


def overwrite(table: Path, rows: pa.Table | None = None, *, predicate: str | None = None) -> None:
    """Overwrite the table with ``rows``; by default with all its rows in another order."""
    if rows is None:
        rows = DeltaTable(str(table)).to_pyarrow_table().sort_by([("value", "descending")])
    write_deltalake(str(table), rows, mode="overwrite", predicate=predicate)


def restore(table: Path, version: int) -> None:
    DeltaTable(str(table)).restore(version)


def version(table: Path) -> int:
    return DeltaTable(str(table)).version()


def vacuum(table: Path) -> None:
    DeltaTable(str(table)).vacuum(168, dry_run=False)
