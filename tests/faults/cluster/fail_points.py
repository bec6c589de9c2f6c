"""Points in the work of a broker of a cluster at which a fault may strike, beside those that the store itself names.

``install`` runs in the process of a broker; then it accepts a command ``point isr.written kill`` just as ``point
journal.synced kill``. Invariant: a point changes nothing by itself.
"""

import functools
import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.support.faulty_server import Controls

#: Steps that a broker repeats, or takes at each change of a role.
AT_WORK: Final = (
    "produce.parsed",
    "produce.claimed",
    "journal.written",
    "journal.synced",
    "produce.durable",
    "replica.position_told",
    "hw.before_advance",
    "hw.advanced",
    "ack.before_send",
    "follower.before_append",
    "follower.appended",
    "segment.opened",
    "segment.half",
    "segment.finished",
    "delta.opened",
    "delta.checked",
    "delta.committed",
    "delta.synced",
    "journal.file_freed",
    "group.before_append",
    "group.appended",
    "group.before_answer",
)
#: Steps that the end or return of another broker causes.
AT_A_CHANGE: Final = (
    "isr.proposed",
    "isr.written",
    "election.before_cas",
    "election.cas_done",
    "leader.before",
    "leader.after",
)
#: Steps of a start.
AT_START: Final = (
    "recovery.half",
    "registration.incarnation_on_disk",
    "registration.record_written",
    "truncate.before",
    "truncate.half",
    "follower.before_append",
    "follower.appended",
    "journal.file_created",
    "journal.snapshotted",
    "pid.block_allocated",
)
#: Steps of a topic's end.
AT_ITS_END: Final = ("topic.marked_deleting", "topic.removed", "topic.purge_half")
#: Steps of the controller, which creates and deletes topics.
AT_A_TOPIC: Final = ("delta.staged", "topic.created", "election.before_cas", "election.cas_done", *AT_ITS_END)


def install(controls: "Controls") -> None:
    """Install the points, before the broker starts."""
    from consumer_offsets.coordinator_shard import CoordinatorShard
    from logstore.broker.produce import records as producing
    from logstore.broker.replica_manager import ReplicaManager
    from logstore.cluster.alter_partition_manager import AlterPartitionManager
    from logstore.cluster.controller import Controller
    from logstore.cluster.log_directory import LogDirectory
    from logstore.cluster.producer_ids import ProducerIdBlocks
    from logstore.cluster.registration import Registration
    from logstore.cluster.zookeeper import ZooKeeper
    from logstore.journal.journal import Journal
    from logstore.log.acknowledgements import Acknowledgement
    from logstore.log.high_watermark import HighWatermark
    from logstore.log.leadership import Leadership
    from logstore.replication import replica_fetcher
    from logstore.replication.replica_fetcher import ReplicaFetcher

    brokers = controls.filesystem.root / "brokers"
    own = brokers / os.environ["LOGSTORE_BROKER_ID"]
    controls.filesystem.of_others = lambda path: path.parent == brokers and path != own
    reached = controls.filesystem.reached
    begin = ZooKeeper.__init__

    def begin_known(self: ZooKeeper, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        controls.zookeeper = self

    ZooKeeper.__init__ = begin_known  # type: ignore[method-assign]

    def between(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
        setattr(owner, name, _between(getattr(owner, name), reached, before, after))

    between(Leadership, "fetched", after="replica.position_told")
    between(Leadership, "propose", after="isr.proposed")
    between(AlterPartitionManager, "alter", after="isr.written")
    between(Acknowledgement, "reached", before="ack.before_send")
    between(Controller, "_write", before="election.before_cas", after="election.cas_done")
    between(ReplicaManager, "_lead", before="leader.before", after="leader.after")
    between(replica_fetcher, "truncate", before="truncate.before")
    between(Journal, "truncate", before="truncate.half")
    between(ReplicaFetcher, "_store", before="follower.before_append")
    between(ReplicaFetcher, "_stored", before="follower.appended")
    between(producing, "claim", after="produce.claimed")
    between(CoordinatorShard, "_append", before="group.before_append", after="group.appended")
    between(CoordinatorShard, "_deliver", before="group.before_answer")
    between(Controller, "mark_deleting", after="topic.marked_deleting")
    between(LogDirectory, "begun", after="registration.incarnation_on_disk")
    between(Registration, "_write_record", after="registration.record_written")
    between(ProducerIdBlocks, "_take_block", after="pid.block_allocated")

    advance = HighWatermark.advance

    def advance_between(self: HighWatermark, offset: int) -> None:
        moves = offset > self.offset
        if moves:
            reached("hw.before_advance")
        advance(self, offset)
        if moves:
            reached("hw.advanced")

    HighWatermark.advance = advance_between  # type: ignore[method-assign]


def _between(
    function: Callable[..., Any], reached: Callable[[str], None], before: str, after: str
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            if before:
                reached(before)
            result = await function(*args, **kwargs)
            if after:
                reached(after)
            return result

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if before:
            reached(before)
        result = function(*args, **kwargs)
        if after:
            reached(after)
        return result

    return called
