"""What goes wrong in the simulated world, drawn by the seed.

A fault is a coroutine of ``Nemesis``: it strikes, lets the world go on for a while, and takes back what it ordered.
"""

import asyncio
import contextlib
import enum
import errno
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.faults.bench.table_entries import lost_entries, table_entries
from tests.simulation.clients import TopicSpec
from tests.simulation.cluster import Cluster
from tests.simulation.erasing import STEPS
from tests.simulation.history import History
from tests.simulation.node import Node
from tests.simulation.site import Site

#: Calls on files of the journal whose failure is final: a restart reads what is there.
_JOURNAL_CALLS = ("journal.write_at", "journal.fdatasync", "journal.create", "journal.allocate")
#: Calls on files of tables, which are tried again.
_TABLE_CALLS = (
    "segment.write_at",
    "segment.fdatasync",
    "segment.create",
    "segment.open_read",
    "segment.read_into",
    "delta.write_at",
    "delta.link",
    "delta.sync_directory",
)
#: Points and calls at which a process dies.
_DEATHS = (
    "journal.write_at",
    "journal.fdatasync",
    "journal.create",
    "journal.unlink",
    "segment.create",
    "segment.write_at",
    "segment.fdatasync",
    "delta.create",
    "delta.link",
    "delta.fdatasync",
    "delta.sync_directory",
    *STEPS,
)
#: Methods of ``Nemesis`` with their weights.
Kinds = tuple[tuple[Callable[[], Awaitable[None]], int], ...]
_LOOK_S = 0.1
#: A start that other faults disturb is tried so often.
_STARTS = 30


class Strand(enum.IntEnum):
    """Faults that come one after the other; one of each strand may last at the same time."""

    PROCESSES = 0
    MACHINES = 1
    CONNECTIONS = 2


