"""Replication on random schedules: a partition with replicas on three of four brokers, with crashes, cuts, late and
repeated messages, lost disks, reassignments, clean and unclean elections (``tests/support/replication_model``).

Acknowledged records stay, whichever broker leads; nothing is stored twice; end offsets never fall; replicas become
equal;
and the cluster always recovers. Each rule (C1 to C16), broken on purpose, makes a schedule fail. A failure names its
seed: ``run(seed, unclean=...)`` in ``modelled()`` repeats that schedule.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from logstore.broker.replica_manager import ReplicaManager
from logstore.cluster import reconcile
from logstore.cluster.alter_partition_manager import _Change
from logstore.errors import LogStoreError
from logstore.journal.frame import Frame
from logstore.log.frame_index import FrameIndex
from logstore.log.in_sync_replicas import InSyncReplicas
from logstore.log.leader_epochs import LeaderEpochs
from logstore.log.leadership import Leadership
from logstore.log.partition_log import PartitionLog
from logstore.log.partition_log_state import PartitionLogState
from logstore.log.relocation import relocate_oldest
from logstore.log.table_follower import TableFollower
from logstore.replication import fetch_session, replica_fetcher
from logstore.replication.fetch_session import _Row
from logstore.replication.replica_fetcher import ReplicaFetcher
from tests.support.examples import examples
from tests.support.replication_model import cluster as model
from tests.support.replication_model import process
from tests.support.replication_model.cluster import modelled, run
from tests.support.replication_model.memory_journal import DiskWork
from tests.support.replication_model.table import Table
from tests.support.rewritten import rewritten

#: The number of shards, with 600 schedules each.
SHARDS = 20


def check_seeds(first: int, count: int, *, unclean: bool) -> None:
    with modelled():
        for seed in range(first, first + count):
            try:
                run(seed, unclean=unclean)
            except Exception as error:
                raise AssertionError(f"seed {seed}, unclean={unclean}: {error!r}") from error


@pytest.mark.parametrize("unclean", [False, True])
def test_no_schedule_breaks_a_rule(unclean: bool) -> None:
    check_seeds(0, examples(300), unclean=unclean)


@pytest.mark.parametrize(
    ("seed", "unclean"),
    [
        pytest.param(1_511, False, id="a cut journal lacks frames that were copied forward"),
        pytest.param(9_716, False, id="the same, and the leader has what is behind the hole"),
        pytest.param(1_447, True, id="the same, and the broker leads after an unclean election"),
        pytest.param(10_876, False, id="a leader takes a later batch for the first one of a producer"),
    ],
)
def test_schedules_that_have_broken_a_rule(seed: int, unclean: bool) -> None:
    check_seeds(seed, 1, unclean=unclean)


@pytest.mark.long
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("unclean", [False, True])
def test_no_schedule_of_many_breaks_a_rule(unclean: bool, shard: int) -> None:
    check_seeds(1_000 + shard * 600, 600, unclean=unclean)


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def same_epoch(row: Any, leader: int, isr: Any) -> Any:
    return replace(row, leader=leader, isr=tuple(isr))


def recovering_no_more(row: Any, leader: int, isr: Any) -> Any:
    return replace(row, leader=leader, leader_epoch=row.leader_epoch + 1, isr=tuple(isr), recovering=False)


def over_any_state(self: Any, view: Any, document: Any, leader: int) -> Any:
    row = document.partitions[0]
    return replace(row, isr=tuple(one for one in self.isr if one in row.replicas), recovering=False)


def own_append_time(buffer: Any) -> Any:
    frames = split_frames(buffer)
    return [
        Frame(frame.header._replace(append_time_ms=frame.header.append_time_ms + 1), frame.payload) for frame in frames
    ]


def all_that_is_led(self: Any) -> None:
    self.log.require_leader()


split_frames = replica_fetcher.split_frames
high_watermark = InSyncReplicas.high_watermark
BOTH = "for broker in self.committed if self.proposed is None else {*self.committed, *self.proposed}:"

#: By name: the object, its attribute, and the broken replacement; or the name of a bug of the modelled cluster.
PLANTED: dict[str, tuple[Any, str, Any] | str] = {
    "C1: an election without a new epoch": (reconcile, "_lead", same_epoch),
    "C2: a controller that was replaced writes": "versions are not compared",
    "C3: only the former ISR counts": (
        InSyncReplicas,
        "high_watermark",
        rewritten(high_watermark, (BOTH, "for broker in self.committed:")),
    ),
    "C3: only the proposed ISR counts": (
        InSyncReplicas,
        "high_watermark",
        rewritten(high_watermark, (BOTH, "for broker in self.proposed or self.committed:")),
    ),
    "C3: fetches of other epochs count": (_Row, "require_answerable", all_that_is_led),
    "C3: too few replicas acknowledge": (
        InSyncReplicas,
        "high_watermark",
        rewritten(high_watermark, ("if not self.has_enough:", "if False:")),
    ),
    "C3: a former leader moves the high watermark": (Leadership, "end", Leadership.fail),
    "C4: a replica joins wherever it is": (
        InSyncReplicas,
        "may_join",
        rewritten(InSyncReplicas.may_join, ("max(high_watermark, epoch_start)", "0")),
    ),
    "C4: a replica joins below the epoch's start": (
        InSyncReplicas,
        "may_join",
        rewritten(InSyncReplicas.may_join, ("max(high_watermark, epoch_start)", "high_watermark")),
    ),
    "C5: a leader writes over any state": (_Change, "row", over_any_state),
    "C6: a group is told before it is durable": (DiskWork, "tells_early", True),
    "C7: positions are not compared": (fetch_session, "diverged_at", lambda *_: None),
    "C7: epochs are not compared": (
        fetch_session,
        "diverged_at",
        lambda log, position, last: None if position <= log.log_end_offset else (last, log.log_end_offset),
    ),
    "C7: stale answers count": (
        ReplicaFetcher,
        "_apply",
        rewritten(
            ReplicaFetcher._apply,
            ("self._by_index.get(row.session_index)", "next(iter(self._followed.values()), None)"),
            ("followed is None or not followed.is_as_asked", "followed is None or followed.log.is_leader"),
            ("if not followed.is_as_asked", "if followed.log.is_leader"),
        ),
    ),
    "C7: a follower truncates to the high watermark": (
        replica_fetcher,
        "truncation_end",
        lambda log, _, __: min(log.high_watermark, log.log_end_offset),
    ),
    "C8: recovery brings truncated frames back": (
        FrameIndex,
        "settle",
        rewritten(FrameIndex.settle, ("if truncations else", "if False else")),
    ),
    "C8: files are freed for a truncation that may fail": (
        model,
        "relocate_oldest",
        rewritten(
            relocate_oldest,
            ("or keeper.is_truncating", ""),
            ("if any(", "if False and any("),
            ("if keeper.index.holds(frame)]", "if not keeper.is_truncating]"),
        ),
    ),
    "C9: a new leader tells its end at once": (Leadership, "require_settled", lambda _: None),
    "C10: a roll takes what others may not have": (
        PartitionLog,
        "rollable_end",
        property(lambda self: self.log_end_offset),
    ),
    "C10: the last roll of the leader before is not adopted": (TableFollower, "_adopt", lambda *_: None),
    "C11: an unclean leader does not read the table": (
        ReplicaManager,
        "partition_changed",
        rewritten(
            ReplicaManager.partition_changed, ("state.leader == me and not state.recovering", "state.leader == me")
        ),
    ),
    "C11: an unclean leader does not fence": (Table, "begin_epoch", lambda self, *_: self.current.version),
    "C11: an unclean leader keeps what disagrees": (
        ReplicaManager,
        "_agrees",
        rewritten(ReplicaManager._agrees, ("if sealed == 0 or sealed < partition_log.sealed_offset:", "if True:")),
    ),
    "C11: the next leader need not read the table": (reconcile, "_lead", recovering_no_more),
    "C12: a broker that has lost its disk stays in the ISR": "a lost disk stays in the ISR",
    "C12: a broker that has lost its journal alone stays in the ISR": "the file beside a journal is believed",
    "C12: a broker that was started again joins for what it was": (_Change, "joining", property(lambda _: [])),
    "C12: records that a journal has lost count as sealed": (process, "end_at_holes", lambda *_: []),
    "C13: appends are taken with too few replicas": (Leadership, "refusal", lambda *_: None),
    "C15: a follower has append times of its own": (replica_fetcher, "split_frames", own_append_time),
    "C16: a log that begins at the table knows no producers": (
        PartitionLogState,
        "replace",
        rewritten(PartitionLogState.replace, ("newest.producers if newest else ()", "()")),
    ),
    "C16: snapshots know no producers": (
        PartitionLogState,
        "snapshot",
        rewritten(PartitionLogState.snapshot, ("producers=self.producers.pack()", 'producers=b""')),
    ),
    "C16: truncated batches count as stored": (
        PartitionLogState,
        "truncate",
        rewritten(PartitionLogState.truncate, ("self.producers.forget_from(offset)", "pass")),
    ),
    "C16: truncated epochs are remembered": (LeaderEpochs, "truncate", lambda *_: None),
}


#: Weights of the actions for bugs that the usual weights rarely show.
WEIGHTS = {
    "C8: files are freed for a truncation that may fail": {"act_relocate": 30, "act_link": 8, "act_learn": 20},
    "C11: an unclean leader keeps what disagrees": {
        "act_session_end": 12,
        "act_session_begin": 12,
        "act_decide": 16,
        "act_roll": 12,
        "act_link": 20,
        "act_learn": 24,
        "act_reassign": 0,
        "act_kill": 0,
    },
    "C12: a broker that was started again joins for what it was": {"act_kill": 8, "act_start": 14},
}


#: The first seed to try, for a bug that only one schedule in a thousand shows.
FIRST_SEEDS = {
    "C3: only the former ISR counts": 48,
    "C10: the last roll of the leader before is not adopted": 116,
    "C12: records that a journal has lost count as sealed": 1_500,
}


def seed_that_notices(
    name: str, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> tuple[int, bool, BaseException] | None:
    planted = PLANTED[name]
    if not isinstance(planted, str):
        monkeypatch.setattr(*planted)
    with modelled():
        for seed in seeds:
            for unclean in (False, True):
                try:
                    run(
                        seed,
                        unclean=unclean,
                        broken=planted if isinstance(planted, str) else "",
                        weights=WEIGHTS.get(name, {}),
                    )
                except (Exception, LogStoreError) as error:  # noqa: BLE001
                    return seed, unclean, error
    return None


#: Bugs that take many schedules to show.
RARE = (
    "C4: a replica joins below",
    "C7: stale answers",
    "C8: ",
    "C10: a roll",
    "C11: ",
    "C12: a broker that was started",
)


def of_its_lane(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.long if name.startswith(RARE) else ())


@pytest.mark.parametrize("name", [of_its_lane(name) for name in PLANTED])
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = FIRST_SEEDS.get(name, 0)
    found = seed_that_notices(name, monkeypatch, range(first, first + 3_000))
    assert found is not None, f"no schedule notices: {name}"
    print(found)
