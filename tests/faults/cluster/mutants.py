"""Brokers that are broken on purpose, one rule each: functions named in ``LOGSTORE_MUTANT`` that break the process they
run in. ``EXPOSED_BY`` has the faults that expose each of them.

The rules C1 to C19 are those of the cluster's design. Rules are left out if breaking them shows only after an order of
steps that processes hardly ever reach; the model of replication breaks those
(``tests/stateful/test_replication_model.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.faults.bench.mutants import ack_before_fsync, trust_what_stands_beside


@dataclass(frozen=True, slots=True)
class Exposure:
    """Kinds of faults, each once a round in some order, ``faults`` in all; ``told``: a pattern for how an anomaly
    begins.
    """

    kinds: tuple[str, ...]
    faults: int
    told: str


_LOST: Final = "(A1|D1|D3|B4|H3|H4|H6|A3|A4)"


def elect_without_an_epoch() -> None:
    """C1: a new leader continues in the epoch of its predecessor."""
    from msgspec.structs import replace

    from logstore.cluster import reconcile

    reconcile._lead = lambda row, leader, isr: replace(row, leader=leader, isr=tuple(isr))


def count_the_leader_alone() -> None:
    """C3: the high watermark is the leader's end, whichever replicas have it."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    InSyncReplicas.high_watermark = lambda _, log_end_offset: log_end_offset  # type: ignore[method-assign]


def join_wherever_it_is() -> None:
    """C4: a follower joins the ISR at its first fetch, and is not counted until it has caught up."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    def may_join(self: InSyncReplicas, broker: int, *_: int) -> bool:
        follower = self.followers.get(broker)
        return follower is not None and broker not in self.committed and follower.broker_epoch >= 0

    def high_watermark(self: InSyncReplicas, log_end_offset: int) -> int:
        if not self.has_enough:
            return -1
        positions = sorted((follower.position for follower in self.followers.values()), reverse=True)
        return min([log_end_offset, *positions[: self.min_in_sync - 1]])

    InSyncReplicas.may_join = may_join  # type: ignore[method-assign]
    InSyncReplicas.high_watermark = high_watermark  # type: ignore[method-assign]


def compare_no_positions() -> None:
    """C7: a follower's position is accepted whatever records it has below."""
    from logstore.log.partition_log import PartitionLog
    from logstore.replication import fetch_session

    def within(log: PartitionLog, position: int, last_epoch: int) -> tuple[int, int] | None:
        return (last_epoch, log.log_end_offset) if position > log.log_end_offset else None

    fetch_session.diverged_at = within


def bring_back_what_was_truncated() -> None:
    """C8: a start ignores truncations."""
    from logstore.log.journal_tail import JournalTail

    settle = JournalTail.settle

    def forget_truncations(self: JournalTail) -> None:
        self.truncations.clear()
        settle(self)

    JournalTail.settle = forget_truncations  # type: ignore[method-assign]


def tell_the_end_at_once() -> None:
    """C9: a new leader shows the end that it knew as a follower."""
    from logstore.log.leadership import Leadership

    Leadership.require_settled = lambda _: None  # type: ignore[method-assign]


def roll_all_there_is() -> None:
    """C10: a leader writes records into the table that no other replica has yet."""
    from logstore.log.partition_log import PartitionLog

    def rollable_end(self: PartitionLog) -> int:
        return self.log_end_offset if self.is_leader else self.sealed_offset

    PartitionLog.rollable_end = property(rollable_end)  # type: ignore[assignment, method-assign]


def stay_in_the_isr() -> None:
    """C12: a broker stays in its ISRs although its journal is not the one registered last."""
    from logstore.cluster.registration import Registration

    Registration._leave = Registration._resign  # type: ignore[method-assign]


def acknowledge_with_too_few() -> None:
    """C13: min.insync.replicas is ignored."""
    from logstore.log.in_sync_replicas import InSyncReplicas

    InSyncReplicas.has_enough = property(lambda _: True)  # type: ignore[assignment, method-assign]


def hold_the_lease_for_ever() -> None:
    """C14: a leader that ZooKeeper does not reach continues with acks=1."""
    from logstore.cluster.lease import Lease

    Lease.is_held = property(lambda _: True)  # type: ignore[assignment, method-assign]


