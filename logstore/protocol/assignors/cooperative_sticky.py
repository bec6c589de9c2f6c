"""cooperative-sticky: like sticky, but a partition changes its owner in two rebalances; the others are read
meanwhile.
"""

from collections.abc import Mapping

from logstore.protocol.assignors.assignor import MemberSubscription, TopicPartition
from logstore.protocol.assignors.sticky import assign_sticky


class CooperativeStickyAssignor:
    """Kafka's CooperativeStickyAssignor (KIP-429). A partition that has to change its owner is given to nobody. Its
    owner finds it missing, gives it up and joins again, and the next assignment gives it to the new owner.
    """

    name = "cooperative-sticky"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        sticky = assign_sticky(partitions, members)
        return {
            member: [partition for partition in assigned if partition not in sticky.transferring]
            for member, assigned in sticky.assignment.items()
        }
