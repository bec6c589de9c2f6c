"""Checks, in a task of each evaluation, that a topic's table is still the one that the DataFrame was made from.

This module is sent to the executors by value, so it imports nothing but the standard library and pyarrow. Delta itself
does not ask: a table that was deleted and made again at the same path is, to a DataFrame of the first one, a later
version.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

_FIRST_COMMIT = f"{0:020}.json"


class HistoryReadError(Exception):
    """The topic of a DataFrame was deleted, or made again, since the DataFrame was made."""


def history_check(
    path: str, topic: str, topic_id: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: no rows, or HistoryReadError."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            if (found := table_id(Path(path))) != topic_id:
                what = "deleted and made again" if found else "deleted"
                raise HistoryReadError(
                    f"topic {topic} was {what} since this DataFrame was made; make the DataFrame again"
                )
        yield from ()

    return check


def table_id(path: Path) -> str | None:
    """The id of the Delta table at ``path``, which is a topic's id, too; None if there is no table.

    It stays for as long as the table does: the first commit names it, and so does every checkpoint, without one of
    which the first commit is not removed.
    """
    import json

    import pyarrow.parquet as pq

    log = path / "_delta_log"
    try:
        actions = map(json.loads, (log / _FIRST_COMMIT).read_text(encoding="utf-8").splitlines())
        return next((str(action["metaData"]["id"]) for action in actions if "metaData" in action), None)
    except FileNotFoundError:
        for checkpoint in sorted(log.glob("*.checkpoint*.parquet"), reverse=True):
            metadata = pq.ParquetFile(checkpoint).read(columns=["metaData.id"]).column("metaData").drop_null()
            if len(metadata):
                return str(metadata[0].as_py()["id"])
    return None
