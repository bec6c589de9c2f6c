"""Finds out from footers alone whether a codec made the values of segments smaller, so that a rewrite need not try it
in vain. Producers may compress or encrypt values, and a codec takes as long for these as for the rest of a segment.
"""

from collections.abc import Iterable

import pyarrow.parquet as pq

from logstore.segments.foreign_names import is_file
from logstore.segments.parquet_file import open_parquet
from logstore.table_files import TableFiles

#: A codec that leaves more of the values than this is not worth its time, nor that of every reader.
_STORED_SHARE_MAX = 0.95


def are_incompressible(files: TableFiles, names: Iterable[str], codec: str) -> bool:
    """Return whether ``codec`` (in pyarrow's spelling) left the values of all these files together as large as they
    are. False if one of them does not show it, because another codec wrote it. Raises OSError and CorruptionError.
    """
    stored = whole = 0
    for name in names:
        if not is_file(name):
            return False
        metadata = open_parquet(files, name).metadata
        for chunks in (_chunks(metadata, index) for index in range(metadata.num_row_groups)):
            # Values that were written raw for this reason are beside offsets that were not.
            if "value" not in chunks or "offset" not in chunks or chunks["offset"].compression != codec.upper():
                return False
            stored += chunks["value"].total_compressed_size
            whole += chunks["value"].total_uncompressed_size
    return stored > _STORED_SHARE_MAX * whole


def _chunks(metadata: pq.FileMetaData, index: int) -> dict[str, pq.ColumnChunkMetaData]:
    group = metadata.row_group(index)
    chunks = (group.column(leaf) for leaf in range(group.num_columns))
    return {chunk.path_in_schema: chunk for chunk in chunks}
