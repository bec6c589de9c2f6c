"""A group as ``describe`` shows it."""

from dataclasses import dataclass

from consumer_offsets.groups.responses import AssignedTopic


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """Of a classic member ``metadata`` (for the chosen protocol) and ``assignment`` are set, of a consumer member
    the rest.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""
    member_epoch: int = -1
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] = ()
    subscribed_regex: str = ""
    assigned: tuple[AssignedTopic, ...] = ()
    target: tuple[AssignedTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """``kind`` is "classic", "consumer", or "" when the group never had a member; ``generation`` is a consumer group's
    epoch. ``protocol`` is the assignor. ``state_since_ms`` is None when the state has no known begin.
    """

    group: str
    kind: str
    state: str
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    state_since_ms: int | None = None
    members: tuple[MemberDescription, ...] = ()
