"""Which brokers have a copy of a partition, as the coordinator says it."""

from collections.abc import Sequence
from typing import NamedTuple

from logstore.broker.broker import Broker


class Replicas(NamedTuple):
    """Broker ids, the leader's first. Those ``in_sync`` hold all that is acknowledged."""

    leader: int
    assigned: Sequence[int]
    in_sync: Sequence[int]


def replicas_of(broker: Broker) -> Replicas:
    """Of any partition: one broker leads them all, and what is in sync with it is all there is."""
    in_sync = broker.in_sync_replicas
    return Replicas(in_sync[0], in_sync, in_sync)
