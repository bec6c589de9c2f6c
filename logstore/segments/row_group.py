"""The unit in which readers take records from a file of a table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One unit of reading. Bounds are inclusive. ``encoded_bytes`` is its uncompressed size in Parquet; with many
    repetitions its decoded size is far larger. ``stored_bytes`` is its size in the file.
    """

    index: int
    first_offset: int
    last_offset: int
    num_rows: int
    encoded_bytes: int
    stored_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
