"""Faults of a cluster, one after the other; each ends with all brokers whole again.

There is a budget, because no acknowledged record may be lost: one broker at a time loses its disk or part of it, and
only while the cluster is whole, because ``min.insync.replicas`` is one less than the replicas. All other faults may
strike any number of brokers: acknowledged records are durable on those that are down. Within a fault of a broker others
may strike that broker, another one, or ZooKeeper.
"""

import contextlib
import functools
import itertools
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
from kazoo.handlers.threading import KazooTimeoutError

from logstore.cluster import checked_file
from logstore.cluster.log_directory import META
from logstore.filesystem import FileSystem, local_filesystem
from tests.faults.bench.history import Recorder
from tests.faults.bench.table_entries import lost_entries, table_entries
from tests.faults.bench.workload import TopicSpec
from tests.faults.cluster.brokers import LAG_MS, SESSION_MS, BrokerProcess, Brokers
from tests.faults.cluster.fail_points import AT_A_CHANGE, AT_A_TOPIC, AT_ITS_END, AT_START, AT_WORK
from tests.faults.cluster.journals import tell_replicas, topic_facts
from tests.support import lost_journals
from tests.support.lost_journals import durable_end, found_in, journal_of
from tests.support.server_process import ROOT, NotStartedError
from tests.support.tcp_relay import EVERYBODY, Direction

HEALED_S: Final = 120.0
HOUR_MS: Final = 3_600_000
#: Numbers of faults that strike within another one; one of them is drawn.
_WITHIN: Final = (0, 1, 1, 2, 2, 3)
#: The longest time that each of them lasts.
_WITHIN_S: Final = 1.0
_SESSION_S, _LAG_S = SESSION_MS / 1000, LAG_MS / 1000
_POINT_S: Final = 6.0

OF_PROCESSES: Final = (
    *("kill", "terminate", "pause", "blink", "kill_again_and_again", "rolling_restart", "kill_all", "power_cut"),
    *("power_cut_all", "kill_two", "isolated_then_killed", "kill_all_behind_a_slow_follower"),
    *("fail_point_at_work", "fail_point_at_a_change", "fail_point_at_start", "fail_point_at_a_topic"),
)
OF_DISKS: Final = (
    *("fsync_fails", "disk_full", "slow_disk", "slow_follower", "clock"),
    *("old_image", "lost_disk", "kill_all_and_lose_a_disk", "foreign_disk"),
)
#: Faults of the journal alone: ``meta.json`` beside it stays.
OF_JOURNALS: Final = ("journal_lost", "journal_older", "journal_repaired", "journal_replaced", "journal_removed")
OF_ZOOKEEPER: Final = (
    *("cut_from_zookeeper", "one_way_to_zookeeper", "half_open_to_zookeeper", "flapping_to_zookeeper"),
    *("session_expired", "zookeeper_killed", "zookeeper_majority_lost", "zookeeper_restarted"),
)
OF_LINKS: Final = (
    *("cut_from_brokers", "one_way_between_brokers", "half_open_between_brokers", "isolated", "bridge", "slow_link"),
    *("late_messages", "repeated_messages"),
)
OF_ADMINISTRATION: Final = ("reassign", "elect_leaders")
KINDS: Final = (*OF_PROCESSES, *OF_DISKS, *OF_JOURNALS, *OF_ZOOKEEPER, *OF_LINKS, *OF_ADMINISTRATION)
#: These may strike within another fault: the same broker, or any other one.
_ONES_WITHIN: Final = (
    *("kill", "kill", "power_cut", "blink", "blink", "clock", "slow_disk", "session_expired", "zookeeper_killed"),
    *("flapping_to_zookeeper", "one_way_between_brokers", "slow_link", "late_messages", "repeated_messages"),
)
#: These lose a disk, or wait for the whole cluster: meanwhile no other broker is struck.
_ALONE: Final = frozenset(
    (
        *("old_image", "lost_disk", "kill_all_and_lose_a_disk", *OF_JOURNALS),
        *("reassign", "rolling_restart", "elect_leaders", "fail_point_at_a_topic"),
    )
)
#: The brokers that are down while one has lost its journal, and the turn in which that one starts.
_ORDERS: Final = ("all, it starts first", "all, it starts last", "all, it starts in any place", "it alone")
_WITHIN_THESE: Final = ("kill", "blink", "flapping_to_zookeeper", "zookeeper_killed", "session_expired", "clock")


