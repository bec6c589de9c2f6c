"""Names under which readers know records that other writers have changed.

A file of another writer has one name in the table. If its offsets lie between those of other files, its records are
read under a *joined name*: names of files, and a range of offsets. A file with a deletion vector is read under a
*masked name*: its path and the vector. Neither is the name of a file; code that removes files from the table asks for
their paths. A name means the same records for ever: a later vector makes another name.
"""

from dataclasses import dataclass

import msgspec

from logstore.segments.deletion_vectors import DeletionVector

# Paths contain neither, because Delta writes them as URIs.
_SEPARATOR, _VECTOR = "\n", "\t"


@dataclass(frozen=True, slots=True)
class ForeignRecords:
    """The records of ``paths`` with offsets in ``bounds``, [start, end), None for all records of one file; rows in the
    vector of a file are left out.
    """

    paths: tuple[str, ...]
    vectors: tuple[DeletionVector | None, ...]
    bounds: tuple[int, int] | None = None


def masked_name(path: str, vector: DeletionVector | None) -> str:
    """Return the name of the records of a file that its vector leaves."""
    return path if vector is None else f"{path}{_VECTOR}{msgspec.json.encode(vector).decode()}"


def joined_name(names: tuple[str, ...], start: int, end: int) -> str:
    """Return the name of the records of files, masked or not, with offsets in [start, end)."""
    return _SEPARATOR.join((*names, f"[{start},{end})"))


def foreign_records(name: str) -> ForeignRecords:
    """Return the files and the range that a name means, whichever kind it is."""
    *names, last = name.split(_SEPARATOR)
    bounds = None
    if names:
        start, end = last[1:-1].split(",")
        bounds = int(start), int(end)
    parts = [file.partition(_VECTOR) for file in names or [last]]
    vectors = (msgspec.json.decode(vector, type=DeletionVector) if vector else None for _, _, vector in parts)
    return ForeignRecords(tuple(path for path, _, _ in parts), tuple(vectors), bounds)


def is_file(name: str) -> bool:
    """Return whether it is the name of a file, and not a joined or a masked one."""
    return _SEPARATOR not in name and _VECTOR not in name
