"""``topic rebuild``: writes a new Delta log for a topic from the files on disk, when the old one is lost or beyond
repair.

The sources, best first: what can still be read of the old log (``LogRemains``), the footers of the files, the journal,
and facts that a person gives (``Known``). Invariants: no file that the old log removed comes back; a newer file wins
over those that it replaced (``rebuild_plan``); the plan is made without a change to any file, and carried out by
writing one new log, beside which the old one is kept.
"""

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from logstore.delta.actions import Add, Protocol
from logstore.delta.columns import columns_beside, joined_schema
from logstore.delta.committer import commit_info
from logstore.delta.first_entry import first_entry, schema_string_of
from logstore.delta.log_check import LogRemains, read_remains
from logstore.delta.removed_files import is_vector_file
from logstore.delta.schema import (
    CLEANED,
    DELTA_PROPERTIES,
    EPOCH,
    FORBIDDEN_PROPERTY,
    LOG_RETENTION_PROPERTY,
    PARTITIONS_PROPERTY,
    PROPERTY_PREFIX,
    PROTOCOL,
    REWRITE,
    SEALED,
    START,
    TOPIC_PROPERTY,
    add_action,
    app_id,
)
from logstore.delta.table_features import BASE, DELETION_VECTORS, FEATURES, features_of, fields_of, matches
from logstore.entropy import new_uuid
from logstore.errors import CommitRefusedError, CorruptionError, LogStoreError
from logstore.inspection.rebuild_plan import Candidate, Chain, newest_chain
from logstore.journal.journal_file import PartitionKey
from logstore.log.history import new_gaps
from logstore.log.journal_tail import JournalTail
from logstore.segments.checking import check_file
from logstore.segments.deletion_vectors import DeletionVector
from logstore.segments.footer import ROLL, SegmentFooter
from logstore.segments.layout import new_layout
from logstore.segments.names import SegmentName, known_segment_name, parse_segment_name
from logstore.segments.reader import read_footer, segment_from_file
from logstore.segments.writer import Segment
from logstore.table_files import LOG_DIRECTORY, TableFiles
from logstore.table_root import TableRoot

OPERATION = "rebuild"
#: The operation of a job that cuts a file at the log start (``compaction_jobs.retention``).
_CUT_AT_LOG_START = "retention-boundary"
_WITH_VECTORS = Protocol(3, 7, [DELETION_VECTORS], sorted({*BASE, DELETION_VECTORS}))


