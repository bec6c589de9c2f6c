"""Names of the partitions that members hold, and of the members themselves."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class MemberIdentity(NamedTuple):
    """A member of a group as it commits: ``generation`` is that of the classic group, or the member's epoch."""

    member_id: str
    generation: int
    group_instance_id: str | None = None
