"""Assignors give Kafka 4.1.1's assignments of random groups, round after round.

Members come, go, subscribe to other topics, and claim what another has or has had; topics get more partitions or
disappear.

``kafka-4.1.1.txt`` has two lines for each case. The first is the assignor, the numbers of partitions and the members
(id, instance id, generation, topics, owned partitions); the second is the result of Kafka's class.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.protocol.assignors.assignor import Assignor, MemberSubscription
from logstore.protocol.assignors.registry import CLIENT_ASSIGNORS, SERVER_ASSIGNORS
from tests.support.assignments import assign, member

CASES = (Path(__file__).parent / "kafka-4.1.1.txt").read_text().splitlines()
#: Kafka returns these partitions in the order of a map.
UNORDERED = {"range", "sticky", "server-uniform", "server-range"}


def partitions(text: str) -> str:
    return text.replace(",", " ")


def members_of(fields: list[str]) -> Iterator[tuple[str, MemberSubscription]]:
    for field in fields:
        name, instance_id, generation, topics, owned = field.split(";")
        yield name, member(partitions(topics), partitions(owned), int(generation), instance_id or None)


def assignor_of(kind: str) -> Assignor:
    return SERVER_ASSIGNORS[kind.removeprefix("server-")] if kind.startswith("server-") else CLIENT_ASSIGNORS[kind]


@pytest.mark.parametrize("kind", [*CLIENT_ASSIGNORS, *(f"server-{name}" for name in SERVER_ASSIGNORS)])
def test_the_assignment_is_kafkas(kind: str):
    cases = [
        (fields[1:], answer)
        for question, answer in zip(CASES[::2], CASES[1::2], strict=True)
        if (fields := question.split("|"))[0] == kind
    ]
    assert len(cases) == 40
    for (topics, *fields), answer in cases:
        counts = {topic: int(count) for topic, _, count in (word.partition(":") for word in topics.split(","))}
        found = assign(assignor_of(kind), counts, dict(members_of(fields)))
        kafkas = {name: partitions(assigned) for name, _, assigned in (f.partition("=") for f in answer.split("|"))}
        if kind in UNORDERED:
            found = {name: " ".join(sorted(assigned.split())) for name, assigned in found.items()}
        assert found == kafkas, fields
