"""Names under which readers know records that other writers have changed.

A file of another writer has one name in the table. Where its offsets lie between those of other files, its records are
read under a *joined name*: names of files, and the range of offsets that is meant. A file with a deletion vector is
read under a *masked name*: its path and the vector. Both are the name of no file; whoever removes files from the table
asks for their paths. A name stands for the same records for ever: a later vector makes another name.
"""

from dataclasses import dataclass

import msgspec

from logstore.segments.deletion_vectors import DeletionVector

# Neither is in a path: Delta writes paths as URIs.
_SEPARATOR, _VECTOR = "\n", "\t"


@dataclass(frozen=True, slots=True)
class ForeignRecords:
    """The records of ``paths`` with offsets in ``bounds``, [start, end), None for all records of one file; but the rows
    in the vector of each file.
    """

    paths: tuple[str, ...]
    vectors: tuple[DeletionVector | None, ...]
    bounds: tuple[int, int] | None = None


def masked_name(path: str, vector: DeletionVector | None) -> str:
    """The name of the records of a file that its vector leaves."""
    return path if vector is None else f"{path}{_VECTOR}{msgspec.json.encode(vector).decode()}"


def joined_name(names: tuple[str, ...], start: int, end: int) -> str:
    """The name of the records of files, masked or not, with offsets in [start, end)."""
    return _SEPARATOR.join((*names, f"[{start},{end})"))


def foreign_records(name: str) -> ForeignRecords:
    """The files and the range that a name stands for, whichever of its kinds it is."""
    *names, last = name.split(_SEPARATOR)
    bounds = None
    if names:
        start, end = last[1:-1].split(",")
        bounds = int(start), int(end)
    parts = [file.partition(_VECTOR) for file in names or [last]]
    vectors = (msgspec.json.decode(vector, type=DeletionVector) if vector else None for _, _, vector in parts)
    return ForeignRecords(tuple(path for path, _, _ in parts), tuple(vectors), bounds)


def is_file(name: str) -> bool:
    """Whether it is the name of a file, and not a joined or a masked one."""
    return _SEPARATOR not in name and _VECTOR not in name
