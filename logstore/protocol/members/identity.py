"""Names of the partitions that members hold, and of the members themselves."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class MemberIdentity(NamedTuple):
    """A member of a group as it commits: ``generation`` is that of the classic group, or the member's epoch.

    The default is no member: then the group has to be empty.
    """

    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None
