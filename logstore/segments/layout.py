"""Additional columns of a topic's table beside the log's columns. Only the store's internal topics have any.

Invariant: extra columns are a function of a row's key and value. Every writer of a segment (a roll, a job) derives them
again, so they always agree with the record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from logstore.records.offset_record import OFFSET_COLUMNS, OFFSETS_TOPIC, offset_columns
from logstore.records.schema import SEGMENT_SCHEMA, TABLE_SCHEMA

_DERIVED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns of a topic's table. ``derive`` makes the ``extra`` columns, in their order, from a batch with the
    log's.

    ``log_retention`` is how long entries of the Delta log are kept (an interval in Delta's spelling): the cost of a
    commit depends on their number.
    """

    extra: pa.Schema
    derive: Callable[[pa.RecordBatch], Sequence[pa.Array]]
    log_retention: str = "interval 1 days"

    @property
    def segment_schema(self) -> pa.Schema:
        """The columns inside a segment file."""
        return pa.schema([*SEGMENT_SCHEMA, *self.extra])

    @property
    def table_schema(self) -> pa.Schema:
        """The columns of the Delta table."""
        return pa.schema([*TABLE_SCHEMA, *self.extra])

    def to_segment(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Convert LOG_SCHEMA batches to rows of a segment file."""
        table = pa.Table.from_batches(batches).cast(SEGMENT_SCHEMA)
        if not len(self.extra):
            return table
        # Many small batches would each cost as much as a large one; one large batch would hold the interpreter lock for
        # long.
        pieces = table.combine_chunks().to_batches(max_chunksize=_DERIVED_AT_ONCE)
        derived = pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(list(self.derive(piece)), schema=self.extra) for piece in pieces],
            schema=self.extra,
        )
        return pa.Table.from_arrays([*table.columns, *derived.columns], schema=self.segment_schema)


PLAIN_LAYOUT = TableLayout(pa.schema([]), lambda _: ())

_LAYOUTS = {OFFSETS_TOPIC: TableLayout(OFFSET_COLUMNS, offset_columns, log_retention="interval 1 hours")}


def layout_of(topic_name: str) -> TableLayout:
    return _LAYOUTS.get(topic_name, PLAIN_LAYOUT)
