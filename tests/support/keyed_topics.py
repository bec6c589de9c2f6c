"""Topics of keyed records for tests of jobs: rolled as the store does it, and read by delta-rs and pyarrow."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from logstore.delta.columns import layout_of
from logstore.delta.topic_table import RollPart, TopicTable
from logstore.records.schema import LOG_SCHEMA
from logstore.segments.layout import new_layout
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.table_paths import create_table, path_of


@dataclass(frozen=True, slots=True)
class Record:
    """A record; it is a tombstone if ``value`` is None."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


@dataclass
class KeyedTopic:
    """The topic at ``<data>/topics/<name>``; each roll writes one segment."""

    data: Path
    name: str
    table: TopicTable

    @classmethod
    def create(cls, data: Path, name: str, partitions: int = 1, **config: object) -> "KeyedTopic":
        """Create the topic; ``config`` has underscores instead of dots."""
        overrides = {key.replace("_", "."): str(value) for key, value in config.items()}
        path = data / "topics" / name
        table = create_table(path, num_partitions=partitions, config_overrides=overrides, layout=new_layout(name))
        return cls(data, name, table)

    def roll(self, rolled: dict[int, Sequence[Record | None]]) -> None:
        """Append records to partitions and seal them; None stands for an offset without a record."""
        parts = []
        snapshot = self.table.snapshot()
        sealed, layout = {p: s.sealed for p, s in snapshot.partitions.items()}, layout_of(self.name, snapshot)
        for partition, records in rolled.items():
            start, end = sealed[partition], sealed[partition] + len(records)
            with SegmentWriter(open_table(self.table.files.uri), partition, start, end, 1, layout=layout) as writer:
                writer.write(batch(start, records))
                segment = writer.finish(((1, 0),))
            parts.append(RollPart(partition, start, end, 1, (segment,)))
        assert not self.table.commit_roll(parts).refused

    def contents(self, partition: int = 0) -> dict[int, Record]:
        """Return the records by offset, in order, as delta-rs and pyarrow read the table."""
        table = DeltaTable(str(path_of(self.table))).to_pyarrow_table(filters=[("partition", "=", partition)])
        rows = table.sort_by("offset").to_pylist()
        found = {
            row["offset"]: Record(row["key"], row["value"], round(row["timestamp"].timestamp() * 1000)) for row in rows
        }
        assert len(found) == len(rows), "an offset is in the table twice"
        return found

    def log_entry(self, version: int) -> list[str]:
        return (path_of(self.table) / "_delta_log" / f"{version:020d}.json").read_text().splitlines()


def batch(start: int, appended: Sequence[Record | None]) -> pa.RecordBatch:
    """Return a batch of LOG_SCHEMA; every third record has a header."""
    offsets = [start + at for at, record in enumerate(appended) if record is not None]
    records = [record for record in appended if record is not None]
    return pa.RecordBatch.from_pydict(
        {
            "offset": offsets,
            "timestamp": [record.timestamp_ms for record in records],
            "key": [record.key for record in records],
            "value": [record.value for record in records],
            "headers": [[{"key": "at", "value": str(o).encode()}] if o % 3 == 0 else None for o in offsets],
        },
        schema=LOG_SCHEMA,
    )
