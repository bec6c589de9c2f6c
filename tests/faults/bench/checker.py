"""Judges a history: every contradiction to what the store promises, by the names of the invariants.

``docs/fault-tests.md`` explains the letters. The checker is pure: it uses no clock, file or network. It also requires
that a history has something to judge, because silence would otherwise mean nothing: acknowledged records, reads, and a
final read of each log.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.faults.bench.answer_checks import check_answers
from tests.faults.bench.commit_checks import check_commits
from tests.faults.bench.evidence import Anomaly, Evidence
from tests.faults.bench.group_checks import check_groups
from tests.faults.bench.history import AnyEvent, Fetch, typed
from tests.faults.bench.order_checks import check_order
from tests.faults.bench.read_checks import check_reads
from tests.faults.bench.record_checks import check_records
from tests.faults.bench.stream_checks import check_streams
from tests.faults.bench.table_checks import check_tables


def check(events: Iterable[AnyEvent | Mapping[str, Any]]) -> list[Anomaly]:
    """Return all anomalies of a history, in no order of importance.

    Raises msgspec.ValidationError if an item is not an event.
    """
    evidence = Evidence(typed(events))
    found = list(evidence.anomalies)
    for judge in (
        _check_complete,
        check_records,
        check_order,
        check_reads,
        check_tables,
        check_streams,
        check_commits,
        check_groups,
        check_answers,
    ):
        found += judge(evidence)
    return found


def _check_complete(evidence: Evidence) -> Iterator[Anomaly]:
    if not any(log.acknowledged for log in evidence.logs.values()):
        yield Anomaly("history", "nothing acknowledged", "there is no record that could be lost")
    if not any(call.ok for call in evidence.calls(Fetch)):
        yield Anomaly("history", "nothing fetched", "no reader was told anything")
    if not evidence.looks:
        yield Anomaly("history", "no look at a table", "no Delta reader was told anything")
    for log in evidence.logs.values():
        if log.acknowledged and log.final is None:
            yield Anomaly("history", "no final read", f"{log.name} has acknowledged records")
        if not log.topic.partitions:
            yield Anomaly("history", "no topic", f"{log.topic.name} was never said to be made")
        elif log.partition >= max(log.topic.partitions):
            yield Anomaly("A5", "partition that is not there", log.name)


__all__ = ["Anomaly", "check"]
