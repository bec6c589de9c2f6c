"""The list of topics: served ones with their numbers, and refused ones with the reason."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from logstore.cli.output import age_text, bytes_text, print_json, print_problems, print_table

if TYPE_CHECKING:
    from logstore.protocol.messages.cluster import PartitionReplicas
    from logstore.protocol.messages.status import StoreStatus


def listing(status: "StoreStatus", *, internal: bool) -> list[dict[str, Any]]:
    """Return the list for programs. A topic that is wholly quarantined has only its name and its problems."""
    served = [
        {
            "topic": topic.name,
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "is_internal": topic.is_internal,
            "records": topic.records,
            "size_bytes": topic.size_bytes,
            "unsealed_bytes": topic.unsealed_bytes,
            "newest_timestamp": topic.newest_timestamp,
            "problems": [found for found in status.problems if found.topic == topic.name],
        }
        for topic in status.topics
        if internal or not topic.is_internal
    ]
    return served + [
        {"topic": name, "problems": [found for found in status.problems if found.topic == name]}
        for name in _unserved(status)
    ]


def print_listing(status: "StoreStatus", *, internal: bool) -> None:
    """Print a table for people, and below it the problems with their remedies."""
    states: dict[str, set[str]] = {}
    for problem in status.problems:
        states.setdefault(problem.topic, set()).add(problem.state.replace("_", " "))
    rows: list[tuple[str | int, ...]] = [
        (
            topic.name,
            topic.partitions,
            topic.records,
            bytes_text(topic.size_bytes + topic.unsealed_bytes),
            age_text(topic.newest_timestamp, status.now),
            ", ".join(sorted(states.get(topic.name, ()))),
        )
        for topic in status.topics
        if internal or not topic.is_internal
    ]
    rows += [(name, "-", "-", "-", "-", ", ".join(sorted(states[name]))) for name in _unserved(status)]
    columns = ["topic", "partitions", "records", "bytes", "newest", "problem"]
    shown = len(columns) if states else len(columns) - 1
    print_table(columns[:shown], [row[:shown] for row in sorted(rows, key=lambda row: str(row[0]))])
    print_problems(status.problems)


def print_partitions(found: Sequence["PartitionReplicas"], state: str, *, as_json: bool) -> None:
    """Print partitions in a state, each with its leader and replicas."""
    if as_json:
        print_json(found)
    elif not found:
        print(f"No partition is {state.replace('-', ' ')}")
    else:
        print_table(
            ["topic", "partition", "leader", "replicas", "isr"],
            [
                (
                    one.topic,
                    one.partition,
                    leader_text(one.leader),
                    ids_text(one.replicas),
                    ids_text(one.in_sync_replicas),
                )
                for one in found
            ],
        )


def ids_text(brokers: Iterable[int]) -> str:
    """Return ids as ``1 2 3``, so that they do not look like a number; ``none`` if there are none."""
    return " ".join(map(str, brokers)) or "none"


def leader_text(broker: int) -> str:
    return "none" if broker < 0 else str(broker)


def known_text(offset: int) -> str:
    """Return the offset as text, ``-`` if the leader has not reported it."""
    return "-" if offset < 0 else f"{offset:,}"


def _unserved(status: "StoreStatus") -> list[str]:
    return sorted({found.topic for found in status.problems} - {topic.name for topic in status.topics})
