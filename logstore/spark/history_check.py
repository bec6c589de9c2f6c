"""Checks, in a task of each evaluation, that a topic's table is still the one that the DataFrame was made from.

This module is sent to the executors by value, so it imports nothing but the standard library and pyarrow. Delta itself
does not ask: a table that was deleted and made again at the same path is, to a DataFrame of the first one, a later
version.
"""

import re
from collections.abc import Callable, Iterator

import pyarrow as pa

_FIRST_COMMIT = f"{0:020}.json"


class HistoryReadError(Exception):
    """The topic of a DataFrame was deleted, or made again, since the DataFrame was made."""


def history_check(
    uri: str, topic: str, topic_id: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: no rows, or HistoryReadError. ``uri`` of the table is ``TableFiles.uri``."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            if (found := table_id(uri)) != topic_id:
                what = "deleted and made again" if found else "deleted"
                raise HistoryReadError(
                    f"topic {topic} was {what} since this DataFrame was made; make the DataFrame again"
                )
        yield from ()

    return check


def table_id(uri: str) -> str | None:
    """The id of the Delta table at ``uri``, which is a topic's id, too; None if there is no table.

    It stays for as long as the table does: the first commit names it, and so does every checkpoint, without one of
    which the first commit is not removed.
    """
    import json

    import pyarrow.fs
    import pyarrow.parquet as pq

    storage, table = pyarrow.fs.FileSystem.from_uri(uri)
    log = f"{table}/_delta_log"
    try:
        with storage.open_input_stream(f"{log}/{_FIRST_COMMIT}", compression=None) as entry:
            actions = map(json.loads, entry.read().splitlines())
        return next((str(action["metaData"]["id"]) for action in actions if "metaData" in action), None)
    except FileNotFoundError:
        files = storage.get_file_info(pyarrow.fs.FileSelector(log, allow_not_found=True))
        checkpoints = [f.path for f in files if re.fullmatch(r".*\.checkpoint.*\.parquet", f.base_name)]
        for checkpoint in sorted(checkpoints, reverse=True):
            with storage.open_input_file(checkpoint) as source:
                metadata = pq.ParquetFile(source).read(columns=["metaData.id"]).column("metaData").drop_null()
            if len(metadata):
                return str(metadata[0].as_py()["id"])
    return None
