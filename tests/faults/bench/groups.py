"""Consumer groups in a run: processes that are their members, and how the store describes the groups meanwhile.

Invariants: each member has its own name, which is its ``client_id`` and so appears in descriptions; a process that is
started again is another member, also under the same ``group.instance.id``.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.faults.bench.history import Recorder
from tests.faults.bench.workload import Client

ROOT = Path(__file__).parents[3]
SESSION_MS = 2_000
#: Settings of the store that allow short sessions and rebalances.
ENVIRONMENT = {
    "LOGSTORE_GROUP_MIN_SESSION_TIMEOUT_MS": "100",
    "LOGSTORE_GROUP_INITIAL_REBALANCE_DELAY_MS": "200",
    "LOGSTORE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "LOGSTORE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "200",
}
_COMMON = {"max_poll_records": 100, "max_poll_interval_ms": 10_000, "metadata_max_age_ms": 1_000}
_CLASSIC = {**_COMMON, "session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 200}
_LOOK_S = 0.2
#: A member closes its consumer within this time, even while the store is away.
_CLOSE_S = 90
#: SIGTERM may come before the process handles it.
_ENDS = {0, -signal.SIGTERM}


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group with ``members`` at the beginning and at most ``members_max``; every other member is static.

    Each takes ``seconds_a_batch`` to process the records of a poll. ``options`` are those of ``logstore.Consumer``, or
    of librdkafka.
    """

    name: str
    options: Mapping[str, Any]
    members: int = 2
    members_max: int = 3
    seconds_a_batch: float = 0.03
    #: True if members use Kafka's protocol.
    kafka: bool = False
    #: A group of several kinds of members: each member that is added has the next kind, also one that replaces another.
    kinds: tuple["GroupSpec", ...] = ()