class Nemesis:
    """Strikes faults; ``topics`` have the number of replicas by name."""

    def __init__(
        self,
        brokers: Brokers,
        chance: random.Random,
        recorder: Recorder,
        topics: Sequence[TopicSpec],
        directory: Path,
        *,
        long_s: float = 6.0,
    ) -> None:
        self._brokers = brokers
        self._links = brokers.links
        self._chance = chance
        self._recorder = recorder
        self._topics = topics
        self._directory = directory
        self._long_s = long_s
        self._numbers = itertools.count()
        self.faults: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.broken: list[str] = []
        #: Checks that acks=all continues; the run sets it.
        self.require_progress: Callable[[str], None] = lambda _: None
        clusters = httpx.get(f"{brokers.urls[0]}/v3/clusters", timeout=60).raise_for_status().json()["data"]
        self._cluster = f"/v3/clusters/{clusters[0]['cluster_id']}"
        #: Kinds that will strike within the current fault.
        self._inside: list[str] = []
        self._is_inside = False
        self._is_alone = False
        self._points = {points: rounds(chance, points) for points in (AT_WORK, AT_A_CHANGE, AT_START, AT_A_TOPIC)}
        self._orders = {kind: rounds(chance, _ORDERS) for kind in OF_JOURNALS}
        self.kinds: dict[str, Callable[[BrokerProcess], None]] = {kind: getattr(self, f"_{kind}") for kind in KINDS}

    def strike(self, kind: str, inside: bool = True) -> BrokerProcess:
        """Strike one fault at a leader, a follower or the controller, and heal it. Raises RuntimeError if it does not
        heal.
        """
        victim = self._victim()
        self._one(kind, victim, inside=inside)
        self._heal()
        self._recorder.tell("nemesis", "heal")
        return victim

    def _victim(self) -> BrokerProcess:
        topic = self._chance.choice(self._topics)
        roles: list[Callable[[], BrokerProcess | None]] = [
            lambda: self._brokers.leader_of(topic.name, self._chance.randrange(topic.partitions)),
            self._brokers.controller,
            lambda: self._chance.choice(self._brokers.all),
        ]
        return self._chance.choice(roles)() or self._chance.choice(self._brokers.all)

    def _one(self, kind: str, victim: BrokerProcess, *, inside: bool) -> None:
        self.faults[kind] += 1
        self._tell(kind, victim)
        self._inside, self._is_alone = [], kind in _ALONE
        if inside and self._is_alone:
            self._inside = self._chance.sample(_WITHIN_THESE, self._chance.randint(0, 1))
        elif inside:
            self._inside = self._chance.sample(_ONES_WITHIN, self._chance.choice(_WITHIN))
        self.kinds[kind](victim)

    def _tell(self, kind: str, victim: BrokerProcess, **more: object) -> None:
        self._recorder.tell("nemesis", "fault", kind=kind, broker=victim.number, **more)

    def _heal(self) -> None:
        for broker in self._brokers.all:
            for relay in (*broker.to_zookeeper, broker.from_brokers):
                self._links.heal(relay)
        self._brokers.start_zookeeper(self._brokers.zookeeper.servers)
        self._brokers.start()
        for broker in self._brokers.all:
            self._heal_process(broker)
        self._brokers.wait_until_healed(HEALED_S)

    def _heal_process(self, broker: BrokerProcess) -> None:
        """Resume and start the broker until it accepts commands, because it may stop at a point at any time before.

        Raises RuntimeError or OSError.
        """
        deadline = time.monotonic() + HEALED_S
        while True:
            broker.resume()
            self._start(broker)
            try:
                broker.server.control("heal", seconds=3)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                broker.resume()
                return

    def _last(self, victim: BrokerProcess, least: float, most: float) -> None:
        """Let the fault last for some seconds; in the middle others may strike, one after the other."""
        seconds = self._chance.uniform(least, most)
        if self._is_inside:
            time.sleep(min(seconds, _WITHIN_S))
            return
        inside, self._inside, alone = self._inside, [], self._is_alone
        for kind in inside:
            time.sleep(seconds / (len(inside) + 1))
            if (struck := self._struck_too(kind, victim, alone=alone)) is not None:
                self._is_inside = True
                try:
                    self._one(kind, struck, inside=False)
                finally:
                    self._is_inside = False
        time.sleep(seconds / (len(inside) + 1))

    def _struck_too(self, kind: str, victim: BrokerProcess, *, alone: bool) -> BrokerProcess | None:
        """Return a broker that the further fault can harm; None if there is none.

        A stopped broker can be killed, but takes no commands.
        """
        brokers = [victim] if alone else self._brokers.all
        harmed = [one for one in brokers if one.is_running and (kind == "kill" or not _is_dead_or_stopped(one))]
        return self._chance.choice(harmed) if harmed else None

    def _others(self, victim: BrokerProcess) -> list[BrokerProcess]:
        return [broker for broker in self._brokers.all if broker is not victim]

    # ---- processes --------------------------------------------------------------------------------------------------

    def _kill(self, victim: BrokerProcess) -> None:
        victim.kill()
        self._last(victim, 0, _SESSION_S + 1.5)

    def _terminate(self, victim: BrokerProcess) -> None:
        if code := victim.terminate():
            self.broken.append(f"SIGTERM ended broker {victim.number} with {code}")
        self._last(victim, 0, 1.5)

    def _kill_again_and_again(self, victim: BrokerProcess) -> None:
        """Kill a broker as soon as it is up, again and again, and sometimes change to another broker."""
        for _ in range(self._chance.randint(2, 4)):
            victim.kill()
            self._start(victim)
            time.sleep(self._chance.uniform(0, 1))
            victim = self._chance.choice([victim, self._victim()])

    def _pause(self, victim: BrokerProcess) -> None:
        self._stopped(victim, _SESSION_S, _SESSION_S + 3)

    def _blink(self, victim: BrokerProcess) -> None:
        if victim.is_running:
            self._stopped(victim, 0.1, _SESSION_S / 2)

    def _stopped(self, victim: BrokerProcess, least: float, most: float) -> None:
        victim.pause()
        try:
            self._last(victim, least, most)
        finally:
            victim.resume()

    def _rolling_restart(self, victim: BrokerProcess) -> None:
        for broker in self._chance.sample(self._brokers.all, len(self._brokers.all)):
            self._terminate(broker)
            self._start(broker)
            self._brokers.wait_until_healed(HEALED_S)

    def _kill_all(self, victim: BrokerProcess) -> None:
        """Kill all at once; then they start in any order, and some start late."""
        self._brokers.kill()
        self._all_down()

    def _kill_all_and_lose_a_disk(self, victim: BrokerProcess) -> None:
        """Kill all and lose one disk: all were in sync to the end, so the others have its records."""
        image = self._directory / f"image-{next(self._numbers)}"
        if old := self._chance.random() < 0.5:
            victim.kill()
            victim.keep_image(image)
            self._start(victim)
            self._brokers.wait_until_healed(HEALED_S)
            self._inside = []
            self._last(victim, 0.5, 2)
        self._brokers.kill()
        victim.lose_disk()
        if old:
            shutil.copytree(image, victim.log_directory)
            shutil.rmtree(image)
        self._start(victim)  # it runs alone for a while
        time.sleep(self._chance.uniform(0, _SESSION_S))
        self._brokers.start()

    def _kill_all_behind_a_slow_follower(self, victim: BrokerProcess) -> None:
        """Kill all while a replica has left the ISR or is just returning, and so is not in sync."""
        victim.server.control(f"slow journal.fdatasync {_LAG_S + 0.5:.2f}")
        time.sleep(self._chance.uniform(_LAG_S, _LAG_S + 4))
        if self._chance.random() < 0.5:
            victim.server.control("heal", seconds=HEALED_S)
            time.sleep(self._chance.uniform(0, 0.3))
        self._kill_all(victim)

    def _kill_two(self, victim: BrokerProcess) -> None:
        """Kill two: below min.insync.replicas nothing is acknowledged."""
        for broker in self._chance.sample(self._brokers.all, 2):
            broker.kill()
        self._inside = []
        self._last(victim, _SESSION_S + 2, _SESSION_S + 4)

    def _isolated_then_killed(self, victim: BrokerProcess) -> None:
        """Isolate the leader, then kill it: records that it alone has are not acknowledged, and go when it returns."""
        self._links.cut(victim.from_brokers)
        for other in self._others(victim):
            self._links.cut(other.from_brokers, client=victim.number)
        time.sleep(self._chance.uniform(0.2, _LAG_S - 0.5))
        victim.kill()
        self._last(victim, _SESSION_S, _SESSION_S + 2)

    def _power_cut(self, victim: BrokerProcess) -> None:
        self._cut_power(victim)
        self._last(victim, 0, _SESSION_S + 1.5)

    def _power_cut_all(self, victim: BrokerProcess) -> None:
        """Cut the power of all, one after the other: another broker maintains the tables of a machine without power."""
        for broker in self._chance.sample(self._brokers.all, len(self._brokers.all)):
            self._cut_power(broker)
        self._all_down()

    def _cut_power(self, victim: BrokerProcess) -> None:
        """Cut the power of one broker, and record the entries of tables that go with it.

        Delta readers see an entry before it is durable, and another leader then writes another entry of that version.
        """
        topics = [topic.name for topic in self._topics]
        before = table_entries(self._brokers.data, topics)
        victim.power_cut(self._chance.randrange(1 << 30))
        for topic, version, left in lost_entries(before, table_entries(self._brokers.data, topics)):
            self._tell("entry_lost", victim, topic=topic, version=version, left=left)

    def _all_down(self) -> None:
        """Read the disks, and start all brokers again."""
        self.tell_replicas()
        for broker in self._chance.sample(self._brokers.all, self._chance.choice([0, 0, 1])):
            self._start(broker)  # it runs alone for a while
            time.sleep(self._chance.uniform(0, _SESSION_S))
        self._brokers.start()

    def tell_replicas(self) -> None:
        """Record the replicas, while no broker runs."""
        ids, sealed = topic_facts(self._brokers.data, [topic.name for topic in self._topics])
        directories = {broker.number: broker.log_directory for broker in self._brokers.all}
        tell_replicas(directories, ids, sealed, self._recorder)

    def _start(self, broker: BrokerProcess) -> None:
        if not broker.is_running:
            broker.start()

    # ---- fail points ------------------------------------------------------------------------------------------------

    def _fail_point_at_work(self, victim: BrokerProcess) -> None:
        self._reach(victim, next(self._points[AT_WORK]), self._chance.choice([1, 1, 2, 3, 10]), lambda: None)

    def _fail_point_at_a_change(self, victim: BrokerProcess) -> None:
        other = self._chance.choice(self._others(victim))

        def change() -> None:
            if self._chance.random() < 0.7:
                other.kill()
            else:
                self._stopped(other, _SESSION_S, _SESSION_S + 1)

        self._reach(victim, next(self._points[AT_A_CHANGE]), self._chance.choice([1, 1, 2]), change)

    def _fail_point_at_a_topic(self, victim: BrokerProcess) -> None:
        """Kill the controller while it creates or deletes a topic; its successor has to do so as well."""
        # The reader of tables, which would report a missing one, does not follow names with a dot.
        topic = f"passing.{next(self._numbers)}"
        point = next(self._points[AT_A_TOPIC])
        change = self._delete if point in AT_ITS_END else self._make
        if change == self._delete:
            self._until(self._make, topic)
            self._until(self._takes_a_record, topic)
        with ThreadPoolExecutor(1) as pool:
            url = self._chance.choice(self._brokers.urls)
            self._reach(self._brokers.controller() or victim, point, 1, lambda: pool.submit(change, topic, url))
        self._brokers.start()
        if change == self._make:
            self._until(self._make, topic)
            self._until(self._takes_a_record, topic)
        self._until(self._delete, topic)

    def _until(self, done: Callable[[str, str], bool], topic: str) -> None:
        deadline = time.monotonic() + HEALED_S
        while not done(topic, self._chance.choice(self._brokers.urls)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{done.__name__} {topic}: never done")
            time.sleep(0.3)

    def _make(self, topic: str, url: str) -> bool:
        """Create the topic; return whether it exists now."""
        with contextlib.suppress(httpx.HTTPError):
            asked = {"topic_name": topic, "partitions_count": 2}
            httpx.post(f"{url}{self._cluster}/topics", json=asked, timeout=10)
            return httpx.get(f"{url}/topics/{topic}", timeout=10).is_success
        return False

    def _takes_a_record(self, topic: str, url: str) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            asked = {"records": [{"value": "passing"}]}
            answer = httpx.post(f"{url}/topics/{topic}/partitions/1", json=asked, params={"acks": "all"}, timeout=10)
            return answer.is_success and answer.json()["offsets"][0].get("error_code") is None
        return False

    def _delete(self, topic: str, url: str) -> bool:
        """Delete the topic; return whether no broker has it any more."""
        with contextlib.suppress(httpx.HTTPError):
            httpx.delete(f"{url}{self._cluster}/topics/{topic}", timeout=10)
            return all(httpx.get(f"{url}/topics/{topic}", timeout=10).status_code == 404 for url in self._brokers.urls)
        return False

    def _reach(self, victim: BrokerProcess, point: str, nth: int, change: Callable[[], object]) -> None:
        """Let the victim die or stop when it comes to a point the nth time, which ``change`` leads to."""
        how = self._chance.choice(["kill", "kill", "stop"])
        inside, self._inside = self._inside, []
        self._tell("fail_point", victim, point=point, how=how)
        victim.server.control(f"point {point} {how} nth={nth}")
        change()
        deadline = time.monotonic() + _POINT_S
        while time.monotonic() < deadline and not _is_dead_or_stopped(victim):
            time.sleep(0.05)
        if _is_dead_or_stopped(victim):
            self.points[point] += 1
            victim.blows["pause" if victim.is_running else "kill"] += 1
        self._inside = inside
        self._last(victim, 0, _SESSION_S + 1.5)
        victim.resume()

    def _fail_point_at_start(self, victim: BrokerProcess) -> None:
        """Kill a broker while it starts, or resumes its work as a follower; perhaps twice."""
        victim.kill()
        self._last(victim, 0, _SESSION_S + 1)
        for _ in range(self._chance.randint(1, 2)):
            point = next(self._points[AT_START])
            self._tell("fail_point", victim, point=point, how="kill")
            with contextlib.suppress(NotStartedError):
                victim.server.start(faults=f"point {point} kill nth={self._chance.choice([1, 1, 2])}")
            deadline = time.monotonic() + 3
            while victim.is_running and time.monotonic() < deadline:
                time.sleep(0.05)
            if not victim.is_running:
                self.points[point] += 1
                victim.blows["kill"] += 1
            victim.kill()

    # ---- disks and clocks -------------------------------------------------------------------------------------------

    def _fsync_fails(self, victim: BrokerProcess) -> None:
        victim.server.control("fail journal.fdatasync EIO")
        self._last(victim, 1, 3)
        victim.kill()

    def _disk_full(self, victim: BrokerProcess) -> None:
        victim.server.control(f"fill {self._chance.choice([0, 0, 1_000, 100_000])}")
        self._last(victim, 1, _LAG_S + 2)

    def _slow_disk(self, victim: BrokerProcess) -> None:
        victim.server.control(f"slow fdatasync {self._chance.uniform(0.1, 1.0):.2f}")
        self._last(victim, 1, 4)

    def _slow_follower(self, victim: BrokerProcess) -> None:
        """Slow a follower until it leaves the ISR, and let it return."""
        victim.server.control(f"slow journal.fdatasync {_LAG_S + 0.5:.2f}")
        self._last(victim, _LAG_S + 1, _LAG_S + 4)

    def _clock(self, victim: BrokerProcess) -> None:
        if not victim.is_running:
            return
        offset_ms = self._chance.choice([-1, 1]) * HOUR_MS
        self._tell("clock_step", victim, offset_ms=offset_ms)
        with contextlib.suppress(OSError):  # it may be down or stopped
            victim.server.control(f"clock {offset_ms}", seconds=2)
        self._last(victim, 0.5, 2)

    def _old_image(self, victim: BrokerProcess) -> None:
        """Restore a backup of the disk: it lacks the records that were acknowledged since."""
        image = self._directory / f"image-{next(self._numbers)}"
        self._chance.choice([victim.kill, victim.terminate])()
        victim.keep_image(image)
        self._start(victim)
        self._brokers.wait_until_healed(HEALED_S)
        self._last(victim, 1, 3)
        victim.kill()
        if self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(0, _SESSION_S + 1))
        victim.put_image_back(image)
        shutil.rmtree(image)
        self._start(victim)

    def _lost_disk(self, victim: BrokerProcess) -> None:
        victim.kill()
        self._last(victim, 0, _SESSION_S + 1)
        victim.kill()
        victim.lose_disk()
        self._start(victim)

    def _foreign_disk(self, victim: BrokerProcess) -> None:
        """Check that the directory of another broker, or of a broker of another cluster, is refused."""
        victim.kill()
        self._last(victim, 0, _SESSION_S + 1)
        victim.kill()
        path = victim.log_directory / META
        own = path.read_bytes()
        changed = {"cluster_id": "another"} if self._chance.random() < 0.5 else {"broker_id": victim.number % 3 + 1}
        checked_file.write(local_filesystem(), path, {**checked_file.read(FileSystem(), path, ""), **changed})
        with contextlib.suppress(NotStartedError):
            victim.start()
            self.broken.append(f"C19 broker {victim.number} has started on a directory with {changed}")
            victim.kill()
        path.write_bytes(own)

    # ---- journals alone ---------------------------------------------------------------------------------------------

    def _journal_lost(self, victim: BrokerProcess) -> None:
        lose = self._chance.choice([lost_journals.lose, lost_journals.leave_empty])
        self._without_its_journal(victim, "journal_lost", lambda: lose(victim.log_directory))

    def _journal_older(self, victim: BrokerProcess) -> None:
        """Restore an earlier image of the journal. It lacks more than a second, because a start cannot notice less."""
        image = self._directory / f"image-{next(self._numbers)}"
        self._chance.choice([victim.kill, victim.terminate])()
        shutil.copytree(journal_of(victim.log_directory), image)
        end = found_in(image).end
        self._start(victim)
        self._brokers.wait_until_healed(HEALED_S)
        deadline = time.monotonic() + HEALED_S
        while durable_end(victim.log_directory) <= end:
            if time.monotonic() > deadline:
                raise RuntimeError(f"broker {victim.number} does not write down how far its journal is durable")
            time.sleep(0.2)
        self._last(victim, 0, 3)
        self._without_its_journal(
            victim, "journal_older", lambda: lost_journals.put_in_place(victim.log_directory, image)
        )
        shutil.rmtree(image)

    def _journal_repaired(self, victim: BrokerProcess) -> None:
        """Damage the journal, which prevents the start. A repair removes acknowledged records; it needs all brokers
        down.
        """

        def repair() -> None:
            lost_journals.damage(victim.log_directory, self._chance)
            with contextlib.suppress(NotStartedError):
                victim.start()
                self.broken.append(f"broker {victim.number} has started on a damaged journal")
                victim.kill()
            journal = journal_of(victim.log_directory)
            command = [sys.executable, "-m", "logstore.cli", "journal", "repair", str(journal), "--yes"]
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if "now ends at position" not in ran.stdout:
                self.broken.append(f"journal repair of broker {victim.number}: {ran.stdout}{ran.stderr}")

        self._without_its_journal(victim, "journal_repaired", repair)

    def _journal_replaced(self, victim: BrokerProcess) -> None:
        """Replace the journal by that of another broker of the cluster, or of an unknown store: the start is refused
        and changes nothing. Then take it away.
        """
        other = self._chance.choice(self._others(victim))

        def replace() -> None:
            if other.is_running or self._chance.random() < 0.5:
                lost_journals.replace_with_a_strangers(victim.log_directory)
            else:
                lost_journals.put_in_place(victim.log_directory, journal_of(other.log_directory))
            before = lost_journals.content_of(victim.log_directory)
            with contextlib.suppress(NotStartedError):
                victim.start()
                self.broken.append(f"broker {victim.number} has started on another one's journal")
                victim.kill()
            if lost_journals.content_of(victim.log_directory) != before:
                self.broken.append(f"broker {victim.number} has changed another one's journal")
            lost_journals.lose(victim.log_directory)

        self._without_its_journal(victim, "journal_replaced", replace)

    def _journal_removed(self, victim: BrokerProcess) -> None:
        """Remove the journal under the running broker, which acknowledges nothing from then on and ends some time
        later.
        """
        aside = self._directory / f"image-{next(self._numbers)}"
        lost_journals.move_away(victim.log_directory, aside)
        self._last(victim, 0, _LAG_S)
        self._without_its_journal(victim, "journal_removed", lambda: shutil.rmtree(aside))

    def _without_its_journal(self, victim: BrokerProcess, kind: str, change: Callable[[], None]) -> None:
        """Kill the victim, or all; then ``change`` its journal, and start them in some order.

        All were in sync to the end, so the others have the records that it lacks.
        """
        order = next(order for order in self._orders[kind] if kind != "journal_repaired" or order != "it alone")
        self._tell("journal_order", victim, order=order)
        if order == "it alone":
            victim.kill()
            self._last(victim, 0, _SESSION_S + 1)
            victim.kill()
            change()
            self._start(victim)
            return
        self._brokers.kill()
        change()
        starts = self._chance.sample(self._others(victim), len(self._others(victim)))
        places = {"all, it starts first": 0, "all, it starts last": len(starts)}
        starts.insert(places.get(order, self._chance.randint(0, len(starts))), victim)
        for broker in starts:
            self._start(broker)
            time.sleep(self._chance.uniform(0, _SESSION_S))

    # ---- ZooKeeper --------------------------------------------------------------------------------------------------

    def _cut_from_zookeeper(self, victim: BrokerProcess) -> None:
        self._brokers.cut_from_zookeeper(victim, self._links.cut)
        self._last(victim, 1, _SESSION_S + 3)

    def _one_way_to_zookeeper(self, victim: BrokerProcess) -> None:
        way = frozenset({self._chance.choice(list(Direction))})
        self._brokers.cut_from_zookeeper(victim, functools.partial(self._links.cut, directions=way))
        self._last(victim, 1, _SESSION_S + 3)

    def _half_open_to_zookeeper(self, victim: BrokerProcess) -> None:
        self._brokers.cut_from_zookeeper(victim, self._links.swallow)
        self._last(victim, 1, _SESSION_S + 3)

    def _flapping_to_zookeeper(self, victim: BrokerProcess) -> None:
        for _ in range(self._chance.randint(2, 6)):
            self._brokers.cut_from_zookeeper(victim, self._links.reset)
            time.sleep(self._chance.uniform(0.05, 1))

    def _session_expired(self, victim: BrokerProcess) -> None:
        if not victim.is_running:
            return
        with contextlib.suppress(OSError, KazooTimeoutError):
            victim.end_session(self._brokers.zookeeper.connect)
        self._last(victim, 0, 2)

    def _zookeeper_killed(self, victim: BrokerProcess) -> None:
        """Kill one server of the ensemble, perhaps its leader."""
        servers = self._brokers.zookeeper.servers
        server = self._chance.choice([self._brokers.zookeeper.leader, *servers]) or servers[0]
        server.kill()
        self._last(victim, 0.5, 4)
        self._brokers.start_zookeeper([server])

    def _zookeeper_majority_lost(self, victim: BrokerProcess) -> None:
        """Stop a majority of ZooKeeper: acks=all continues meanwhile, as long as all replicas are in sync."""
        servers = self._brokers.zookeeper.servers
        lost = self._chance.sample(servers, len(servers) // 2 + 1)
        for server in lost:
            server.kill()
        self._inside = []
        for _ in range(3):
            self._last(victim, self._long_s / 6, self._long_s / 3)
            self.require_progress("without a majority of ZooKeeper")
        self._brokers.start_zookeeper(lost)

    def _zookeeper_restarted(self, victim: BrokerProcess) -> None:
        for server in self._brokers.zookeeper.servers:
            server.kill()
        self._inside = []
        self._last(victim, 0, _SESSION_S + 2)
        self._brokers.start_zookeeper(self._brokers.zookeeper.servers)

    # ---- between brokers --------------------------------------------------------------------------------------------

    def _cut_from_brokers(self, victim: BrokerProcess) -> None:
        """Cut the connections of other brokers to the victim; it still reaches them."""
        self._links.cut(victim.from_brokers)
        self._last(victim, 0.5, _LAG_S + 3)

    def _one_way_between_brokers(self, victim: BrokerProcess) -> None:
        """Hold back the bytes from the victim, or those to it; between it and one other broker or all."""
        way = frozenset({self._chance.choice(list(Direction))})
        other = self._chance.choice([EVERYBODY, *(broker.number for broker in self._others(victim))])
        self._links.cut(victim.from_brokers, way, other)
        self._last(victim, 0.5, _LAG_S + 3)

    def _half_open_between_brokers(self, victim: BrokerProcess) -> None:
        self._links.swallow(victim.from_brokers)
        self._last(victim, 0.5, _LAG_S + 3)

    def _isolated(self, victim: BrokerProcess) -> None:
        """Cut the victim from the other brokers, both ways; clients and ZooKeeper reach it."""
        self._links.cut(victim.from_brokers)
        for other in self._others(victim):
            self._links.cut(other.from_brokers, client=victim.number)
        self._last(victim, 0.5, _LAG_S + 4)

    def _bridge(self, victim: BrokerProcess) -> None:
        """Cut two brokers from each other; a third reaches both."""
        other = self._chance.choice(self._others(victim))
        self._links.cut(victim.from_brokers, client=other.number)
        self._links.cut(other.from_brokers, client=victim.number)
        self._last(victim, 0.5, _LAG_S + 4)

    def _slow_link(self, victim: BrokerProcess) -> None:
        self._links.delay(victim.from_brokers, self._chance.uniform(0.05, 1))
        self._last(victim, 1, _LAG_S + 3)

    def _late_messages(self, victim: BrokerProcess) -> None:
        """Hold back bytes that are under way while both sides continue over new connections; then deliver them."""
        for broker in self._brokers.all:
            self._links.strand(broker.from_brokers)
        self._last(victim, 3, 7)

    def _repeated_messages(self, victim: BrokerProcess) -> None:
        for _ in range(self._chance.randint(1, 3)):
            for broker in self._brokers.all:
                self._links.repeat(broker.from_brokers, 10, self._chance)
            time.sleep(self._chance.uniform(0, 0.5))
        self.points["message repeated"] = sum(broker.from_brokers.repeated for broker in self._brokers.all)

    # ---- administration ---------------------------------------------------------------------------------------------

    def _reassign(self, victim: BrokerProcess) -> None:
        """Move replicas of a partition to other brokers and back, while the victim dies."""
        topic = self._chance.choice(self._topics)
        partition = self._chance.randrange(topic.partitions)
        before = self._replicas_of(topic.name, partition)
        if before is None:
            return
        self._tell("move", victim, topic=topic.name, moved=partition)
        numbers = [broker.number for broker in self._brokers.all]
        for target in (self._chance.sample(numbers, max(2, len(before) - 1)), before):
            self._ask_to_move(topic.name, partition, target)
            if self._chance.random() < 0.5:
                time.sleep(self._chance.uniform(0, 0.5))
                victim.kill()
                self._last(victim, 0, _SESSION_S)
                self._start(victim)
        self._start(victim)
        deadline = time.monotonic() + HEALED_S
        while self._replicas_of(topic.name, partition, moved=True) != before:
            self._ask_to_move(topic.name, partition, before)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic.name}-{partition} does not come back to {before}")
            time.sleep(0.3)

    def _ask_to_move(self, topic: str, partition: int, target: Sequence[int]) -> None:
        url = self._chance.choice(self._brokers.urls)
        with contextlib.suppress(httpx.HTTPError):
            path = f"{url}{self._cluster}/topics/{topic}/partitions/{partition}/reassignment"
            httpx.put(path, json={"replicas": list(target)}, timeout=10)

    def _replicas_of(self, topic: str, partition: int, *, moved: bool = False) -> list[int] | None:
        """Return the replicas; None while no broker answers, or (``moved``) a reassignment is under way."""
        with contextlib.suppress(RuntimeError):
            for row in self._brokers.partitions():
                if (row["topic"], row["partition"]) == (topic, partition):
                    is_moving = row["adding_replicas"] or row["removing_replicas"]
                    return None if moved and is_moving else list(row["replicas"])
        return None

    def _elect_leaders(self, victim: BrokerProcess) -> None:
        """Move leadership away from the victim, and back again under load."""
        if code := victim.terminate():
            self.broken.append(f"SIGTERM ended broker {victim.number} with {code}")
        self._start(victim)
        self._brokers.wait_until_healed(HEALED_S)
        for _ in range(self._chance.randint(1, 3)):
            with contextlib.suppress(httpx.HTTPError):
                asked = {"election_type": "preferred"}
                httpx.post(f"{self._chance.choice(self._brokers.urls)}/cluster/elect-leaders", json=asked, timeout=10)
            self._last(victim, 0, 1)


def _is_dead_or_stopped(broker: BrokerProcess) -> bool:
    if not broker.is_running:
        return True
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{broker.server.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return True


def rounds(chance: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    """Yield each kind once a round, in an order that differs from round to round, without an end."""
    while True:
        yield from chance.sample(list(kinds), len(kinds))