@dataclass(frozen=True, slots=True)
class Known:
    """Facts of a topic that a person gives, because no file may have them. ``log_starts`` are by partition; a fact that
    was not given is None. ``configs`` are topic configuration in their normal text. ``give_up_missing``: offsets that
    no file covers, and that were not known to be removed, are given up.
    """

    topic_id: uuid.UUID | None = None
    new_topic_id: bool = False
    partitions: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    log_starts: Mapping[int, int] = field(default_factory=dict)
    give_up_missing: bool = False


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The rebuilt partition. ``files`` come by rising offset. ``superseded`` are readable files that newer ones
    replace; ``gaps`` are as in ``Chain``.
    """

    partition: int
    log_start: int
    sealed: int
    leader_epoch: int
    cleaned: int
    rewrite: int
    files: tuple[Segment, ...]
    superseded: tuple[str, ...]
    gaps: tuple[tuple[int, int], ...]


@dataclass
class RebuildPlan:
    """The plan for a topic. It cannot be carried out while it has ``refusals``; ``warnings`` name the facts that cannot
    be known.
    """

    topic: str
    topic_id: uuid.UUID
    properties: dict[str, str]
    partitions: list[PartitionPlan]
    left_out: list[str]
    refusals: list[str]
    warnings: list[str]
    #: The columns of the table.
    schema_string: str = ""
    #: Files of another writer that the old log names, with its actions.
    foreign: dict[str, Add] = field(default_factory=dict)
    #: Deletion vectors that the old log gives to segments; the new log gives them the same.
    vectors: dict[str, DeletionVector] = field(default_factory=dict)
    #: The topics in the journal that this one may be, described by id. The user must name one; until then ``topic_id``
    #: is nil.
    candidates: dict[uuid.UUID, str] = field(default_factory=dict)
    has_new_id: bool = False


@dataclass
class _Found:
    """The segments of one partition on disk, and the ``unreadable`` ones with reasons. Files of other writers end at
    ``foreign_end``.
    """

    readable: dict[str, tuple[Segment, SegmentFooter]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    foreign_end: int = 0


def plan_rebuild(
    files: TableFiles,
    tails: Mapping[PartitionKey, JournalTail],
    known: Known,
    orphans: Mapping[uuid.UUID, str],
    *,
    only_one_lost: bool = False,
) -> RebuildPlan:
    """Plan the rebuild of a topic. ``tails`` are the journal's. ``orphans`` are the topics with records in the journal
    and without a table, with a description. ``only_one_lost``: no other topic has lost its log. Raises OSError and
    NewerFormatError.
    """
    remains = read_remains(files)
    plan = RebuildPlan(files.name, uuid.UUID(int=0), {}, [], [], [], [])
    found = _find_files(files, remains, plan)
    alone = next(iter(orphans)) if only_one_lost and len(orphans) == 1 else None
    likely = alone if alone is not None and _fits(found, tails, alone) else None
    plan.topic_id = _topic_id(remains, known, orphans, likely, plan)
    in_journal = [partition for topic_id, partition in tails if topic_id == plan.topic_id]
    count = _partition_count(remains, found, in_journal, known, plan)
    plan.properties = _properties(files.name, remains, known, count, plan)
    plan.schema_string = _schema_string(files.name, remains, found, plan)
    for partition in range(count):
        here = found.get(partition, _Found())
        tail = tails.get((plan.topic_id, partition))
        plan.partitions.append(_plan_partition(files, partition, here, tail, remains, known, plan))
    operations = {segment.operation for part in plan.partitions for segment in part.files}
    if "key-compaction" in operations and "compact" not in plan.properties.get(f"{PROPERTY_PREFIX}cleanup.policy", ""):
        plan.warnings.append("files of this topic were compacted: give --config cleanup.policy=compact if it was so")
    return plan


def carry_out(root: TableRoot, plan: RebuildPlan) -> str | None:
    """Write the new log, and return the name under which the table keeps the old one. Raises CommitRefusedError if the
    plan has refusals, and OSError, after which the command may be run again.
    """
    if plan.refusals:
        raise CommitRefusedError(f"topic {plan.topic!r} was not rebuilt: {'. '.join(plan.refusals)}")
    transactions: dict[str, int] = {}
    added: list[Add] = []
    now_ms = root.clock.now_ms()
    for part in plan.partitions:
        facts = {SEALED: part.sealed, EPOCH: part.leader_epoch, START: part.log_start}
        facts |= {REWRITE: part.rewrite, CLEANED: part.cleaned}
        transactions |= {
            app_id(part.partition, fact): value for fact, value in facts.items() if value or fact == SEALED
        }
        for segment in part.files:
            action = add_action(segment, now_ms, data_change=True)
            action.deletion_vector = plan.vectors.get(segment.path)
            added.append(action)
    # The new table gives no ids to rows.
    row_ids: dict[str, None] = dict.fromkeys(("base_row_id", "default_row_commit_version"))
    added += (msgspec.structs.replace(action, **row_ids) for action in plan.foreign.values())
    info = commit_info(OPERATION, new_uuid().hex, {"added_segments": len(added)})
    count = len(plan.partitions)
    masked = any(action.deletion_vector is not None for action in added)
    protocol = _WITH_VECTORS if masked else Protocol(*PROTOCOL)
    entry = first_entry(
        plan.schema_string,
        plan.properties,
        count,
        info,
        now_ms,
        protocol,
        table_id=plan.topic_id,
        transactions=transactions,
        added=added,
    )
    return root.renew_log(plan.topic, entry)


# ---- what the topic is ----------------------------------------------------------------------------------------------


def _fits(found: Mapping[int, "_Found"], tails: Mapping[PartitionKey, JournalTail], topic_id: uuid.UUID) -> bool:
    """Return whether the journal's records of a topic continue where the files end, or end there, in each partition of
    both.
    """
    ends = {
        p: max((segment.end_offset for segment, _ in here.readable.values()), default=0) for p, here in found.items()
    }
    common = 0
    for (of, partition), tail in tails.items():
        if of != topic_id:
            continue
        end = ends.get(partition, 0)
        begin = tail.index.lowest_above(end)
        if tail.end_offset < end or (begin is None and tail.end_offset > end) or (begin is not None and begin > end):
            return False
        common += partition in ends
    return common > 0


def _topic_id(
    remains: LogRemains,
    known: Known,
    orphans: Mapping[uuid.UUID, str],
    likely: uuid.UUID | None,
    plan: RebuildPlan,
) -> uuid.UUID:
    """Return the topic's id; nil if a person has to give it, and then the plan has a refusal."""
    in_log = None if remains.meta_data is None else uuid.UUID(remains.meta_data.id)
    if in_log is not None:
        if known.topic_id not in (None, in_log) or known.new_topic_id:
            plan.refusals.append(f"the Delta log says that the topic's id is {in_log}: leave --topic-id out")
        return in_log
    if known.topic_id is not None:
        return known.topic_id
    if likely is not None and not known.new_topic_id:
        plan.warnings.append(
            f"the topic's id is that of the one topic without a table in the journal ({orphans[likely]}): partitions "
            "and offsets agree. --topic-id says another"
        )
        return likely
    if orphans and not known.new_topic_id:
        listed = "; ".join(f"{topic_id}: {what}" for topic_id, what in orphans.items())
        plan.candidates = dict(orphans)
        plan.refusals.append(
            "the Delta log does not tell the topic's id any more, and the journal has records of topics without a "
            f"table: {listed}. Give the id of this topic with --topic-id, or --topic-id new for a new one"
        )
        return plan.topic_id
    plan.has_new_id = True
    plan.warnings.append(
        "the topic gets a new id: offsets that groups have committed for it do not count any more, and records that "
        "the journal has under the old id stay there"
    )
    return new_uuid()


