"""Problems of topics and partitions, as `topic list`, `doctor`, the metrics and `/health/ready` report them."""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.nobody import Discovery
from logstore.broker.roll_schedule import RollSchedule
from logstore.broker.topics.recovery import Unserved
from logstore.broker.topics.served import Topics
from logstore.cluster.cluster_state import ADOPT, ClusterState
from logstore.delta.columns import table_columns
from logstore.delta.foreign_ranges import RefusedFile
from logstore.delta.table_features import APPEND_ONLY_PROPERTY
from logstore.errors import QuarantinedError
from logstore.log.topic import Topic
from logstore.segments.foreign_names import foreign_records


class ProblemState(enum.StrEnum):
    #: The topic or partition is refused to readers and writers; its records in the journal stay.
    QUARANTINED = "quarantined"
    #: A segment cannot be read: it is damaged, or another writer's and not in our form. Other segments are served.
    UNREADABLE = "unreadable"
    #: A file of another writer has offsets that are taken or were never given out. It is not served; all else is.
    FOREIGN_FILE = "foreign_file"
    #: Another writer took sealed records out of the table; reads of their offsets are refused.
    RECORDS_MISSING = "records_missing"
    #: The last roll of the topic failed: its newest records stay in the journal, and are served.
    ROLLS_FAIL = "rolls_fail"
    #: The topic's document in ZooKeeper cannot be read: its leaders and replicas stay as they were.
    REGISTRATION_DAMAGED = "registration_damaged"
    #: The table's owner forbids removing records, so retention and key compaction skip the topic.
    APPEND_ONLY = "append_only"
    #: The schema of the table says something about its columns that cannot be followed. The log goes on.
    COLUMNS = "columns"
    #: Records are refused with 429 because rolls of the topic fail and the journal has no room.
    JOURNAL_FULL = "journal_full"


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """``partition`` is None for the whole topic. ``remedy`` is a command, or one sentence of advice."""

    topic: str
    partition: int | None
    state: ProblemState
    reason: str
    remedy: str


class Problems:
    def __init__(
        self,
        by_name: Mapping[str, Topic],
        topics: Topics,
        schedule: RollSchedule,
        cluster_state: ClusterState,
        discovery: Discovery,
        admission: Admission,
        authorizer: Authorizer,
    ) -> None:
        self._by_name = by_name
        self._topics = topics
        self._schedule = schedule
        self._cluster_state = cluster_state
        self._discovery = discovery
        self._admission = admission
        self._authorizer = authorizer

    def all(self, context: RequestContext) -> list[TopicProblem]:
        """Return problems of topics that the principal may describe, by name; empty when all are served whole."""
        failures = {
            topic: why for topic, why in self._schedule.failures.items() if topic.has_unsealed and not topic.deleted
        }
        refused = {topic for topic in failures if self._admission.refuses(topic)}
        unopened = {**self._topics.quarantined, **self._not_adopted()}
        damaged = self._cluster_state.damaged_topics
        found = find_problems(self._by_name, unopened, self._topics.unserved, failures, refused, damaged)
        shown = self._authorizer.described(context, [problem.topic for problem in found])
        return [problem for problem in found if problem.topic in shown]

    def _not_adopted(self) -> dict[str, QuarantinedError]:
        """Return topics whose tables have records, and that the cluster does not know: they have no leader."""
        return {
            name: QuarantinedError("ZooKeeper does not know its table, which has records", f"Run: {ADOPT.format(name)}")
            for name, topic in self._by_name.items()
            if not self._discovery.is_adopted(name) and any(p.log_end_offset for p in topic.partitions)
        }


