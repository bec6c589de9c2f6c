"""Detects whether a table still includes its erasures: erased records may come back with a ``RESTORE`` of another
writer, or with a backup of the table.

Two application transactions of the table show this. ``logstore/erased`` is the number of the last erasure that a commit
has included in the table: an older backup has a lower number. ``logstore/erased_files`` is a sum over the paths of the
files that are known to have none of the erased records. A commit of the store adds its new files to the sum and
subtracts those that it removes, whatever else is in the table. So the sum equals that of the active files only if no
other writer has added or removed any.

Files that the store finds on disk and commits again (rule R7) are not added: they may be older than the erasure. The
second value consists of the version of its commit, so that it rises with each commit, and 32 bits of digest.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from logstore.crc32c import crc32c

if TYPE_CHECKING:
    from logstore.delta.committer import Plan
    from logstore.delta.snapshot import TopicSnapshot

ERASED: Final = "logstore/erased"
ERASED_FILES: Final = "logstore/erased_files"
_BITS: Final = 32
_MASK: Final = (1 << _BITS) - 1


def digest(paths: Iterable[str]) -> int:
    return sum(crc32c(path.encode()) for path in paths) & _MASK


def is_erased(snapshot: "TopicSnapshot", number: int) -> bool:
    """Return whether the table includes the erasures up to ``number``, and only the store changed its files since."""
    facts = snapshot.transactions
    return facts.get(ERASED, -1) >= number and facts.get(ERASED_FILES, 0) & _MASK == digest(snapshot.paths)


def with_erased_files(plan: "Plan", snapshot: "TopicSnapshot") -> "Plan":
    """Return the plan, with an updated digest of clean files if the table has one."""
    before = snapshot.transactions.get(ERASED_FILES)
    if before is None or ERASED_FILES in plan.transactions or plan.are_found or not (plan.adds or plan.removes):
        return plan
    added, removed = (segment.path for segment in plan.adds), (removal.path for removal in plan.removes)
    now = before + digest(added) - digest(removed) & _MASK
    return replace(plan, transactions={**plan.transactions, ERASED_FILES: (snapshot.version + 1) << _BITS | now})


def erased_facts(
    number: int, snapshot: "TopicSnapshot", added: Iterable[str], removed: Iterable[str]
) -> dict[str, int]:
    """Return the transactions of a commit after which no active file has a record of the erasures up to ``number``."""
    paths = {*snapshot.paths.difference(removed), *added}
    facts = {ERASED_FILES: (snapshot.version + 1) << _BITS | digest(paths)}
    if snapshot.transactions.get(ERASED, -1) < number:
        facts[ERASED] = number
    return facts