def _partition_count(
    remains: LogRemains, found: Mapping[int, _Found], in_journal: list[int], known: Known, plan: RebuildPlan
) -> int:
    configured = remains.meta_data.configuration or {} if remains.meta_data is not None else {}
    text = configured.get(PARTITIONS_PROPERTY) or ""
    in_log = int(text) if text.isdecimal() else 0
    # A RESTORE may have taken the property back, but no transaction.
    sealed = next(partition for partition in itertools.count() if app_id(partition, SEALED) not in remains.transactions)
    least = max(in_log, sealed, *(partition + 1 for partition in (*found, *in_journal)))
    if known.partitions is not None and known.partitions < least:
        plan.refusals.append(f"the topic has {least} partitions at least, not {known.partitions}")
    if not in_log and known.partitions is None:
        plan.warnings.append(
            f"the number of partitions is taken from the files and the journal: {max(least, 1)}. Give --partitions if "
            "there were more, which had no record"
        )
    return max(least, known.partitions or 0, 1)


def _properties(name: str, remains: LogRemains, known: Known, partitions: int, plan: RebuildPlan) -> dict[str, str]:
    properties = {**DELTA_PROPERTIES, LOG_RETENTION_PROPERTY: new_layout(name).log_retention}
    if remains.meta_data is None:
        plan.warnings.append(
            "the Delta log does not tell the topic's configuration any more: what is not given with --config has its "
            "default"
        )
    else:
        configured = remains.meta_data.configuration or {}
        properties |= {key: value for key, value in configured.items() if value is not None and not _of_feature(key)}
        if remains.problems:
            plan.warnings.append("changes of the configuration in entries that cannot be read are lost")
    named = properties.get(TOPIC_PROPERTY)
    if named not in (None, name):
        plan.refusals.append(f"its Delta log is that of topic {named!r}: this is a copy of that directory")
    properties.pop(FORBIDDEN_PROPERTY, None)
    properties |= {PROPERTY_PREFIX + key: value for key, value in known.configs.items()}
    return properties | {TOPIC_PROPERTY: name, PARTITIONS_PROPERTY: str(partitions)}


def _schema_string(name: str, remains: LogRemains, found: Mapping[int, _Found], plan: RebuildPlan) -> str:
    """Return the columns of the topic, those that are declared, and those of others that need no table feature."""
    fields = fields_of(schema_string_of(new_layout(name).table_schema))
    if remains.meta_data is None:
        if any(footer.columns for here in found.values() for _, footer in here.readable.values()):
            plan.warnings.append(
                "the topic had declared columns, which the Delta log does not tell any more: declare them again with "
                f"logstore topic columns set {name}"
            )
        return joined_schema(fields)
    kept, left_out = columns_beside(name, remains.meta_data)
    plan.warnings += (f"{what}: it is left out" for what in left_out)
    return joined_schema([*fields, *kept])


