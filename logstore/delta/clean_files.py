"""Detects whether the files below a partition's clean point are those that the project's own commits left there.

Key compaction assumes that each key is in them once. Another writer may bring older files back (``RESTORE``, or the
store's response to it), while the clean point stays: transactions only rise. So a fact of the partition sums up the
paths of these files. A compaction sets it to the files that it has left, and every other commit that replaces files
adds and subtracts its own. Files that came or went otherwise are not in it: then no file counts as clean until the next
compaction. The fact consists of the partition's ``rewrite`` counter, so that it rises with each commit, and 32 bits of
digest.
"""

from collections.abc import Iterable
from typing import Protocol

from logstore.crc32c import crc32c

_BITS = 32
_MASK = (1 << _BITS) - 1


class _File(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def end_offset(self) -> int: ...


def clean_digest(files: Iterable[_File], clean_point: int) -> int:
    """Return the digest of the files that end at ``clean_point`` or below; without files it is 0."""
    return sum(crc32c(file.path.encode()) for file in files if file.end_offset <= clean_point) & _MASK


def changed_digest(digest: int, removed: Iterable[_File], added: Iterable[_File], clean_point: int) -> int:
    """Return the digest after a commit, whatever other files it includes."""
    return (digest - clean_digest(removed, clean_point) + clean_digest(added, clean_point)) & _MASK


def clean_files_fact(rewrite: int, digest: int) -> int:
    return rewrite << _BITS | digest


def digest_of_fact(fact: int) -> int:
    return fact & _MASK