class Nemesis:
    """A strand of faults. What it orders may end early, or fail, because of the others."""

    def __init__(
        self,
        site: Site,
        history: History,
        topics: Sequence[TopicSpec],
        seed: str,
        only: frozenset[int] | None,
        kind: str | None,
        strand: Strand,
        strands: "list[Nemesis]",
    ) -> None:
        """``only``: the numbers of the faults that strike, None for all; ``kind``: a method, for faults of one kind,
        which then strike as processes do. ``strands``: all of the world, this one among them.
        """
        self._site, self._history, self._seed, self._only = site, history, seed, only
        self._strand, self._strands = strand, strands
        strands.append(self)
        #: The one that a fault strikes.
        self._node = site.nodes[0]
        self._rng = random.Random()
        #: Some worlds have much to suffer, others time to roll, to merge and to forget.
        self._pause_s = random.Random(seed).choice([0.1, 0.1, 0.3, 1.0])
        if strand is Strand.MACHINES:
            self._pause_s *= 0.3  # each of them is short, and takes nobody away
        #: The numbers of the faults that have struck, which are those of the strand.
        self.struck: list[int] = []
        #: Whether a fault of this strand lasts.
        self.is_striking = False
        #: Whether the fault goes on as long as its own cuts of connections do.
        self.needs_its_cuts = False
        #: Whether no node has run since the last one was told to start.
        self._is_out = False
        self._starting: dict[Node, asyncio.Task[None]] = {}
        self._names = [topic.name for topic in topics]
        self._logs = [(topic.name, partition) for topic in topics for partition in range(topic.partitions)]
        self.faults: Counter[str] = Counter()
        #: What nobody should see.
        self.broken: list[str] = []
        self.is_ending = False
        self._kinds: Kinds = (self._of_processes, self._of_machines, self._of_connections)[strand]()
        self._ends = {strand}
        if kind is not None:
            self._kinds = ((getattr(self, kind), 1),) if strand is Strand.PROCESSES else ()
            self._ends = set(Strand)

    def _of_processes(self) -> Kinds:
        kinds: Kinds = (
            (self.kill, 3),
            (self.kill_at_a_call, 6),
            (self.power_cut, 4),
            (self.stop, 2),
            (self.journal_error, 3),
            (self.journal_bit_flip, 1),
        )
        if self._site.cluster is not None:
            kinds += ((self.kill_all, 2), (self.cut_off_and_kill, 10), (self.lose_journal, 3), (self.lose_disk, 2))
        return kinds

    def _of_machines(self) -> Kinds:
        return (
            (self.table_error, 6),
            (self.full_disk, 2),
            (self.slow_disk, 1),
            (self.clock_step, 2),
            (self.clock_drift, 2),
            (self.stall, 1),
            (self.segment_bit_flip, 2),
        )

    def _of_connections(self) -> Kinds:
        if self._site.cluster is None:
            return ((self.break_clients, 2),)
        return (
            (self.break_clients, 3),
            (self.cut_off, 2),
            (self.cut_from_brokers, 3),
            (self.cut_from_zookeeper, 3),
            (self.break_connections, 4),
            (self.zookeeper_down, 1),
            (self.zookeeper_elects, 1),
            (self.zookeeper_splits, 1),
            (self.session_ends, 2),
            (self.client_ends, 1),
            (self.answers_lost, 1),
        )

    async def run(self) -> None:
        """Strike until ``is_ending``. Each fault has chance of its own, so that others can be left out."""
        if not self._kinds:
            return
        strikes, weights = zip(*self._kinds, strict=True)
        for number in itertools.count(self._strand, len(Strand)):
            self._rng = random.Random(f"{self._seed} fault {number}")
            await asyncio.sleep(self._rng.uniform(0.02, 1) * self._pause_s)
            await self._until_up()
            if self.is_ending:
                break
            (strike,) = self._rng.choices(strikes, weights)
            if self._only is not None and number not in self._only:
                continue
            self.struck.append(number)
            self._node = self._rng.choice(self._up)
            self.is_striking = True
            await strike()
            await self._until_cuts_end()
            self._take_back()
            self.is_striking = False
        await self._all_started()

    async def _until_up(self) -> None:
        """Wait for a node to strike; a process only if most of them are there, so that there is something to lose."""
        least = (len(self._site.nodes) + 1) // 2 if self._strand is Strand.PROCESSES else 1
        while not self.is_ending and len(self._up) < least:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_LOOK_S)

    async def _until_cuts_end(self) -> None:
        """Before connections are healed, wait for another fault that needs its cuts: all are healed at once."""
        others = [one for one in self._strands if one is not self]
        while self._strand is Strand.CONNECTIONS and any(one.needs_its_cuts for one in others):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    @property
    def _up(self) -> list[Node]:
        return [node for node in self._site.nodes if node.is_up]

    def _take_back(self) -> None:
        """End what a fault has ordered; nodes that it ended begin to start."""
        if Strand.MACHINES in self._ends:
            self._node.disk.heal(points=False)
            self._node.process.slowness = 1.0
        if Strand.CONNECTIONS in self._ends and self._site.cluster is not None:
            self._site.cluster.heal()
        self._history.tell("nemesis", "heal")
        if Strand.PROCESSES in self._ends:
            for node in self._site.nodes:
                if not node.is_up and node not in self._starting:
                    task = self._starting[node] = asyncio.create_task(self._start(node))
                    task.add_done_callback(lambda _, node=node: self._starting.pop(node))

    async def heal(self) -> None:
        """All nodes work, and nothing is ordered any more."""
        if self._site.cluster is not None:
            self._site.cluster.heal()
        for node in self._site.nodes:
            node.disk.heal()
            node.process.slowness = 1.0
        await self.start()
        self._history.tell("nemesis", "heal")

    async def start(self) -> None:
        """Start the nodes that are down."""
        await self._all_started()
        await asyncio.gather(*(self._start(node) for node in self._site.nodes if not node.is_up))

    async def _all_started(self) -> None:
        await asyncio.gather(*self._starting.values())

    async def _start(self, node: Node) -> None:
        """Start a node; again if something around it may have kept it from starting."""
        self._is_out |= not self._up
        for _ in range(_STARTS):
            undisturbed = self._undisturbed()
            error = await node.start()
            if error is None:
                break
            if undisturbed():
                self.broken.append(f"a healed node does not start: {error!r}")
                raise AssertionError(self.broken[-1])
            await asyncio.sleep(_LOOK_S)
        else:
            raise AssertionError(f"{_STARTS} starts of a node fail: {error!r}")
        if self._is_out:
            self._is_out = False
            self._history.tell("nemesis", "start")

    def _undisturbed(self) -> Callable[[], bool]:
        """Return what says later whether the other strands have not struck since now."""
        others = [one for one in self._strands if one is not self]
        before = [None if one.is_striking else len(one.struck) for one in others]
        return lambda: before == [None if one.is_striking else len(one.struck) for one in others] and None not in before

    def _told(self, kind: str, **fields: object) -> None:
        self.faults[kind] += 1
        self._history.tell("nemesis", "fault", kind=kind, **fields)

    def _ordered(self, kind: str, injected: str) -> Callable[[], None]:
        """Tell of a fault that a call will meet, and the disk will call ``injected``. It counts when what is returned
        is called, if it has struck.
        """
        disk, before = self._node.disk, len(self._node.disk.injected)
        self._history.tell("nemesis", "fault", kind=kind)

        def count() -> None:
            if any(injected in one for one in disk.injected[before:]):
                self.faults[kind] += 1

        return count

    async def _last(self, seconds: float) -> None:
        """Let the world go on, mostly for a small part of ``seconds``."""
        await asyncio.sleep(self._rng.uniform(0, seconds) * self._rng.choice([0.02, 0.1, 0.4]))

    # ---- processes --------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        self._told("kill")
        self._node.kill()
        await self._last(0.5)

    async def kill_at_a_call(self) -> None:
        """The process dies in the middle of a protocol; or, if it does not get there, some time later."""
        call, nth = self._rng.choice(_DEATHS), self._rng.choice([1, 1, 2, 3, 5])
        self._told("kill_at")
        dead = asyncio.Event()
        loop = asyncio.get_running_loop()

        def die(_: str) -> None:
            self._node.process.kill()
            loop.call_soon(dead.set)

        self._node.disk.at(call, die, nth=nth)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(dead.wait(), self._rng.uniform(0.1, 1))
        if self._rng.random() < 0.3:
            self._cut_power()
        else:
            self._node.kill()
        # The next start may die, too.
        if self._rng.random() < 0.3:
            self._told("kill_in_start")
            call = self._rng.choice(["journal.open_read", *_DEATHS])
            self._node.disk.at(call, lambda _: self._node.process.kill(), nth=self._rng.choice([1, 2, 4]))
            await self._node.start()
            self._node.kill()

    async def power_cut(self) -> None:
        self._told("power_cut")
        self._cut_power()
        await self._last(0.5)

    def _cut_power(self) -> None:
        before = table_entries(self._node.data, self._names)
        self._node.power_cut(strict=self._rng.random() < 0.3)
        for topic, version, left in lost_entries(before, table_entries(self._node.data, self._names)):
            # The checker knows whether anybody was told of them.
            self._told("entry_lost", topic=topic, version=version, left=left)

    async def restart(self) -> None:
        """Stop and start all nodes."""
        for node in self._site.nodes:
            self._node = node
            await self.stop()
        await self.start()

    async def stop(self) -> None:
        self._told("terminate")
        undisturbed = self._undisturbed()
        if (error := await self._node.stop()) and undisturbed():
            self.broken.append(f"SIGTERM ended a healthy node with {error!r}")

    async def stall(self) -> None:
        """Threads get little time."""
        self._told("stall")
        self._node.process.slowness = self._rng.choice([10.0, 100.0, 500.0])
        await self._last(3)

    async def clock_step(self) -> None:
        self._told("clock", offset_ms=(step := self._rng.choice([-3_600_000, -5_000, 2_000, 3_600_000])))
        self._node.clock.offset_ms += step
        await self._last(1)

    async def clock_drift(self) -> None:
        """The clocks of a machine run faster or slower than those of others, as they do until somebody sets them."""
        rate, seconds = self._rng.choice([0.95, 0.98, 1.02, 1.05]), self._rng.uniform(0.05, 0.6)
        self._told("clock_drift", offset_ms=round((rate - 1) * seconds * 1000))
        self._node.clock.drift(rate)
        await asyncio.sleep(seconds)
        self._node.clock.drift(1.0)

    # ---- the disk ---------------------------------------------------------------------------------------------------

    async def journal_error(self) -> None:
        call, error = self._rng.choice(_JOURNAL_CALLS), self._rng.choice([errno.EIO, errno.ENOSPC])
        count = self._ordered("journal_error", f"{call} ")
        self._node.disk.fail(call, error, nth=self._rng.choice([1, 1, 2, 5]), written=self._rng.choice([0, 100, 700]))
        await self._last(3)
        count()
        self._history.tell("nemesis", "fault", kind="terminate")
        if self._rng.random() < 0.5:
            self._node.kill()
        else:
            self._cut_power()

    async def table_error(self) -> None:
        call = self._rng.choice(_TABLE_CALLS)
        count, undisturbed = self._ordered("call_error", f"{call} "), self._undisturbed()
        self._node.disk.fail(
            call,
            self._rng.choice([errno.EIO, errno.EIO, errno.ENOSPC, errno.EMFILE]),
            nth=self._rng.choice([1, 1, 2, 5]),
            times=self._rng.choice([1, 1, 3]),
            written=self._rng.choice([0, 100]),
        )
        await self._last(4)
        count()
        # A broker of a cluster is not ready without its lease either.
        alone = self._site.cluster is None and undisturbed()
        if alone and (broker := self._node.store) and (reason := broker.broker.not_ready_reason):
            self.broken.append(f"a store stopped taking appends because of {call}: {reason}")

    async def full_disk(self) -> None:
        count = self._ordered("disk_full", "(full)")
        self._node.disk.fill(self._rng.choice([0, 1_000, 50_000]))
        await self._last(4)
        count()

    async def segment_bit_flip(self) -> None:
        """A bit of a file of a table is another one for a while: nobody is given what it makes of the records."""
        files = sorted(self._node.data.glob("topics/*/partition=*/*.parquet"))
        if files:
            count = self._flip("segment_bit_flip", self._rng.choice(files))
            await self._last(2)
            count()

    async def journal_bit_flip(self) -> None:
        """A bit of a closed file of a journal is another one. A start under it is refused, or needs no such bytes."""
        files = sorted((self._node.data / "brokers" / self._node.broker / "journal").rglob("*.log"))[:-1]
        if not files:
            return
        count = self._flip("journal_bit_flip", path := self._rng.choice(files))
        await self._last(2)
        self._node.kill()
        if path.exists() and self._rng.random() < 0.7:
            self._flip("journal_bit_flip", path)
            await self._node.start()
        count()
        self._node.kill()

    def _flip(self, kind: str, path: Path) -> Callable[[], None]:
        """Let reads of a file find another bit somewhere in what was written of it."""
        count = self._ordered(kind, "flip ")
        written = len(path.read_bytes().rstrip(b"\0"))
        self._node.disk.flip(path, self._rng.randrange(max(1, written)), 1 << self._rng.randrange(8))
        return count

    async def slow_disk(self) -> None:
        self._told("slow_fsync")
        self._node.process.slowness = 30.0
        await self._last(2)

    async def break_clients(self) -> None:
        """Connections of clients end, in the middle of requests and answers."""
        self._told("break_clients")
        for _ in range(5):
            self._site.network.break_clients(self._node.name)
            await self._last(0.5)

    # ---- the network and ZooKeeper ----------------------------------------------------------------------------------

    @property
    def _cluster(self) -> Cluster:
        assert self._site.cluster is not None
        return self._site.cluster

    @property
    def _others(self) -> list[str]:
        return [node.name for node in self._site.nodes if node is not self._node]

    async def kill_all(self) -> None:
        """All brokers die at once; some machines lose power."""
        await self._all_started()
        self._told("kill_all")
        for node in self._site.nodes:
            self._node = node
            if self._rng.random() < 0.5:
                self._cut_power()
            else:
                node.kill()
        # They come back one after the other.
        for node in self._rng.sample(self._site.nodes, len(self._site.nodes)):
            await self._last(6)
            await self._start(node)

    async def lose_journal(self) -> None:
        """A broker dies, and its journal is gone, as where a file system is not mounted; ``meta.json`` stays."""
        await self._lose("journal_lost", "journal")

    async def lose_disk(self) -> None:
        """A broker dies, and its whole log directory is gone."""
        await self._lose("disk_lost", "")

    async def _lose(self, kind: str, name: str) -> None:
        """Lose a directory of the broker's own, if the others have all that it has: so at most one at a time."""
        await self._all_started()
        if not self._cluster.is_whole():
            return
        self._told(kind)
        loser = self._node
        killed = [loser] if self._rng.random() < 0.3 else self._site.nodes
        for node in killed:
            node.kill()
        lost = loser.data / "brokers" / loser.name / name
        loser.disk.remove_tree(lost)
        loser.disk.sync_directory(lost.parent)
        begins = self._rng.random() < 0.6  # with nobody to ask what it has lost
        for node in sorted(self._rng.sample(killed, len(killed)), key=lambda node: begins and node is not loser):
            await self._start(node)
            await self._last(5)

    async def cut_off(self) -> None:
        """A broker reaches nobody, and nobody reaches it."""
        self._told("cut_off")
        self._cut_off()
        await self._last(15)

    async def cut_off_and_kill(self) -> None:
        """A leader goes on for a while with what nobody else gets, and dies; it is back when another one leads."""
        self._told("cut_off_and_kill")
        logs = [(topic, partition) for topic, partition in self._logs if self._cluster.leader(topic, partition)]
        if logs and (leader := self._cluster.leader(*self._rng.choice(logs))):
            self._node = leader
        self.needs_its_cuts = True
        if self._rng.random() < 0.5:
            self._cut_off()
        else:
            for name in self._others:
                self._cluster.network.cut(self._node.name, name)
        await asyncio.sleep(self._rng.uniform(0.1, 2))
        if self._rng.random() < 0.3:
            self._cut_power()
        else:
            self._node.kill()
        self._cluster.heal()
        self.needs_its_cuts = False
        await asyncio.sleep(self._rng.uniform(0, 4))

    def _cut_off(self) -> None:
        for name in self._others:
            self._cluster.network.cut(self._node.name, name)
        self._cluster.zookeeper.cut(self._node.name)

    async def cut_from_brokers(self) -> None:
        """In one direction or in both, from one of the others or from all."""
        self._told("cut_from_brokers")
        for name in self._others[self._rng.randrange(2) :]:
            ends = self._rng.sample([self._node.name, name], 2)
            self._cluster.network.cut(*ends, both_ways=self._rng.random() < 0.5)
        await self._last(20)

    async def cut_from_zookeeper(self) -> None:
        """Its requests do not arrive, or the answers, or both."""
        self._told("cut_from_zookeeper")
        requests, answers = self._rng.choice([(True, True), (True, False), (False, True)])
        self._cluster.zookeeper.cut(self._node.name, requests=requests, answers=answers)
        await self._last(12)

    async def break_connections(self) -> None:
        self._told("break_connections")
        for _ in range(5):
            self._cluster.network.break_connections(self._node.name, self._rng.choice(self._others))
            await self._last(0.5)

    async def zookeeper_down(self) -> None:
        self._told("zookeeper_down")
        self._cluster.zookeeper.stop()
        await self._last(10)

    async def zookeeper_elects(self) -> None:
        self._told("zookeeper_elects")
        for _ in range(3):
            self._cluster.zookeeper.elect()
            await self._last(1)

    async def zookeeper_splits(self) -> None:
        """Two of its servers show their clients what they had."""
        self._told("zookeeper_splits")
        for number in self._rng.sample(range(3), 2):
            self._cluster.zookeeper.isolate(number)
        await self._last(10)

    async def session_ends(self) -> None:
        self._told("session_ends")
        self._cluster.zookeeper.expire(self._node.name)
        await self._last(2)

    async def client_ends(self) -> None:
        """The client of ZooKeeper of a broker ends by itself."""
        self._told("client_ends")
        self._cluster.zookeeper.end_client(self._node.name)
        await self._last(8)

    async def answers_lost(self) -> None:
        """Requests of ZooKeeper are done, and their answers do not come."""
        self._told("answers_lost")
        self._cluster.zookeeper.lost_answers = 0.1
        for node in self._site.nodes:
            self._cluster.zookeeper.expire(node.name)
            await self._last(3)
        self._cluster.zookeeper.lost_answers = 0.0
