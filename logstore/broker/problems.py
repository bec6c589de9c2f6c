"""Problems of topics and partitions, as `topic list`, `doctor`, the metrics and `/health/ready` tell of them."""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from logstore.broker.recovery import Unserved
from logstore.delta.foreign_ranges import RefusedFile
from logstore.errors import QuarantinedError
from logstore.log.topic import Topic


class ProblemState(enum.StrEnum):
    #: The topic or partition is refused to readers and writers; its records in the journal stay.
    QUARANTINED = "quarantined"
    #: A segment cannot be read: it is damaged, or another writer's and not in our form. Others are served.
    UNREADABLE = "unreadable"
    #: A file of another writer has offsets that are taken or were never given out. It is not served; all else is.
    FOREIGN_FILE = "foreign_file"
    #: Sealed records were taken out of the table by another writer; reads of their offsets are refused.
    RECORDS_MISSING = "records_missing"
    #: The last roll of the topic failed: its newest records stay in the journal, and are served.
    ROLLS_FAIL = "rolls_fail"
    #: What ZooKeeper says of the topic cannot be read: its leaders and replicas stay as they were.
    REGISTRATION_DAMAGED = "registration_damaged"
    #: Records are refused with 429 for want of room in the journal, because rolls of the topic fail.
    JOURNAL_FULL = "journal_full"


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """``partition`` None: the whole topic. ``remedy`` is a command, or one sentence of advice."""

    topic: str
    partition: int | None
    state: ProblemState
    reason: str
    remedy: str


def find_problems(
    topics: Mapping[str, Topic],
    unopened: Mapping[str, QuarantinedError],
    unserved: Unserved,
    roll_failures: Mapping[Topic, str],
    refused: Collection[Topic],
    damaged: Mapping[str, str],
) -> list[TopicProblem]:
    """Problems of the ``topics`` that are served, of those ``unopened``, and of others whose records the journal holds.

    ``roll_failures``: the errors of the last rolls of topics. ``refused``: those of them whose producers have to wait
    for room in the journal. ``damaged``: by name, why the registration of a topic is not believed.
    """
    quarantined = ProblemState.QUARANTINED
    found = []
    for name, error in unopened.items():
        reason = error.reason.rstrip(".")
        if error.topic_id is not None and (count := unserved.unsealed_records.get(error.topic_id, 0)):
            reason += f". The journal holds {count} records of it"
        found.append(TopicProblem(name, None, quarantined, reason, error.remedy))
    known = {topic.topic_id for topic in topics.values()} | {error.topic_id for error in unopened.values()}
    for topic_id in sorted({*unserved.unsealed_records, *(key[0] for key in unserved.partitions)} - known, key=str):
        count = unserved.unsealed_records.get(topic_id, 0)
        reason = f"The journal holds {count} records of the topic with id {topic_id}, whose table is not served"
        remedy = (
            "Mend the topic that is quarantined, bring its directory back, or make a lost _delta_log anew (stop the "
            "store; logstore topic rebuild TOPIC), and start the store again. To give the "
            f"records up, make an empty directory deleted/{topic_id} in the data directory"
        )
        found.append(TopicProblem(str(topic_id), None, quarantined, reason, remedy))
    for topic in topics.values():
        drop = f"Run: logstore topic drop-foreign-files {topic.name}"
        foreign: list[tuple[int | None, RefusedFile]] = [(None, file) for file in topic.snapshot.homeless]
        foreign += [(p.partition, file) for p in topic.partitions for file in p.segments.refused]
        found += [TopicProblem(topic.name, p, ProblemState.FOREIGN_FILE, _not_served(f), drop) for p, f in foreign]
        for p in topic.partitions:
            if (error := p.quarantined) is not None:
                found.append(TopicProblem(topic.name, p.partition, quarantined, error.reason, error.remedy))
            for path, why in p.segments.unreadable.items():
                remedy = f"Restore {path} from a backup, or the table to the version before another writer's"
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
        remedy = "Until it is what a broker wrote, no leader of it is elected, and no replica joins its ISR"
        found.append(TopicProblem(name, None, ProblemState.REGISTRATION_DAMAGED, why, remedy))
    return sorted(found, key=lambda problem: (problem.topic, problem.partition or 0))


def _not_served(file: RefusedFile) -> str:
    return f"{file.path} was added by another writer and is not served: {file.reason}"