def find_problems(
    topics: Mapping[str, Topic],
    unopened: Mapping[str, QuarantinedError],
    unserved: Unserved,
    roll_failures: Mapping[Topic, str],
    refused: Collection[Topic],
    damaged: Mapping[str, str],
) -> list[TopicProblem]:
    """Return the problems of the served ``topics``, of those ``unopened``, and of others whose records the journal
    holds.

    ``roll_failures`` are the errors of the last rolls of topics. ``refused`` are those of them whose producers have to
    wait for room in the journal. ``damaged`` has, by name, the reason why a topic's registration is rejected.
    """
    quarantined = ProblemState.QUARANTINED
    found = []
    for name, unread in unopened.items():
        reason = unread.reason.rstrip(".")
        if unread.topic_id is not None and (count := unserved.unsealed_records.get(unread.topic_id, 0)):
            reason += f". The journal holds {count} records of it"
        found.append(TopicProblem(name, None, quarantined, reason, unread.remedy))
    known = {topic.topic_id for topic in topics.values()} | {error.topic_id for error in unopened.values()}
    for topic_id in sorted({*unserved.unsealed_records, *(key[0] for key in unserved.partitions)} - known, key=str):
        count = unserved.unsealed_records.get(topic_id, 0)
        reason = f"The journal holds {count} records of the topic with id {topic_id}, whose table is not served"
        remedy = (
            "Mend the topic that is quarantined, bring its directory back, or rebuild a lost _delta_log (stop "
            "the store; logstore topic rebuild TOPIC), and start the store again. To give the records up, make "
            f"an empty directory deleted/{topic_id} in the data directory"
        )
        found.append(TopicProblem(str(topic_id), None, quarantined, reason, remedy))
    for topic in topics.values():
        drop = f"Run: logstore topic drop-foreign-files {topic.name}"
        foreign: list[tuple[int | None, RefusedFile]] = [(None, file) for file in topic.snapshot.homeless]
        foreign += [(p.partition, file) for p in topic.partitions for file in p.segments.refused]
        found += [TopicProblem(topic.name, p, ProblemState.FOREIGN_FILE, _not_served(f), drop) for p, f in foreign]
        if (why := _kept_by_append_only(topic)) is not None:
            unset = f"ALTER TABLE delta.`{topic.snapshot.location}` UNSET TBLPROPERTIES ('{APPEND_ONLY_PROPERTY}')"
            found.append(TopicProblem(topic.name, None, ProblemState.APPEND_ONLY, why, f"Run in Spark: {unset}"))
        remedy = f"See logstore topic columns show {topic.name}, and undo the change of the table's schema"
        odd = table_columns(topic.name, topic.snapshot.table.meta_data).problems
        found += [TopicProblem(topic.name, None, ProblemState.COLUMNS, why, remedy) for why in odd]
        for p in topic.partitions:
            if (of_partition := p.quarantined) is not None:
                reason, remedy = of_partition.reason, of_partition.remedy
                found.append(TopicProblem(topic.name, p.partition, quarantined, reason, remedy))
            for path, why in p.segments.unreadable.items():
                where = " and ".join(foreign_records(path).paths)
                remedy = f"Restore {where} from a backup, or the table to the version before another writer's"
                found.append(TopicProblem(topic.name, p.partition, ProblemState.UNREADABLE, why, remedy))
            for gap in p.missing:
                reason, remedy = gap.explained(topic.name, p.partition, p.location)
                missing = ProblemState.RECORDS_MISSING
                found.append(TopicProblem(topic.name, p.partition, missing, reason, remedy))
    for topic, why in roll_failures.items():
        reason = f"The journal holds {topic.journal_bytes} bytes of it that cannot be rolled: {why}"
        remedy = f"Mend the cause; rolls are tried again within a minute, or by: logstore topic roll {topic.name}"
        state = ProblemState.JOURNAL_FULL if topic in refused else ProblemState.ROLLS_FAIL
        found.append(TopicProblem(topic.name, None, state, reason, remedy))
    for name, why in damaged.items():
        remedy = "Until it is what a broker wrote, its partitions elect no leader, and no replica joins an ISR"
        found.append(TopicProblem(name, None, ProblemState.REGISTRATION_DAMAGED, why, remedy))
    return sorted(found, key=lambda problem: (problem.topic, problem.partition or 0))


def _kept_by_append_only(topic: Topic) -> str | None:
    """Return the problem of an append-only table; None if nothing would be removed from the topic anyway."""
    config = topic.config
    removes = config.compacted or config.retention_ms >= 0 or config.retention_bytes >= 0
    if not (topic.snapshot.is_append_only and removes):
        return None
    jobs = "key compaction" if config.compacted else "retention"
    return f"The table property {APPEND_ONLY_PROPERTY} is true: {jobs} removes no record of the topic"


def _not_served(file: RefusedFile) -> str:
    return f"{file.path} was added by another writer and is not served: {file.reason}"
