"""The cluster of a schedule: what may happen in it, and what must hold."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch
from uuid import UUID

from logstore.cluster import znodes
from logstore.cluster.assignment import begin_reassignment, cancel_reassignment
from logstore.cluster.reconcile import Policy, Preferred, TopicWrite, apply, reconcile
from logstore.cluster.znodes import NO_LEADER, PartitionRegistration
from logstore.cluster.zookeeper import VersionConflictError
from logstore.errors import NetworkError, NotLeaderOrFollowerError, OffsetNotAvailableError
from logstore.filesystem import Buffer
from logstore.journal.frame import Frame, FrameFlags, FrameHeader
from logstore.log.leadership import ACKS_ALL
from logstore.log.producer_state import BATCHES_REMEMBERED
from logstore.log.relocation import relocate_oldest
from logstore.replication.protocol import decode_fetch
from tests.support.replication_model.clients import Client
from tests.support.replication_model.memory_journal import Disk, DiskFault
from tests.support.replication_model.process import Process
from tests.support.replication_model.step_loop import StepLoop, ThreadWork
from tests.support.replication_model.table import Table, read_footer
from tests.support.replication_model.zookeeper import PATH, TOPIC, Request, ZooKeeper

TOPIC_ID = UUID(int=1)
BROKERS = (1, 2, 3, 4)
STEPS = 250
#: No changes of the acts' weights, which are listed below.
ALWAYS: Mapping[str, int] = {}


class BrokenError(AssertionError):
    """An invariant does not hold."""


class Clock:
    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(self._loop.time() * 1000)

    def sleep(self, seconds: float) -> None:
        """Let time stand still, because nothing else runs during a sleep."""

    def monotonic(self) -> float:
        return self._loop.time()


class Link:
    """A connection of a follower to a leader."""

    def __init__(self, cluster: "Cluster", follower: Process, leader: Process) -> None:
        self._cluster = cluster
        self.follower = follower
        self.leader = leader
        self.epoch = follower.broker_epoch
        self.session = leader.fetch_session(follower.broker_id, self.epoch)
        self.is_broken = False
        self.answer: asyncio.Future[Buffer] | None = None

    @property
    def is_stale(self) -> bool:
        return self.follower.broker_epoch != self.epoch

    async def request(self, message_type: Any, body: Any = b"", timeout_s: float | None = None) -> Buffer:
        del message_type, timeout_s
        if self.is_broken:
            raise NetworkError("broken")
        self.answer = asyncio.get_running_loop().create_future()
        self._cluster.wire.append((self, bytes(body), False))
        return await self.answer

    def close(self) -> None:
        self.break_off()

    def break_off(self) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        self._cluster.ended.append(self)
        if self.answer is not None and not self.answer.done() and not self.follower.is_dead:
            self.answer.set_exception(NetworkError("broken"))


class Cluster:
    """A cluster with one partition. ``broken`` names a bug that is planted in the cluster itself; ``weights`` replaces
    the frequency of acts by their names.
    """

    def __init__(
        self, loop: StepLoop, seed: int, *, unclean: bool, broken: str = "", weights: Mapping[str, int] = ALWAYS
    ) -> None:
        self.weights = list(itertools.accumulate(weights.get(act.__name__, weight) for act, weight in _ACTS))
        self.random = chance = random.Random(seed)
        self.unclean = unclean
        self.broken = broken
        self.loop = loop
        self.clock = Clock(self.loop)
        self.topic_id = TOPIC_ID
        self.file_bytes = chance.choice([900, 2_500])
        self.fetched_bytes = chance.choice([140, 300, 1_000])
        self.recent_bytes = chance.choice([0, 400, 10_000])
        self.table = Table(TOPIC_ID)
        self.disks = {broker: Disk() for broker in BROKERS}
        self.next_producer_id = 1 << 32
        replicas = tuple(chance.sample(BROKERS, chance.choice([2, 3, 3, 3])))
        self.min_insync_replicas = chance.choice([1, 1, 2])
        row = PartitionRegistration(replicas[0], 1, replicas, replicas)
        self.zookeeper = ZooKeeper(TOPIC_ID, row)
        self.zookeeper.written = self.row_written
        self.leaders = {1: replicas[0]}
        self.requests: list[Request] = []
        #: Decisions of controllers that are not written yet, with the version on which they were made.
        self.decisions: list[TopicWrite] = []
        self.wire: list[tuple[Link, bytes, bool]] = []
        #: Copies of requests, which come late; and links that have ended without the leader knowing.
        self.copies: list[tuple[Link, bytes]] = []
        self.links: list[Link] = []
        self.ended: list[Link] = []
        self.cut: set[tuple[int, int]] = set()
        #: Work of threads that takes long.
        self.stalled: list[ThreadWork] = []
        self.processes: dict[int, Process] = {}
        self.graveyard: list[Process] = []
        self.client = Client(self)
        #: Acknowledged batches (count and payload), and those that readers have seen (end and payload), by base offset.
        self.acknowledged: dict[int, tuple[int, bytes]] = {}
        self.seen: dict[int, tuple[int, bytes]] = {}
        #: The highest end offset that was returned to readers, by epoch.
        self.told: dict[int, int] = {}
        #: True if records may be lost, because there was an unclean election; ``is_calm``: nothing fails now.
        self.is_lossy = False
        #: The epoch of the last unclean election. Leaders before it promise nothing any more.
        self.unclean_epoch = 0
        self.is_calm = False
        self.trace: list[str] = []
        for broker in BROKERS:
            self.start(broker)
        self.is_calm = True
        self.until(self.is_healed, "not started")
        self.is_calm = False

    # ---- ZooKeeper --------------------------------------------------------------------------------------------------

    @property
    def row(self) -> PartitionRegistration:
        return self.zookeeper.row

    def row_written(self, before: PartitionRegistration, row: PartitionRegistration) -> None:
        if row.leader != NO_LEADER and self.leaders.setdefault(row.leader_epoch, row.leader) != row.leader:
            raise BrokenError(f"C1: {self.leaders[row.leader_epoch]} and {row.leader} lead in epoch {row.leader_epoch}")
        joined = set(row.isr) - set(before.isr)
        if joined and row.leader != before.leader:
            if not self.unclean:
                raise BrokenError("an unclean election")
            # Another history begins, so earlier promises no longer count.
            self.is_lossy = True
            self.unclean_epoch = row.leader_epoch
            for promised in (self.acknowledged, self.seen, self.told):
                promised.clear()
        elif joined:
            self.check_joined(row, joined)
        self.note(f"zk {row}")

    def check_joined(self, row: PartitionRegistration, joined: set[int]) -> None:
        """Check C4: a replica in sync has all acknowledged records, and all that the leader began with."""
        leader = self.processes[row.leader].log
        if not leader.is_leader or leader.leader_epoch != row.leader_epoch or self.processes[row.leader].is_dead:
            return
        needed = max(leader.high_watermark, leader.require_leader().epoch_start)
        for process in (self.processes[broker] for broker in joined):
            if process.is_recovered and process.log.log_end_offset < needed:
                raise BrokenError(f"C4: {process.broker_id} has joined with {process.log}, and {needed} is needed")

    def leads(self, process: Process) -> bool:
        """Return whether the process leads in the newest epoch."""
        return (process.broker_id, process.log.leader_epoch) == (self.row.leader, self.row.leader_epoch)

    def note(self, what: str) -> None:
        if TRACING:
            self.trace.append(f"{self.loop.time():.3f} {what}")
            print(self.trace[-1])

    # ---- processes --------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if not process.is_dead]

    def start(self, broker: int, fault: DiskFault = DiskFault.NONE) -> None:
        """Start the broker; its former processes and registrations are gone."""
        disk = self.disks[broker]
        disk.suffer(fault, self.random)
        is_known = disk.begin(trusted=self.broken == "the file beside a journal is believed")
        if fault is DiskFault.ALL_LOST and self.broken != "a lost disk stays in the ISR":
            is_known = False
        self.zookeeper.brokers.pop(broker, None)
        self.zookeeper.begin(broker, is_known=is_known)
        process = self.processes[broker] = Process(self, broker)
        process.broker_epoch = self.zookeeper.register(broker)
        process.session.view = self.zookeeper.view
        process.start(process.boot)

    def kill(self, process: Process) -> None:
        process.is_dead = True
        process.journal.work.die(self.random)
        self.graveyard.append(process)
        for request in [one for one in self.requests if one.session is process.session]:
            self.requests.remove(request)
            if self.random.random() < 0.5:  # it is on its way
                request.done.cancel()
                self._execute(request, answer_is_lost=True)
        self.loop.threads = [work for work in self.loop.threads if not work.is_dead]
        for link in self.links:
            if process is link.leader or process is link.follower:
                link.break_off()

    def session_ends(self, process: Process) -> None:
        """End the session; the broker learns of it later, and is cut off until then."""
        self.zookeeper.brokers.pop(process.broker_id, None)
        process.session.is_connected = False
        process.cluster_state.has_lease = False
        for request in [one for one in self.requests if one.session is process.session]:
            self.requests.remove(request)
            process.run(request.fail)

    def session_begins(self, process: Process) -> None:
        self.zookeeper.brokers.pop(process.broker_id, None)
        process.broker_epoch = self.zookeeper.register(process.broker_id)
        process.session.is_connected = process.cluster_state.has_lease = True

    def is_running(self, broker: int) -> bool:
        """Return whether ZooKeeper has the broker as running."""
        live = self.zookeeper.brokers.get(broker)
        return live is not None and live.is_running

    def learn(self, process: Process, paths: list[str]) -> None:
        if process.session.is_connected:
            process.session.learn(paths)

    # ---- connections ------------------------------------------------------------------------------------------------

    def connect(self, follower: Process, leader: int) -> Any:
        there = self.processes[leader]
        if there.is_dead or not there.is_recovered or (follower.broker_id, leader) in self.cut:
            raise NetworkError("unreachable")
        if follower.broker_epoch == -1:
            raise NetworkError("not registered")
        link = Link(self, follower, there)
        self.links.append(link)
        return link

    def deliver(self, at: int) -> None:
        link, data, is_answer = self.wire.pop(at)
        if is_answer:
            if not link.is_broken and link.answer is not None and not link.answer.done():
                link.follower.run(link.answer.set_result, data)
            return
        if link.leader.is_dead:
            return
        if self.random.random() < 0.1 and not self.is_calm:
            self.copies.append((link, data))
        link.leader.start(self._serve, link, data)

    async def _serve(self, link: Link, data: bytes) -> None:
        answer = b"".join(await link.session.fetch(decode_fetch(data)))
        self.wire.append((link, answer, True))

    def deliver_copy(self, at: int) -> None:
        """Deliver a request that was answered long ago, or never, over a connection where nobody reads the response."""
        link, data = self.copies.pop(at)
        if link.leader.is_dead:
            return
        session = link.leader.fetch_session(link.follower.broker_id, link.epoch)

        async def serve() -> None:
            await session.fetch(decode_fetch(data))

        link.leader.start(serve)
        if self.random.random() < 0.5:
            link.leader.run(asyncio.get_running_loop().call_later, 0.1, session.close)

    def link_ended(self) -> None:
        """Let the leader notice the end of a connection."""
        link = self.ended.pop(self.random.randrange(len(self.ended)))
        self.links.remove(link)
        if not link.leader.is_dead:
            link.leader.run(link.session.close)

    # ---- the controller ---------------------------------------------------------------------------------------------

    def decide(self) -> None:
        preferred = (
            Preferred.NONE if self.is_calm else self.random.choice([Preferred.NONE, Preferred.NONE, Preferred.ALL])
        )
        policy = Policy(preferred=preferred, unclean={TOPIC} if self.unclean else ())
        self.decisions += reconcile(self.zookeeper.view, {}, policy).writes

    def write_decision(self) -> None:
        write = self.decisions.pop(self.random.randrange(len(self.decisions)))
        row = apply(self.zookeeper.view, [write]).topics[TOPIC].document
        with suppress(VersionConflictError):
            self.zookeeper.write(row, None if self.broken == "versions are not compared" else write.version)

    def reassign(self) -> None:
        if self.random.random() < 0.3:
            self.zookeeper.write_row(cancel_reassignment(self.row))
        else:
            target = self.random.sample(BROKERS, self.random.choice([2, 3]))
            self.zookeeper.write_row(begin_reassignment(self.row, target))

    def _execute(self, request: Request, *, answer_is_lost: bool) -> None:
        request.execute(answer_is_lost=answer_is_lost)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.random
        process = self.processes[chance.choice(BROKERS)]
        act = chance.choices(ACTS, cum_weights=self.weights)[0]
        self.note(f"{act.__name__} {process.broker_id}")
        act(self, process)
        self.go_on()

    def go_on(self) -> None:
        self.loop.run_ready(10_000 if self.random.random() < 0.7 else self.random.randrange(1, 6))
        self.check()

    def act_disk(self, process: Process) -> None:
        at = [one for one in self.alive if one.journal.work.pending]
        if at:
            one = self.random.choice(at)
            if one.journal.work.is_committing and self.random.random() < 0.04:
                one.run(lambda: one.journal.work.fail(full=True))
            else:
                one.run(one.journal.work.do)

    def act_thread(self, process: Process) -> None:
        threads, chance = self.loop.threads, self.random
        if self.stalled and chance.random() < 0.05:
            threads.append(self.stalled.pop(chance.randrange(len(self.stalled))))
        if threads:
            work = threads.pop(chance.randrange(len(threads)))
            if chance.random() < 0.1:
                self.stalled.append(work)
            elif not work.is_dead:
                work.do()

    def act_message(self, process: Process) -> None:
        if self.wire:
            self.deliver(self.random.randrange(len(self.wire)))

    def act_copy(self, process: Process) -> None:
        if self.copies:
            self.deliver_copy(self.random.randrange(len(self.copies)))

    def act_link(self, process: Process) -> None:
        if self.ended and self.random.random() < 0.7:
            self.link_ended()
            return
        if self.random.random() < 0.3 and self.links:
            self.random.choice(self.links).break_off()
            return
        if self.cut and self.random.random() < 0.5:
            self.cut.pop()
            return
        follower, leader = self.random.sample(BROKERS, 2)
        self.cut.add((follower, leader))
        for link in self.links:
            if (link.follower.broker_id, link.leader.broker_id) == (follower, leader):
                link.break_off()

    def act_time(self, process: Process) -> None:
        self.loop.advance()

    def act_learn(self, process: Process) -> None:
        if not process.is_dead:
            paths = [[PATH], [znodes.BROKER_IDS], [PATH, znodes.BROKER_IDS]]
            self.learn(process, self.random.choice(paths))

    def act_request(self, process: Process) -> None:
        if self.requests:
            request = self.requests.pop(self.random.randrange(len(self.requests)))
            if self.random.random() < 0.05:
                request.fail()
            else:
                self._execute(request, answer_is_lost=self.random.random() < 0.1)

    def act_decide(self, process: Process) -> None:
        if self.random.random() < 0.5 or not self.decisions:
            self.decide()
        if self.decisions and self.random.random() < 0.8:
            self.write_decision()

    def act_produce(self, process: Process) -> None:
        if self.row.leader != NO_LEADER and self.random.random() < 0.7:
            process = self.processes[self.row.leader]
        if not process.is_dead and process.is_ready:
            self.client.produce(process)

    def act_roll(self, process: Process) -> None:
        if self.row.leader != NO_LEADER and self.random.random() < 0.7:
            process = self.processes[self.row.leader]
        if not process.is_dead and process.is_ready:
            process.start(process.roller.roll, process.topic)

    def act_relocate(self, process: Process) -> None:
        if not process.is_dead and process.is_ready:
            process.start(relocate_oldest, process.journal, lambda _: process.log.active_segment, 1 << 20)

    def act_refresh(self, process: Process) -> None:
        if not process.is_dead and process.is_ready:
            process.start(process.roller.refresh, process.topic)

    def act_session_end(self, process: Process) -> None:
        if process.is_dead or not process.session.is_connected:
            return
        if self.random.random() < 0.3 and process.broker_id in self.zookeeper.brokers:
            self.zookeeper.stop_running(process.broker_id)
        else:
            self.session_ends(process)

    def act_session_begin(self, process: Process) -> None:
        for one in self.alive:
            if not self.is_running(one.broker_id):
                self.session_begins(one)
                return

    def act_kill(self, process: Process) -> None:
        if not process.is_dead:
            self.kill(process)
            if self.random.random() < 0.7:
                self.zookeeper.brokers.pop(process.broker_id, None)

    def act_start(self, process: Process) -> None:
        dead = [broker for broker, process in self.processes.items() if process.is_dead]
        if dead:
            fault = self.random.choice(list(DiskFault)) if self.random.random() < 0.4 else DiskFault.NONE
            self.start(self.random.choice(dead), fault)

    def act_keep_image(self, process: Process) -> None:
        process.disk.keep_image()

    def act_reassign(self, process: Process) -> None:
        self.reassign()

    # ---- invariants -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.loop.errors:
            raise self.loop.errors[0]
        for process in self.processes.values():
            if process.is_dead or not process.is_recovered:
                continue
            log = process.log
            ends = log.sealed_offset, log.high_watermark, log.log_end_offset, log.next_offset
            if ends != process.checked and not log.active_segment.is_truncating:
                log.check()
                if log.sealed_offset > self.table.sealed:
                    raise BrokenError(f"C10: {process.broker_id} has {log}, the table ends at {self.table.sealed}")
                process.checked = ends
            if log.is_leader and process.shown != (log.leader_epoch, log.high_watermark):
                self.look(process)

    def look(self, process: Process) -> None:
        """Read from the leader what is new, and its end offset, as a reader does."""
        log = process.log
        if log.leader_epoch < self.unclean_epoch:
            return
        epoch, begin = process.shown
        if epoch != log.leader_epoch:
            begin = max(0, log.high_watermark - 6)
        process.shown = log.leader_epoch, log.high_watermark
        for frame in log.index.frames(max(begin, log.sealed_offset), log.high_watermark):
            (stored,) = process.journal.read_many([frame.location])
            self.see(frame.base_offset, frame.end_offset, bytes(stored.payload))
        try:
            log.require_leader().require_settled()
        except (NotLeaderOrFollowerError, OffsetNotAvailableError):
            return
        told = max((end for epoch, end in self.told.items() if epoch < log.leader_epoch), default=0)
        if log.high_watermark < told:
            raise BrokenError(f"the end offset fell from {told}: {log}")
        self.told[log.leader_epoch] = max(self.told.get(log.leader_epoch, 0), log.high_watermark)

    def see(self, base: int, end: int, payload: bytes) -> None:
        before = self.seen.setdefault(base, (end, payload))
        if before != (end, payload):
            raise BrokenError(f"readers have seen {before} at {base}, and see {payload!r}")

    def require_enough(self, process: Process, acks: int) -> None:
        """Check that enough replicas are in sync when an append is accepted."""
        in_sync = process.log.require_leader().in_sync_replicas
        if in_sync is None or acks != ACKS_ALL:
            return
        if len(in_sync.committed) < min(self.min_insync_replicas, len(in_sync.replicas)):
            raise BrokenError(f"C13: an append was taken by {in_sync.committed}")

    def acknowledge(self, epoch: int, base: int, count: int, payload: bytes) -> None:
        """Check an acknowledgement with acks=all by the leader of an epoch."""
        found = sum(payload in disk.ever for disk in self.disks.values())
        wanted = min(self.min_insync_replicas, len(self.row.target))
        if found < wanted and base >= self.table.sealed:
            raise BrokenError(f"C13: {payload!r} was acknowledged by {found} brokers")
        if epoch >= self.unclean_epoch:
            self.acknowledged[base] = count, payload

    # ---- the end ----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let everything arrive that is on its way; no time passes."""
        for _ in range(10_000):
            self.loop.run_ready()
            self.check()
            if self.wire:
                self.deliver(0)
            elif self.ended:
                self.link_ended()
            elif self.loop.threads:
                self.loop.threads.pop(0).do()
            elif self.requests:
                self._execute(self.requests.pop(0), answer_is_lost=False)
            else:
                at = [one for one in self.alive if one.journal.work.pending]
                if not at:
                    return
                for one in at:
                    one.run(one.journal.work.do)
        raise BrokenError("messages without an end")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Let time pass until ``holds``. Raises BrokenError if that takes too long."""
        end = self.loop.time() + 20.0
        while True:
            self.drain()
            self.decisions.clear()
            self.decide()
            while self.decisions:
                self.write_decision()
            for process in self.alive:
                self.learn(process, [PATH, znodes.BROKER_IDS])
            self.drain()
            if holds():
                return
            if self.loop.time() > end:
                logs = {process.broker_id: process.log for process in self.alive}
                raise BrokenError(f"{what}: {self.row} {logs}")
            self.loop.advance()

    def heal(self) -> bool:
        """End all faults. Return False if no replica in sync has a disk, so that there is no leader."""
        self.is_calm = True
        self.copies.clear()
        self.cut.clear()
        self.loop.threads += [work for work in self.stalled if not work.is_dead]
        for broker, process in list(self.processes.items()):
            if process.is_dead:
                self.start(broker)
            elif not process.session.is_connected or not self.is_running(broker):
                self.session_begins(process)
        if not self.row.isr and not self.unclean:
            return False
        self.until(self.is_healed, "not healed")
        self.client.flush()
        self.until(self.is_healed, "not healed after the last appends")
        self.until(self.is_rolled, "not rolled")
        return True

    @property
    def replicas(self) -> list[Process]:
        return [self.processes[broker] for broker in self.row.replicas]

    def is_healed(self) -> bool:
        row = self.row
        if row.leader == NO_LEADER or row.recovering or row.adding or row.removing:
            return False
        if set(row.isr) != set(row.replicas):
            return False
        leader = self.processes[row.leader].log
        if not leader.is_leader or not leader.require_leader().is_settled:
            return False
        end = leader.log_end_offset
        return all(
            one.is_ready and (one.log.log_end_offset, one.log.high_watermark, one.log.next_offset) == (end, end, end)
            for one in self.replicas
        )

    def is_rolled(self) -> bool:
        leader = self.processes[self.row.leader]
        end = leader.log.log_end_offset
        if leader.log.sealed_offset < end and not leader.roller.is_busy:
            leader.start(leader.roller.roll, leader.topic)
        return self.table.sealed == end and all(one.log.sealed_offset == end for one in self.replicas)

    def frames_of(self, process: Process) -> list[Frame]:
        log = process.log
        frames = process.journal.read_many(
            [f.location for f in log.index.frames(log.sealed_offset, log.log_end_offset)]
        )
        return [
            Frame(f.header._replace(flags=f.header.flags & ~FrameFlags.RELOCATED), bytes(f.payload)) for f in frames
        ]

    def compare(self) -> None:
        """Check that all replicas are equal, and that the table and the tail together have all acknowledged records."""
        leader = self.processes[self.row.leader]
        base = max(one.log.sealed_offset for one in self.replicas)
        tails = {
            one.broker_id: [frame for frame in self.frames_of(one) if frame.header.end_offset > base]
            for one in self.replicas
        }
        if any(tail != tails[leader.broker_id] for tail in tails.values()):
            raise BrokenError(f"C15: replicas differ: {tails}")
        frames = [Frame(f.header, bytes(f.payload)) for f in self.table.frames]
        frames += [f for f in tails[leader.broker_id] if f.header.base_offset >= self.table.sealed]
        at = epoch = 0
        for header, _ in frames:
            if header.base_offset != at:
                raise BrokenError(f"a hole at {at}: {header}")
            if header.leader_epoch < epoch:
                raise BrokenError(f"epochs fall at {at}")
            at, epoch = header.end_offset, header.leader_epoch
        if at != leader.log.log_end_offset:
            raise BrokenError(f"the log ends at {at}, not at {leader.log}")
        payloads = [payload for _, payload in frames]
        if len(set(payloads)) < len(payloads):
            twice = [payload for payload in payloads if payloads.count(payload) > 1]
            raise BrokenError(f"C16: stored twice: {twice}")
        for offset, (_, payload) in self.seen.items():
            if payload not in set(payloads):
                raise BrokenError(f"readers have seen {payload!r} at {offset}, and it is gone")
        by_base = {header.base_offset: (header.record_count, payload) for header, payload in frames}
        for offset, stored in self.acknowledged.items():
            if by_base.get(offset) != stored:
                raise BrokenError(f"{stored} was acknowledged at {offset}, where {by_base.get(offset)} is")
        self.compare_states(leader, [header for header, _ in frames])

    def compare_states(self, leader: Process, headers: Sequence[FrameHeader]) -> None:
        """Check C16: each new leader knows the same epochs and producers, namely those in the frames."""
        epochs = leader.log.state.leader_epochs.entries
        for process in self.replicas:
            state = process.log.state
            if state.leader_epochs.entries != epochs:
                raise BrokenError(
                    f"C16: {process.broker_id} has the epochs {state.leader_epochs.entries}, not {epochs}"
                )
            for producer in self.client.producer_ids if not self.unclean else ():
                of_producer = [header for header in headers if header.identity.owner == producer]
                told = [(*one.identity, one.base_offset) for one in of_producer]
                told = [one for one in told if one[1] == told[-1][1]][-BATCHES_REMEMBERED:]
                known = [(*batch[:3], batch.base_offset) for batch in state.producers.known(producer)]
                if [one for one in known if one[1] == known[-1][1]] != told:
                    raise BrokenError(f"C16: {process.broker_id} has {known} of a producer, the frames tell {told}")
            for producer in self.client.producer_ids:
                here, there = state.producers.known(producer), leader.log.state.producers.known(producer)
                if here[-1:] != there[-1:] and here and there:
                    raise BrokenError(f"C16: {process.broker_id} has {here} of a producer, not {there}")
                forgotten = min(state.producers.evicted_up_to, leader.log.state.producers.evicted_up_to)
                if (
                    bool(here) != bool(there)
                    and max(state.producers.evicted_up_to, leader.log.state.producers.evicted_up_to) < producer
                ):
                    raise BrokenError(f"C16: {process.broker_id} has {here} of a producer, not {there}, {forgotten}")


_ACTS: list[tuple[Callable[[Cluster, Process], None], int]] = [
    (Cluster.act_disk, 26),
    (Cluster.act_thread, 8),
    (Cluster.act_message, 26),
    (Cluster.act_copy, 2),
    (Cluster.act_link, 3),
    (Cluster.act_time, 22),
    (Cluster.act_learn, 12),
    (Cluster.act_request, 14),
    (Cluster.act_decide, 6),
    (Cluster.act_produce, 24),
    (Cluster.act_roll, 4),
    (Cluster.act_relocate, 8),
    (Cluster.act_refresh, 1),
    (Cluster.act_session_end, 3),
    (Cluster.act_session_begin, 4),
    (Cluster.act_kill, 3),
    (Cluster.act_keep_image, 1),
    (Cluster.act_start, 6),
    (Cluster.act_reassign, 1),
]
ACTS = [act for act, _ in _ACTS]
TRACING = False


class _Log:
    """Logs nothing, but raises an error for what a follower cannot explain."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def debug(self, *args: Any, **facts: Any) -> None: ...

    info = warning = debug

    def error(self, event: str, **facts: Any) -> None:
        if event in {"replica.bad_frames", "partition.quarantined", "journal_failed"}:
            raise BrokenError(f"{event} {facts}")

    def exception(self, event: str, **facts: Any) -> None:
        import sys

        raise BrokenError(f"{event} {facts}") from sys.exc_info()[1]


@contextmanager
def modelled() -> Iterator[None]:
    """Let the product's modules use the model's table, and log nothing."""
    quiet = _Log()
    names = [
        "logstore.log.newest_footers.log",
        "logstore.log.roller.log",
        "logstore.log.topic.log",
        "logstore.broker.replica_manager.log",
        "logstore.cluster.zookeeper_cluster_state.log",
        "logstore.broker.topics.recovery.log",
        "logstore.replication.replica_fetcher.log",
        "logstore.journal.journal._log",
    ]
    patches = [patch(name, quiet) for name in names]
    patches.append(patch("logstore.log.newest_footers.read_footer", read_footer))
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def run(
    seed: int, *, unclean: bool, broken: str = "", weights: Mapping[str, int] = ALWAYS, steps: int = STEPS
) -> Cluster:
    """Run one schedule, inside ``modelled``. Raises AssertionError if a rule is broken."""
    loop = StepLoop()
    with loop.running():
        cluster = Cluster(loop, seed, unclean=unclean, broken=broken, weights=weights)
        for _ in range(steps):
            cluster.step()
        if cluster.heal():
            cluster.compare()
    return cluster
