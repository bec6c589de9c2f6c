"""The choice of brokers for the replicas of a partition, as pure functions.

A new partition goes to the brokers with the fewest replicas, on as many racks as it has replicas. Its preferred leader,
the first replica, is the one that leads the fewest. Among equals the followers of a leader are spread, so that no
single broker takes over all that a dead broker led.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec

from logstore.cluster.znodes import PartitionRegistration
from logstore.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError


class Load:
    """Counts replicas and preferred leaders by broker. By pair of brokers it counts the partitions that both hold, and
    those that the first one leads and the second one takes over.
    """

    def __init__(self) -> None:
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        self.together: Counter[tuple[int, int]] = Counter()
        self.heirs: Counter[tuple[int, int]] = Counter()

    @classmethod
    def of(cls, assignments: Iterable[Sequence[int]]) -> Self:
        load = cls()
        for replicas in assignments:
            load.add(replicas)
        return load

    def add(self, replicas: Sequence[int]) -> None:
        self.replicas.update(replicas)
        self.leaders[replicas[0]] += 1
        self.together.update(itertools.permutations(replicas, 2))
        if len(replicas) > 1:
            self.heirs[replicas[0], replicas[1]] += 1


def assign(
    count: int, replication_factor: int, racks: Mapping[int, str | None], load: Load
) -> tuple[tuple[int, ...], ...]:
    """Assign replicas to ``count`` new partitions, the preferred leader first; ``load`` counts them.

    ``racks`` has the rack of each broker; a broker with None is a rack by itself. Raises InvalidReplicationFactorError
    if there are fewer brokers than replicas.
    """
    if not 1 <= replication_factor <= len(racks):
        raise InvalidReplicationFactorError(
            f"Replication factor {replication_factor} is not between 1 and the number of brokers ({len(racks)})."
        )
    of_rack = {broker: rack if rack is not None else broker for broker, rack in racks.items()}
    found = []
    for _ in range(count):
        replicas = _replicas(replication_factor, of_rack, load)
        load.add(replicas)
        found.append(replicas)
    return tuple(found)


def _replicas(replication_factor: int, of_rack: Mapping[int, str | int], load: Load) -> tuple[int, ...]:
    in_racks: Counter[str | int] = Counter()
    free = sorted(of_rack)
    chosen: list[int] = []

    def burden(broker: int) -> tuple[int, ...]:
        if not chosen:
            return (load.replicas[broker], load.leaders[broker], broker)
        together = sum(load.together[one, broker] for one in chosen)
        distance = (broker - chosen[0]) % (max(free) + 1)
        return (in_racks[of_rack[broker]], load.replicas[broker], together, distance)

    while len(chosen) < replication_factor:
        best = min(free, key=burden)
        free.remove(best)
        chosen.append(best)
        in_racks[of_rack[best]] += 1

    def taken_over(leader: int) -> int:
        """Return how much the follower that takes over the least from ``leader`` takes over."""
        return min((load.heirs[leader, one] for one in chosen if one != leader), default=0)

    leader = min(chosen, key=lambda broker: (load.leaders[broker], taken_over(broker)))
    followers = sorted((one for one in chosen if one != leader), key=lambda one: (load.heirs[leader, one], one))
    return (leader, *followers)


# ---- reassignment ----------------------------------------------------------------------------------------------------


def begin_reassignment(row: PartitionRegistration, target: Sequence[int]) -> PartitionRegistration:
    """Begin to move the partition to ``target``, the preferred leader first. This replaces a reassignment under way.

    Until the target is in sync, the former replicas and all in sync stay (KIP-455). A removed replica raises
    the leader epoch, as in Kafka: it drops its log, and may come back before the leader has learned that it was
    removed. In the new epoch its former position no longer counts (C4).

    Raises InvalidReplicaAssignmentError if ``target`` is empty or has a broker twice.
    """
    if not target or len(set(target)) < len(target):
        raise InvalidReplicaAssignmentError(f"Replicas {list(target)} are not distinct ids of brokers.")
    origin = [replica for replica in row.replicas if replica not in row.adding]
    replicas = tuple(dict.fromkeys((*target, *origin, *row.isr)))
    return msgspec.structs.replace(
        row,
        leader_epoch=row.leader_epoch + (not set(row.replicas).issubset(replicas)),
        replicas=replicas,
        adding=tuple(replica for replica in target if replica not in origin),
        removing=tuple(replica for replica in replicas if replica not in target),
    )


def cancel_reassignment(row: PartitionRegistration) -> PartitionRegistration:
    """Begin to move the partition back. Return the same row if no reassignment is under way."""
    if not row.adding and not row.removing:
        return row
    return begin_reassignment(row, [replica for replica in row.replicas if replica not in row.adding])
