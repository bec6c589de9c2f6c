"""Additional columns of a topic's table beside the log's columns: those of the store's own topics, the declared columns
of a topic (``records.columns``), and columns that others have added to the table.

Invariant: the ``extra`` columns are a function of a row's key and value. A roll derives them. A job copies them from a
file in which the same schema has derived them, and derives them again from any other file, so they always agree with
the record. The ``others`` are copied as they are.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from logstore.records.columns.derive import derive
from logstore.records.columns.schema import ColumnSchema
from logstore.records.offset_record import OFFSET_COLUMNS, OFFSETS_TOPIC, offset_columns
from logstore.records.schema import LOG_SCHEMA, SEGMENT_SCHEMA, TABLE_SCHEMA

#: The batches of offsets are small, because deriving their columns holds the interpreter lock.
_OFFSETS_AT_ONCE = 256

_NO_COLUMNS = pa.schema([])
DeriveColumns = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns of a topic's table. ``derive`` makes the ``extra`` columns from a batch with ``key`` and ``value``;
    it is None if there are none.

    ``fingerprint`` identifies the schema of declared columns. ``others`` are the columns that rewrites copy;
    ``carried`` are those of them that a file gets. ``log_retention`` is how long entries of the Delta log are kept (an
    interval in Delta's spelling): the cost of a commit depends on their number.
    """

    extra: pa.Schema = _NO_COLUMNS
    derive: DeriveColumns | None = None
    log_retention: str = "interval 1 days"
    fingerprint: str | None = None
    others: pa.Schema = _NO_COLUMNS
    carried: pa.Schema = _NO_COLUMNS

    @property
    def segment_schema(self) -> pa.Schema:
        """The columns inside a segment file."""
        return pa.schema([*SEGMENT_SCHEMA, *self.extra, *self.carried])

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of a batch that has those of the log and all others of a segment file."""
        return pa.schema([*LOG_SCHEMA, *self.extra, *self.carried])

    @property
    def table_schema(self) -> pa.Schema:
        """The columns of a new Delta table."""
        return pa.schema([*TABLE_SCHEMA, *self.extra])

    def carrying(self, names: Collection[str]) -> Self:
        """Return the layout of a file that gets those of the ``others`` that are in ``names``."""
        carried = [other for other in self.others if other.name in names]
        return replace(self, carried=pa.schema(carried)) if carried else self

    def with_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of ``row_schema``. ``batch`` has the columns of the log; the extra ones are derived, unless it
        has them, and carried ones that it lacks are null.
        """
        there = set(batch.schema.names)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self.derive is not None and not there.issuperset(self.extra.names):
            derived = self.derive(batch)
            columns |= dict(zip(derived.schema.names, derived.columns, strict=True))
        for other in self.carried:
            if other.name not in there:
                columns[other.name] = pa.nulls(batch.num_rows, other.type)
        schema = self.row_schema
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def to_segment(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Convert batches of LOG_SCHEMA, or of ``row_schema``, to rows of a segment file."""
        table = pa.Table.from_batches(batches)
        if self.derive is None or len(table.schema) > len(LOG_SCHEMA):
            return table.cast(self.segment_schema)
        # All rows are derived at once: many small batches would each cost as much as a large one.
        (whole,) = table.select(["key", "value"]).combine_chunks().to_batches()
        columns = [*table.cast(SEGMENT_SCHEMA).columns, *self.derive(whole).columns]
        return pa.Table.from_arrays(columns, schema=self.segment_schema)


@dataclass(frozen=True, slots=True)
class _Declared:
    """Derives declared columns from the values of a batch. Those of equal schemas are equal."""

    schema: ColumnSchema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return derive(self.schema, batch.column("value"))


def _offset_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    # One large batch would hold the interpreter lock for long.
    pieces = [batch.slice(at, _OFFSETS_AT_ONCE) for at in range(0, batch.num_rows, _OFFSETS_AT_ONCE)]
    derived = [pa.RecordBatch.from_arrays(list(offset_columns(piece)), schema=OFFSET_COLUMNS) for piece in pieces]
    (whole,) = pa.Table.from_batches(derived, OFFSET_COLUMNS).combine_chunks().to_batches()
    return whole


PLAIN_LAYOUT = TableLayout()

_LAYOUTS = {OFFSETS_TOPIC: TableLayout(OFFSET_COLUMNS, _offset_columns, log_retention="interval 1 hours")}


def new_layout(topic_name: str) -> TableLayout:
    """Return the layout of a new topic's table, before columns are declared."""
    return _LAYOUTS.get(topic_name, PLAIN_LAYOUT)


def declared_layout(columns: ColumnSchema, others: pa.Schema) -> TableLayout:
    """Return the layout of a table with declared columns and those of others."""
    extra = pa.schema(columns.arrow_fields)
    return TableLayout(extra, _Declared(columns), fingerprint=columns.fingerprint, others=others)