def append_times_of_its_own() -> None:
    """C15: a follower's headers differ from the leader's."""
    from logstore.journal.frame import Frame
    from logstore.replication import replica_fetcher

    split = replica_fetcher.split_frames

    def later(buffer: Any) -> list[Frame]:
        return [
            Frame(frame.header._replace(append_time_ms=frame.header.append_time_ms + 1), frame.payload)
            for frame in split(buffer)
        ]

    replica_fetcher.split_frames = later


def lead_without_producers() -> None:
    """C16: a new leader does not know which batches its predecessor has stored."""
    from logstore.log.partition_log import PartitionLog
    from logstore.log.partition_log_state import PartitionLogState

    lead = PartitionLog.become_leader

    def lead_anew(self: PartitionLog, *args: Any, **kwargs: Any) -> None:
        known = self.state
        clock = known.idempotency_keys.clock
        new = PartitionLogState("", clock=clock, producer_id_expiration_ms=known.producers.remembered_ms)
        new.idempotency_keys.remembered_ms = known.idempotency_keys.remembered_ms
        new.producers.evicted_up_to = 1 << 62
        known.producers, known.idempotency_keys = new.producers, new.idempotency_keys
        lead(self, *args, **kwargs)

    PartitionLog.become_leader = lead_anew  # type: ignore[method-assign]


def count_producers_alone() -> None:
    """C17: each broker assigns ids from its own beginning."""
    from logstore.cluster.producer_ids import BLOCK, ProducerIdBlocks

    async def untaken(self: ProducerIdBlocks) -> range:
        begin, _ = await self._read()
        self.known_end = begin + BLOCK
        return range(begin, begin + BLOCK)

    ProducerIdBlocks._take_block = untaken  # type: ignore[method-assign]


def forward_what_is_not_to_be() -> None:
    """C18: a request is forwarded to another broker, whatever it contains."""
    from ingest_api import guard
    from logstore.broker.context import Forwarding

    guard._forwarding = lambda _: Forwarding.ALLOWED


def start_on_any_disk() -> None:
    """C19: a broker accepts the log directory of another broker or another cluster."""
    from dataclasses import replace
    from pathlib import Path

    from logstore.cluster.log_directory import LogDirectory

    open_checked = LogDirectory.open.__func__  # type: ignore[attr-defined]

    def open_any(cls: type[LogDirectory], path: Path, cluster_id: str, broker_id: int) -> LogDirectory:
        found = cls.read(path) or open_checked(cls, path, cluster_id, broker_id)
        return replace(found, cluster_id=cluster_id, broker_id=broker_id)

    LogDirectory.open = classmethod(open_any)  # type: ignore[assignment, method-assign]


EXPOSED_BY: Final[Mapping[Callable[[], None], Exposure]] = {
    elect_without_an_epoch: Exposure(("kill",), 2, "H1"),
    count_the_leader_alone: Exposure(("isolated_then_killed",), 3, _LOST),
    join_wherever_it_is: Exposure(("kill_all_behind_a_slow_follower",), 4, _LOST),
    ack_before_fsync: Exposure(("power_cut_all",), 2, _LOST),
    compare_no_positions: Exposure(("isolated_then_killed",), 3, f"{_LOST}|the run broke off"),
    bring_back_what_was_truncated: Exposure(("isolated_then_killed", "kill_all"), 4, f"{_LOST}|the run broke off"),
    tell_the_end_at_once: Exposure(("kill", "isolated_then_killed"), 6, "(H4|B4)"),
    roll_all_there_is: Exposure(("isolated_then_killed",), 4, f"{_LOST}|the run broke off|D2"),
    stay_in_the_isr: Exposure(("kill_all_and_lose_a_disk",), 2, _LOST),
    trust_what_stands_beside: Exposure(("journal_lost",), 3, f"{_LOST}|the run broke off"),
    acknowledge_with_too_few: Exposure(("kill_two",), 2, "H5"),
    hold_the_lease_for_ever: Exposure(("cut_from_zookeeper", "half_open_to_zookeeper"), 4, "H8"),
    append_times_of_its_own: Exposure(("blink",), 1, "H6"),
    lead_without_producers: Exposure(
        ("kill", "isolated_then_killed"), 6, "(A2 record is stored twice|the run broke off)"
    ),
    count_producers_alone: Exposure(("blink",), 1, "(the run broke off|A1|A2|A3)"),
    forward_what_is_not_to_be: Exposure(("blink",), 1, "H8"),
    start_on_any_disk: Exposure(("foreign_disk",), 1, "C19"),
}
