"""Preconditions of changes to a topic table, as functions of one snapshot (rule R4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from logstore.delta.clean_files import changed_digest, clean_files_fact
from logstore.delta.schema import CLEAN_FILES, CLEANED, EPOCH, REWRITE, START, app_id
from logstore.delta.snapshot import PartitionState, SegmentFile, TopicSnapshot
from logstore.errors import (
    CommitRefusedError,
    FencedLeaderEpochError,
    InvalidPartitionsError,
    UnknownPartitionError,
)
from logstore.limits import PARTITIONS_PER_TOPIC_MAX
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles


@dataclass(frozen=True, slots=True)
class RollPart:
    """One partition's share of a roll: [base_offset, end_offset) in ``segments``, in order, at least one.

    A segment without records covers a range of which no record is kept (all aborted).
    """

    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class RewritePart:
    """One partition's share of a rewrite: ``adds`` replace ``removes`` (paths), and facts change with them.

    ``log_start`` and ``cleaned`` only rise: a value below the table's changes nothing. Without ``removes`` only
    ``cleaned`` rises: a compaction found nothing to remove. ``clean_digest`` comes with ``cleaned``: it is the digest
    of the files that the compaction, by its plan, leaves below it. Other files that exist at the commit are not clean.
    """

    partition: int
    removes: tuple[str, ...]
    adds: tuple[Segment, ...] = ()
    log_start: int | None = None
    cleaned: int | None = None
    clean_digest: int | None = None


def is_rolled(part: RollPart, snapshot: TopicSnapshot, files: TableFiles) -> bool:
    """Return whether the snapshot already holds the part. Raises the refusal."""
    state = partition_state(snapshot, part.partition, files)
    check_epoch(snapshot, part.partition, part.leader_epoch, files)
    snapshot.check(part.partition)
    if state.sealed >= part.end_offset and all(segment.path in snapshot.paths for segment in part.segments):
        return True
    if state.sealed != part.base_offset:
        raise CommitRefusedError(
            f"{files}: partition {part.partition} is sealed up to {state.sealed} in version {snapshot.version}; "
            f"a roll from {part.base_offset} does not follow it"
        )
    return False


def partition_state(snapshot: TopicSnapshot, partition: int, files: TableFiles) -> PartitionState:
    state = snapshot.partitions.get(partition)
    if state is None:
        raise UnknownPartitionError(f"Topic {files.name!r} has no partition {partition}")
    return state


def check_epoch(snapshot: TopicSnapshot, partition: int, leader_epoch: int, files: TableFiles) -> None:
    stored = snapshot.partitions[partition].leader_epoch
    if stored > leader_epoch:
        raise FencedLeaderEpochError(
            f"{files}: partition {partition} has a leader of epoch {stored}; this one of epoch {leader_epoch} must stop"
        )


def epoch_transaction(snapshot: TopicSnapshot, partition: int, leader_epoch: int) -> dict[str, int]:
    if leader_epoch > snapshot.partitions[partition].leader_epoch:
        return {app_id(partition, EPOCH): leader_epoch}
    return {}


def check_part(part: RollPart) -> None:
    if not 0 <= part.base_offset < part.end_offset:
        raise ValueError(f"a roll of [{part.base_offset}, {part.end_offset})")
    ends = [part.base_offset, *(segment.end_offset for segment in part.segments)]
    starts = [*(segment.base_offset for segment in part.segments), part.end_offset]
    if ends != starts or any(segment.partition != part.partition for segment in part.segments):
        raise ValueError(f"the segments do not make up [{part.base_offset}, {part.end_offset}) of {part.partition}")


def rewrite_facts(
    part: RewritePart, snapshot: TopicSnapshot, files: TableFiles
) -> tuple[list[SegmentFile], dict[str, int]]:
    """Return the files that a rewrite removes and the transactions that go with it. Raises the refusal."""
    state = partition_state(snapshot, part.partition, files)
    active = {file.path: file for file in snapshot.segments(part.partition)}
    gone = [removed for removed in part.removes if removed not in active]
    if gone:
        raise CommitRefusedError(f"{files}: {', '.join(gone)} not active in partition {part.partition}")
    old = [active[removed] for removed in part.removes]
    if old:
        removed = set(part.removes)
        kept = [file for file in active.values() if file.path not in removed]
        paths = {path for file in old if file.shared for path in file.paths}
        for file in kept:
            if not paths.isdisjoint(file.paths):
                raise CommitRefusedError(
                    f"{files}: {', '.join(paths.intersection(file.paths))} has records of [{file.base_offset}, "
                    f"{file.end_offset}), too: it can only be replaced together with these"
                )
        check_replacement(part.adds, old, kept, state.sealed, files)
    transactions = {app_id(part.partition, REWRITE): state.rewrite + 1}
    if part.log_start is not None and part.log_start > state.log_start:
        if part.log_start > state.sealed:
            raise CommitRefusedError(f"{files}: log start {part.log_start} is beyond sealed {state.sealed}")
        transactions[app_id(part.partition, START)] = part.log_start
    if part.cleaned is not None and part.cleaned > state.cleaned:
        if part.cleaned > state.sealed:
            raise CommitRefusedError(f"{files}: clean point {part.cleaned} is beyond sealed {state.sealed}")
        transactions[app_id(part.partition, CLEANED)] = part.cleaned
    digest = changed_digest(state.clean_digest, old, part.adds, state.cleaned)
    if part.clean_digest is not None and part.cleaned is not None and part.cleaned >= state.cleaned:
        digest = part.clean_digest
    if digest != state.clean_digest:
        transactions[app_id(part.partition, CLEAN_FILES)] = clean_files_fact(state.rewrite + 1, digest)
    return old, transactions


def check_replacement(
    adds: Sequence[Segment], old: Sequence[SegmentFile], kept: Sequence[SegmentFile], sealed: int, files: TableFiles
) -> None:
    """Raise CommitRefusedError if ``adds`` do not fit into the place that ``old`` leaves, or hold more records. The
    place reaches from the end of the ``kept`` file before them to the base of the one after them, or to ``sealed``.
    """
    first, last = min(file.base_offset for file in old), max(file.end_offset for file in old)
    low = max((file.end_offset for file in kept if file.end_offset <= first), default=0)
    high = min((file.base_offset for file in kept if file.base_offset >= last), default=sealed)
    between = ((file.base_offset, file.end_offset, file.path, False) for file in kept if low < file.end_offset <= high)
    ranges = sorted([*between, *((s.base_offset, s.end_offset, s.path, True) for s in adds)])
    end, before = low, ""
    for begin, its_end, path, added in ranges:
        if added and (begin < low or its_end > high):
            raise CommitRefusedError(
                f"{files}: {path} does not fit into [{low}, {high}), the place of the files that it replaces"
            )
        if begin < end:
            raise CommitRefusedError(f"{files}: {path} overlaps {before}")
        end, before = its_end, path
    if sum(segment.num_records for segment in adds) > sum(file.num_records for file in old):
        raise CommitRefusedError(f"{files}: a rewrite of [{first}, {last}) would add records")


def check_partition_count(num_partitions: int) -> None:
    if not 1 <= num_partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(f"a topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {num_partitions}")
