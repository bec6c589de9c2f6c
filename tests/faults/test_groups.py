"""Members of a group in processes of their own, killed, paused, stopped and added at random under load."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logstore import Admin
from tests.support.posting import post
from tests.support.server_process import ROOT, ServerProcess

pytestmark = [pytest.mark.system, pytest.mark.long]

SECONDS = 40.0
PARTITIONS = 6
MEMBERS_MAX = 4
SESSION_MS = 2_000
SETTINGS = {
    "LOGSTORE_GROUP_MIN_SESSION_TIMEOUT_MS": "100",
    "LOGSTORE_GROUP_INITIAL_REBALANCE_DELAY_MS": "200",
    "LOGSTORE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "LOGSTORE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "200",
}
CLASSIC = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 200, "max_poll_interval_ms": 5_000}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "range": CLASSIC,
    "cooperative": CLASSIC | {"partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer", "max_poll_interval_ms": 5_000},
}
#: A process may be told to end before it listens to that.
_ENDS = {0, -signal.SIGKILL, -signal.SIGTERM}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("groups") / "data", environment=SETTINGS) as server:
        yield server.url


@dataclass
class Ownership:
    """A partition in the hands of one member, from assigned to the end. ``commits`` are (sent, answered, offset)."""

    member: str
    partition: int
    begun: float
    offsets: list[int] = field(default_factory=list)
    commits: list[tuple[float, float, int]] = field(default_factory=list)


def ownerships(log: Path) -> list[Ownership]:
    found: list[Ownership] = []
    now: dict[int, Ownership] = {}
    for line in log.read_text().splitlines():
        try:
            event, at, *what = json.loads(line)
        except json.JSONDecodeError:
            continue  # the process was killed as it wrote
        if event == "assigned":
            for partition in what[0]:
                assert partition not in now, f"{log.name} is given {partition} twice"
                now[partition] = Ownership(log.name, partition, at)
                found.append(now[partition])
        elif event in ("revoked", "lost"):
            for partition in what[0]:
                del now[partition]
        elif event == "done":
            now[what[0]].offsets += what[1]
        else:
            for partition, offset in what[1].items():
                now[int(partition)].commits.append((what[0], at, offset))
    return found


class Processes:
    def __init__(self, arguments: list[str], options: dict[str, Any], directory: Path) -> None:
        self._arguments, self._options, self._directory = arguments, json.dumps(options), directory
        self.running: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def start(self) -> None:
        log = self._directory / f"member-{self.started}.log"
        log.touch()
        self.started += 1
        command = [sys.executable, "-m", "tests.support.group_worker", *self._arguments, str(log), self._options]
        with (self._directory / f"member-{self.started}.err").open("wb") as stderr:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=stderr))

    def disturb(self, chance: random.Random) -> None:
        """Kill, stop, pause or add one."""
        if not self.running or (len(self.running) < MEMBERS_MAX and chance.random() < 0.5):
            self.start()
            return
        one = chance.choice(self.running)
        how = chance.choice(("kill", "pause", "long pause", "stop"))
        if how == "kill":
            one.kill()
        elif how == "stop":
            one.terminate()
        else:
            one.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 1.0) if how == "pause" else SESSION_MS / 1000 + chance.uniform(0.5, 2.0))
            one.send_signal(signal.SIGCONT)
            return
        self.running.remove(one)
        assert one.wait(60) in _ENDS, "a member failed: see its .err"

    def stop(self) -> None:
        for one in self.running:
            one.send_signal(signal.SIGCONT)
            one.terminate()
        codes = [one.wait(60) for one in self.running]
        assert set(codes) <= _ENDS, f"members failed: {codes}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_skipped_and_no_partition_has_two_owners(store: str, tmp_path: Path, protocol: str):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    topic, group = f"load-{protocol}", f"group-{protocol}"
    with Admin(store) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    posted = dict.fromkeys(range(PARTITIONS), 0)
    ended = threading.Event()

    def load() -> None:
        for turn in range(10**9):
            if ended.is_set():
                return
            posted[turn % PARTITIONS] = post(store, topic, turn % PARTITIONS, [b"x"] * 20) + 20
            time.sleep(0.02)

    posting = threading.Thread(target=load)
    posting.start()
    processes = Processes([store, group, topic], PROTOCOLS[protocol], tmp_path)
    try:
        for _ in range(3):
            processes.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            processes.disturb(chance)
            time.sleep(chance.uniform(0.2, 2.5))
        ended.set()
        posting.join()
        processes.start()
        _read_to_the_end(store, group, posted)
    finally:
        ended.set()
        posting.join()
        processes.stop()
    every = [owned for log in sorted(tmp_path.glob("member-*.log")) for owned in ownerships(log)]
    moves = len(every)
    print(f"{processes.started} members, {moves} ownerships, {sum(posted.values())} records")
    assert moves > 2 * PARTITIONS
    for partition, end in posted.items():
        _check_partition([owned for owned in every if owned.partition == partition], end)


def _read_to_the_end(store: str, group: str, posted: dict[int, int]) -> None:
    deadline = time.monotonic() + 90
    with Admin(store) as admin:
        while (found := {o.partition: o.offset for o in admin.group_offsets(group)}) != posted:
            assert time.monotonic() < deadline, f"committed {found} of {posted}"
            time.sleep(0.2)


def _check_partition(owned: list[Ownership], end: int) -> None:
    seen = {offset for each in owned for offset in each.offsets}
    assert seen == set(range(end)), f"{end - len(seen)} records were skipped"
    for each in owned:
        first = each.offsets[0] if each.offsets else 0
        assert each.offsets == list(range(first, first + len(each.offsets))), f"{each.member} reads out of order"
    committing = sorted((each for each in owned if each.commits), key=lambda each: each.commits[0][1])
    for before, after in itertools.pairwise(committing):
        taken_over = after.commits[0][1]
        late = [commit for commit in before.commits if commit[0] > taken_over]
        assert not late, f"{before.member} commits {late} after {after.member} has committed"
        # Of a member that was killed the last commit may not be written down.
        assert after.offsets[0] <= before.offsets[-1] + 1, f"{after.member} skips what {before.member} left"
    commits = sorted((commit for each in owned for commit in each.commits), key=lambda commit: commit[1])
    offsets = [offset for _, _, offset in commits]
    assert offsets == sorted(offsets), "a committed offset went back"