def _of_feature(name: str) -> bool:
    """Return whether the property belongs to a table feature, which a rebuilt table does not have."""
    return any(
        matches(name, key) for feature, known in FEATURES.items() if feature not in BASE for key in known.properties
    )


# ---- its files ------------------------------------------------------------------------------------------------------


def _find_files(files: TableFiles, remains: LogRemains, plan: RebuildPlan) -> dict[int, _Found]:
    """Find all segments on disk by partition, except those that the old log removed. Only files' ends are read."""
    found: dict[int, _Found] = {}
    for entry in files.list(""):
        if not entry.name.endswith(".parquet") or entry.name.startswith(LOG_DIRECTORY):
            continue
        name = parse_segment_name(entry.name)
        if name is None:
            if entry.name not in remains.added:
                plan.left_out.append(entry.name)
                plan.warnings.append(
                    f"{files.where(entry.name)} is another writer's, and the old log does not name it: it is left out"
                )
            continue
        if entry.name in remains.removed:
            plan.left_out.append(entry.name)
            continue
        here = found.setdefault(name.partition, _Found())
        try:
            here.readable[entry.name] = segment_from_file(files, entry.name), read_footer(files, entry.name)
        except CorruptionError as error:
            here.unreadable[entry.name] = str(error)
    for path, add in sorted(remains.added.items()):
        if known_segment_name(path) is None:
            _find_foreign(files, add, found, plan)
        elif add.deletion_vector is not None:
            plan.vectors[path] = add.deletion_vector
    if plan.foreign and remains.protocol is not None:
        features = sorted(features_of(remains.protocol))
        if unknown := [name for name in features if name not in FEATURES or FEATURES[name].irremovable]:
            plan.refusals.append(f"another writer has turned on {', '.join(unknown)}, which the store does not honour")
    told = any(add.deletion_vector is not None for add in remains.added.values())
    if not told and any(is_vector_file(entry.name) for entry in files.list("")):
        plan.warnings.append(
            "there are files of deletion vectors, and the old log does not tell whose they are: deleted records may be "
            "there again"
        )
    return found


def _find_foreign(files: TableFiles, add: Add, found: dict[int, _Found], plan: RebuildPlan) -> None:
    """Add a file of another writer that the old log names. It stays: those that it replaced have left the table."""
    text = (add.partition_values or {}).get("partition") or ""
    try:
        checked = check_file(files, add.path)
    except (LogStoreError, FileNotFoundError) as error:
        plan.refusals.append(f"the old log names another writer's file, and it cannot be read: {error}")
        return
    if not text.isdecimal() or checked.min_offset is None or checked.max_offset is None:
        return
    plan.foreign[add.path] = add
    here = found.setdefault(int(text), _Found())
    here.foreign_end = max(here.foreign_end, checked.max_offset + 1)


def _plan_partition(
    files: TableFiles,
    partition: int,
    found: _Found,
    tail: JournalTail | None,
    remains: LogRemains,
    known: Known,
    plan: RebuildPlan,
) -> PartitionPlan:
    def fact(name: str) -> int:
        return remains.transactions.get(app_id(partition, name), 0)

    replaced = _replaced(partition, remains)
    while True:
        segments = [
            segment
            for path, (segment, _) in found.readable.items()
            if path in remains.added or not _overlaps(segment, replaced)
        ]
        named = _unreadable_names(found, replaced)
        log_start = _log_start(partition, [*segments, *named], remains, known)
        sealed = max((log_start, found.foreign_end, *(segment.end_offset for segment in segments)))
        if tail is None or not _goes_on(tail, sealed):
            # Records of a damaged file were given their offsets, and no other record may get these.
            sealed = max((sealed, fact(SEALED), *(name.end_offset or 0 for name in named)))
            sealed = sealed if tail is None else tail.sealed_beyond(sealed)
        chain = newest_chain((_candidate(s, found.readable[s.path][1]) for s in segments), log_start, sealed)
        damaged = _damaged(files, chain)
        if not damaged:
            break
        for path, reason in damaged.items():
            del found.readable[path]
            found.unreadable[path] = reason
    chosen = [found.readable[file.path] for file in chain.files]
    paths = {segment.path for segment, _ in chosen}
    _judge(partition, chain, found, remains, known, plan)
    return PartitionPlan(
        partition,
        log_start,
        sealed,
        max((fact(EPOCH), *(segment.leader_epoch for segment, _ in chosen))),
        min(sealed, max((fact(CLEANED), *(end for _, footer in chosen for end, _ in footer.cleanings)))),
        max(fact(REWRITE), int(any(segment.operation != ROLL for segment, _ in chosen))),
        tuple(segment for segment, _ in chosen),
        tuple(sorted(found.readable.keys() - paths)),
        chain.gaps,
    )


