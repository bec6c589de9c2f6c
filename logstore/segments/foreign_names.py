"""Names under which readers know the records of other writers' files.

A file of another writer has one name in the table. Where its offsets lie between those of other files, its records are
read under a *joined name*: paths of files, and the range of offsets that is meant. It is the name of no file; whoever
removes files from the table asks for its paths.
"""

from dataclasses import dataclass

_SEPARATOR = "\n"


@dataclass(frozen=True, slots=True)
class ForeignRecords:
    """The records of ``paths`` with offsets in ``bounds``, [start, end); None: all records of one file."""

    paths: tuple[str, ...]
    bounds: tuple[int, int] | None = None


def joined_name(paths: tuple[str, ...], start: int, end: int) -> str:
    """The name of the records of ``paths`` with offsets in [start, end)."""
    return _SEPARATOR.join((*paths, f"[{start},{end})"))


def foreign_records(name: str) -> ForeignRecords:
    """The files and the range that a name of a file, or a joined one, stands for."""
    *paths, last = name.split(_SEPARATOR)
    if not paths:
        return ForeignRecords((name,))
    start, end = last[1:-1].split(",")
    return ForeignRecords(tuple(paths), (int(start), int(end)))


def is_joined(name: str) -> bool:
    """Whether it is the name of no file."""
    return _SEPARATOR in name
