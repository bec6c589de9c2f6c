"""Problems of topics and partitions, as `topic list`, `doctor`, the metrics and `/health/ready` tell of them."""

import enum
from dataclasses import dataclass


class ProblemState(enum.StrEnum):
    #: The topic or partition is refused to readers and writers; its records in the journal stay.
    QUARANTINED = "quarantined"
    #: Sealed records were taken out of the table by somebody else; reads of their offsets are refused.
    RECORDS_MISSING = "records_missing"


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """``partition`` None: the whole topic. ``remedy`` is a command, or what to do, in one sentence."""

    topic: str
    partition: int | None
    state: ProblemState
    reason: str
    remedy: str
