"""Short forms of partitions, members and assignments, for tests of assignors: "t1:0 t1:2" are two partitions."""

from collections.abc import Iterable, Mapping

from logstore.protocol.assignors.assignor import Assignor, MemberSubscription, TopicPartition

Assignment = Mapping[str, list[TopicPartition]]


def tps(text: str) -> list[TopicPartition]:
    return [(topic, int(number)) for topic, _, number in (word.rpartition(":") for word in text.split())]


def member(
    topics: str, owned: str | Iterable[TopicPartition] = (), generation: int = -1, instance_id: str | None = None
) -> MemberSubscription:
    """Return a member with topics like "t1 t2"."""
    partitions = tps(owned) if isinstance(owned, str) else owned
    return MemberSubscription(tuple(topics.split()), tuple(partitions), generation, instance_id)


def assign(
    assignor: Assignor, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
) -> dict[str, str]:
    """Return the assignment in the short form, in the assignor's order."""
    assignment = assignor.assign(partitions, members)
    return {name: " ".join(f"{topic}:{number}" for topic, number in assigned) for name, assigned in assignment.items()}


def in_order(assignment: Mapping[str, str]) -> dict[str, str]:
    """Return the assignment, with the partitions of each member in order."""
    return {
        name: " ".join(f"{topic}:{number}" for topic, number in sorted(tps(text))) for name, text in assignment.items()
    }


def owners(assignment: Assignment) -> dict[TopicPartition, str]:
    """Return the owner of each partition. Fails if one has two."""
    found: dict[TopicPartition, str] = {}
    for name, assigned in assignment.items():
        for partition in assigned:
            assert partition not in found, f"{partition} is assigned to {found[partition]} and to {name}"
            found[partition] = name
    return found


def next_round(
    members: Mapping[str, MemberSubscription], assignment: Assignment, generation: int
) -> dict[str, MemberSubscription]:
    """Return the members with their assigned partitions."""
    return {
        name: MemberSubscription(old.topics, tuple(assignment[name]), generation, old.instance_id)
        for name, old in members.items()
    }
