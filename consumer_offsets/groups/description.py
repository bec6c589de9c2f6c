"""A group as ``describe`` shows it, in one form for all listeners."""

from dataclasses import dataclass

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.groups.responses import AssignedTopic


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """``assignment`` has the partitions that the member reads. For a classic member they are known if its protocol type
    is "consumer".

    A classic member has ``metadata`` (for the chosen protocol) and ``assignment_data``, which are its own bytes. A
    member of a consumer group has the fields after these; there, ``is_classic`` marks a member that uses the classic
    protocol.

    ``since_heartbeat_ms`` is None from the start of the coordinator to the first heartbeat, ``since_poll_ms`` if the
    client does not report it.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]
    metadata: bytes = b""
    assignment_data: bytes = b""
    member_epoch: int = -1
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] = ()
    subscribed_regex: str = ""
    is_classic: bool = False
    assigned: tuple[AssignedTopic, ...] = ()
    target: tuple[AssignedTopic, ...] = ()
    since_heartbeat_ms: int | None = None
    since_poll_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """``kind`` is "classic", "consumer", or "" when the group never had a member; ``generation`` is a consumer group's
    epoch, ``target_epoch`` that of its target assignment. ``protocol`` is the assignor. ``state_since_ms`` is None when
    it is unknown.
    """

    group: str
    kind: str
    state: str
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    state_since_ms: int | None = None
    members: tuple[MemberDescription, ...] = ()
    target_epoch: int = -1

    def owners(self) -> dict[TopicPartition, MemberDescription]:
        """Return the member that reads each assigned partition."""
        return {place: member for member in self.members for place in member.assignment}