def _replaced(partition: int, remains: LogRemains) -> list[tuple[int, int]]:
    """Return the ranges of segments that another writer replaced: what is left of their records is in that writer's
    files.
    """
    names = (known_segment_name(path) for path in remains.replaced)
    return sorted(
        (name.base_offset, name.end_offset)
        for name in names
        if name is not None and name.partition == partition and name.end_offset is not None
    )


def _unreadable_names(found: _Found, replaced: list[tuple[int, int]]) -> list[SegmentName]:
    """Return the names of damaged segments that contain their ranges and were not replaced."""
    names = (known_segment_name(path) for path in found.unreadable)
    return [
        name for name in names if name is not None and name.end_offset is not None and not _overlaps(name, replaced)
    ]


def _overlaps(segment: Segment | SegmentName, ranges: list[tuple[int, int]]) -> bool:
    reach = segment.end_offset or 0
    return any(base < reach and segment.base_offset < end for base, end in ranges)


def _log_start(partition: int, segments: Sequence[Segment | SegmentName], remains: LogRemains, known: Known) -> int:
    """Return the highest log start that the sources give; without any, the beginning of the first file."""
    cuts = [
        s.base_offset for s in segments if isinstance(s, Segment) and s.operation == _CUT_AT_LOG_START and s.num_records
    ]
    if app_id(partition, SEALED) in remains.transactions:
        cuts.append(remains.transactions.get(app_id(partition, START), 0))
    if partition in known.log_starts:
        cuts.append(known.log_starts[partition])
    return max(cuts) if cuts else min((segment.base_offset for segment in segments), default=0)


def _goes_on(tail: JournalTail, offset: int) -> bool:
    """Return whether the journal still has the records from ``offset`` on: then they are rolled again."""
    begin = tail.index.lowest_above(offset)
    return begin is not None and begin <= offset and tail.sealed_offset <= offset


def _candidate(segment: Segment, footer: SegmentFooter) -> Candidate:
    cleaned_ms = max((time_ms for _, time_ms in footer.cleanings), default=0)
    return Candidate(
        segment.path,
        segment.base_offset,
        segment.end_offset,
        segment.num_records,
        segment.leader_epoch,
        0 if segment.operation == ROLL else 1 + cleaned_ms,
    )


def _damaged(files: TableFiles, chain: Chain) -> dict[str, str]:
    """Return the chosen files that are not whole, with the reasons. They are read to their ends."""
    damaged = {}
    for file in chain.files:
        try:
            check_file(files, file.path)
        except (LogStoreError, FileNotFoundError) as error:
            damaged[file.path] = str(error)
    return damaged


def _judge(partition: int, chain: Chain, found: _Found, remains: LogRemains, known: Known, plan: RebuildPlan) -> None:
    """Report the missing offsets of a partition, and the facts about it that cannot be known."""
    for start, end in new_gaps(chain.gaps, _replaced(partition, remains)):
        if known.give_up_missing:
            plan.warnings.append(f"partition {partition}: offsets {start} to {end - 1} are given up")
            continue
        plan.refusals.append(
            f"partition {partition}: no readable file stands for offsets {start} to {end - 1}. Restore the files; or, "
            f"if they were deleted, say so with --log-start {partition}={end}; or give them up with --give-up-missing"
        )
    for path, reason in found.unreadable.items():
        plan.left_out.append(path)
        name = parse_segment_name(path)
        assert name is not None
        low, high = name.base_offset, name.end_offset or name.base_offset + 1
        replaced = any(file.base_offset < high and low < file.end_offset for file in chain.files)
        consequence = "; older files stand for its offsets: records that a job removed may be back" if replaced else ""
        plan.warnings.append(f"partition {partition}: {reason}{consequence}")
    if app_id(partition, SEALED) not in remains.transactions and chain.files and partition not in known.log_starts:
        plan.warnings.append(
            f"partition {partition}: the Delta log does not tell the log start any more; records from offset "
            f"{chain.files[0].base_offset} on are there again, also expired and deleted ones: --log-start "
            f"{partition}=OFFSET says another"
        )