RANGE = GroupSpec("range", _CLASSIC)
COOPERATIVE = GroupSpec("cooperative", {**_CLASSIC, "partition_assignment_strategy": "cooperative-sticky"})
CONSUMER = GroupSpec("consumer", {**_COMMON, "group_protocol": "consumer"})
_KAFKAS = {"max.poll.interval.ms": 10_000, "topic.metadata.refresh.interval.ms": 1_000}
_KAFKAS_CLASSIC = {**_KAFKAS, "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 200}
KAFKA_COOPERATIVE = GroupSpec(
    "kafka-cooperative", {**_KAFKAS_CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}, kafka=True
)
KAFKA_CONSUMER = GroupSpec("kafka-consumer", {**_KAFKAS, "group.protocol": "consumer"}, kafka=True)
_KAFKA_RANGE = GroupSpec("kafka-range", {**_KAFKAS_CLASSIC, "partition.assignment.strategy": "range"}, kafka=True)
#: Members of both protocols and of both interfaces: the group changes its type as they come and go (KIP-848).
MIXED = GroupSpec(
    "mixed", {}, members=3, kafka=True, kinds=(CONSUMER, _KAFKA_RANGE, KAFKA_CONSUMER, RANGE, _KAFKA_RANGE)
)
MIXED_COOPERATIVE = GroupSpec(
    "mixed-cooperative", {}, members=3, kafka=True, kinds=(KAFKA_COOPERATIVE, CONSUMER, COOPERATIVE, KAFKA_CONSUMER)
)


@dataclass(slots=True)
class Member:
    name: str
    group: GroupSpec
    instance_id: str | None
    process: subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class Description:
    """The members by name: the fields by which each commits, and its partitions."""

    state: str = ""
    generation: int = -1
    members: Mapping[str, tuple[Mapping[str, Any], list[tuple[str, int]]]] = field(default_factory=dict)

    @property
    def owned(self) -> dict[str, list[tuple[str, int]]]:
        return {name: owned for name, (_, owned) in self.members.items()}


class Groups:
    """All groups of a run. ``start`` and ``kill`` act on all members, as if they shared a machine with the store.

    ``topics`` are the partitions of the shared topics by name; their number may grow.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        recorder: Recorder,
        specs: Sequence[GroupSpec],
        topics: Mapping[str, int],
        directory: Path,
        bootstrap: str,
    ) -> None:
        self.specs = specs
        self.topics = dict(topics)
        self.members: list[Member] = []
        self.failures: list[str] = []
        self._urls = [url] if isinstance(url, str) else list(url)
        self._recorder = recorder
        self._directory = directory
        self._bootstrap = bootstrap
        self._client = Client(self._urls, "groups", recorder)
        self._numbers = itertools.count()
        self._counts = {spec.name: spec.members for spec in specs}
        self._stop = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        for spec in specs:
            recorder.tell("bench", "group", group=spec.name, topics=sorted(topics), session_ms=SESSION_MS)
        self._watching.start()

    @property
    def _url(self) -> str:
        return random.choice(self._urls)

    # ---- members ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start as many members as there were."""
        for spec in self.specs:
            for number in range(self._counts[spec.name]):
                self.add(spec, f"{spec.name}-static-{number}" if number % 2 else None)

    def kill(self) -> None:
        """Kill all of them with kill -9."""
        self._counts = {spec.name: len(self.of(spec)) for spec in self.specs}
        for member in list(self.members):
            self.kill_one(member)

    def of(self, spec: GroupSpec) -> list[Member]:
        return [member for member in self.members if member.group is spec]

    def add(self, spec: GroupSpec, instance_id: str | None = None) -> Member:
        number = next(self._numbers)
        name = f"{spec.name}-m{number}"
        kind = spec.kinds[number % len(spec.kinds)] if spec.kinds else spec
        instance = "group.instance.id" if kind.kafka else "group_instance_id"
        options = {**kind.options, **({instance: instance_id} if instance_id else {})}
        module = "kafka_group_member" if kind.kafka else "group_member"
        address = self._bootstrap if kind.kafka else ",".join(self._urls)
        topics, seconds = json.dumps(sorted(self.topics)), str(spec.seconds_a_batch)
        given = [address, str(self._recorder.path), name, spec.name, topics, seconds]
        with (self._directory / f"{name}.err").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", f"tests.faults.bench.{module}", *given, json.dumps(options)],
                cwd=ROOT,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        member = Member(name, spec, instance_id, process)
        self.members.append(member)
        return member

    def kill_one(self, member: Member) -> None:
        self.members.remove(member)
        # The kill is recorded before it happens: from then on nobody owns the member's partitions.
        self._recorder.tell("nemesis", "fault", kind="member_killed", member=member.name)
        member.process.kill()
        member.process.wait()

    def close_one(self, member: Member) -> None:
        """Close the member's consumer and end its process."""
        self.members.remove(member)
        member.process.terminate()
        try:
            code = member.process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            code = None
            member.process.kill()
            member.process.wait()
        if code not in _ENDS:
            said = (self._directory / f"{member.name}.err").read_text()[-2000:]
            self.failures.append(f"member {member.name} ended with {code}: {said}")

    def end(self) -> None:
        """Close all members."""
        self._stop.set()
        self._watching.join()
        for member in list(self.members):
            self.close_one(member)
        self._client.close()

    def abandon(self) -> None:
        """Kill all members, because the run is over, whatever has happened."""
        self._stop.set()
        self._watching.join()
        for member in self.members:
            member.process.kill()
            member.process.wait()
        self.members.clear()

    # ---- what the store says ----------------------------------------------------------------------------------------

    def describe(self, spec: GroupSpec) -> Description:
        """Describe the group outside the history; the description is empty if the store is away or does not know it."""
        try:
            answer = httpx.get(f"{self._url}/groups/{spec.name}", timeout=10)
        except httpx.HTTPError:
            return Description()
        return _description(answer) if answer.is_success else Description()

    def is_settled(self, spec: GroupSpec) -> bool:
        """Return whether the running members are those of the group, and own all partitions."""
        return self._shows_settled(self.describe(spec), spec)

    def _shows_settled(self, found: Description, spec: GroupSpec) -> bool:
        wanted = {(topic, partition) for topic, count in self.topics.items() for partition in range(count)}
        owned = [each for partitions in found.owned.values() for each in partitions]
        return (
            found.state.lower() == "stable"
            and found.owned.keys() == {member.name for member in self.of(spec)}
            and len(owned) == len(wanted)
            and set(owned) == wanted
        )

    def _tell_settled(self, spec: GroupSpec, deadline: float) -> None:
        """Record the group with the live members once it is settled, or its state at the deadline.

        The answer that shows that the group is settled is the one that is judged: if the machine stalls, sessions may
        end between two answers.
        """

        def told(http: httpx.Response) -> Mapping[str, Any]:
            found = _description(http)
            is_last = self._shows_settled(found, spec) or time.monotonic() > deadline
            live = {"live": [member.name for member in self.of(spec)]} if is_last else {}
            return {"state": found.state, "generation": found.generation, "members": found.owned, **live}

        while True:
            answer, found = self._client.call("described", "GET", f"/groups/{spec.name}", told, {"group": spec.name})
            if "live" in found or (not answer.ok and time.monotonic() > deadline):
                return
            time.sleep(_LOOK_S)

    def committed(self, spec: GroupSpec) -> dict[tuple[str, int], int]:
        """Return committed offsets, outside the history. Raises httpx.HTTPError."""
        answer = httpx.get(f"{self._url}/groups/{spec.name}/offsets", timeout=10)
        rows = answer.json()["offsets"] if answer.is_success else []
        return {(row["topic"], row["partition"]): row["offset"] for row in rows}

    def drain(self, ends: Mapping[tuple[str, int], int], seconds: float) -> list[str]:
        """Wait until every group has committed up to ``ends`` and is settled, and record it; return what is missing."""
        deadline = time.monotonic() + seconds
        while missing := self._missing(ends):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
        for spec in self.specs:
            self._tell_settled(spec, deadline)
        return missing

    def _missing(self, ends: Mapping[tuple[str, int], int]) -> list[str]:
        missing = []
        for spec in self.specs:
            try:
                committed = self.committed(spec)
            except httpx.HTTPError:
                committed = {}
            behind = {at: f"{committed.get(at)} of {end}" for at, end in ends.items() if end != committed.get(at, 0)}
            if behind:
                found = f"it has committed {behind}: {self.describe(spec)}"
                missing.append(f"G5 group {spec.name} comes to no end, {found}")
            elif not self.is_settled(spec):
                missing.append(f"G1 group {spec.name} does not settle: {self.describe(spec)}")
        return missing

    def _watch(self) -> None:
        client = Client(self._urls, "watch", self._recorder)
        while not self._stop.wait(_LOOK_S):
            for spec in self.specs:
                self._tell_seen(client, spec)
        client.close()

    @staticmethod
    def _tell_seen(client: Client, spec: GroupSpec) -> None:
        def told(http: httpx.Response) -> Mapping[str, Any]:
            found = _description(http)
            return {"state": found.state, "generation": found.generation, "members": found.owned}

        client.call("described", "GET", f"/groups/{spec.name}", told, {"group": spec.name})


def _description(http: httpx.Response) -> Description:
    found = http.json()
    members = {
        row["client_id"]: (
            {
                "member_id": row["member_id"],
                "group_instance_id": row["group_instance_id"],
                "generation": found["generation"] if row["member_epoch"] < 0 else row["member_epoch"],
            },
            [(each["topic"], each["partition"]) for each in row["assignment"]],
        )
        for row in found["members"]
    }
    return Description(found["state"], found["generation"], members)
