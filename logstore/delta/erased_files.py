"""Whether a table still shows its erasures: records that were erased for good may come back with a ``RESTORE`` of
another writer, or with a backup of the table.

Two facts of the table tell. ``logstore/erased`` is the number of the last erasure that a commit has brought into the
table: a backup from before has a lower one. ``logstore/erased_files`` sums up the paths of the files that are known to
have none of the erased records. A commit of the store adds its new files and takes away those that it removes, whatever
else is in the table. So the sum is that of the active files only if nobody else has added or removed any.

Files that the store finds on a disk and commits again (rule R7) are not counted: they may be older than the erasure.
The second fact is the version of its commit, so that it rises with each, and 32 bits of digest.
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
    """Whether the table shows the erasures up to ``number``, and no other writer has changed its files since."""
    facts = snapshot.transactions
    return facts.get(ERASED, -1) >= number and facts.get(ERASED_FILES, 0) & _MASK == digest(snapshot.paths)


def with_erased_files(plan: "Plan", snapshot: "TopicSnapshot") -> "Plan":
    """The plan, with the digest of clean files brought forward where the table has one."""
    before = snapshot.transactions.get(ERASED_FILES)
    if before is None or ERASED_FILES in plan.transactions or plan.are_found or not (plan.adds or plan.removes):
        return plan
    added, removed = (segment.path for segment in plan.adds), (removal.path for removal in plan.removes)
    now = before + digest(added) - digest(removed) & _MASK
    return replace(plan, transactions={**plan.transactions, ERASED_FILES: (snapshot.version + 1) << _BITS | now})


def erased_facts(
    number: int, snapshot: "TopicSnapshot", added: Iterable[str], removed: Iterable[str]
) -> dict[str, int]:
    """The facts of a commit after which no active file has a record of the erasures up to ``number``."""
    paths = {*snapshot.paths.difference(removed), *added}
    facts = {ERASED_FILES: (snapshot.version + 1) << _BITS | digest(paths)}
    if snapshot.transactions.get(ERASED, -1) < number:
        facts[ERASED] = number
    return facts
