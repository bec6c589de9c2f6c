"""Faults of the members of consumer groups: they die, are stopped, join and leave, and their topics gain partitions.

What the checker cannot see is checked here: a member that is silent for its session is out of its group, and other
members own its partitions.
"""

import dataclasses
import signal
import time
from collections.abc import Sequence

import httpx

from logstore.client.admin import Admin
from tests.faults.bench.groups import Groups, GroupSpec, Member
from tests.faults.bench.history import Recorder
from tests.faults.bench.meddling import Meddler
from tests.faults.bench.nemesis import READY_S, Neighbour, StoreBrokenError, Streams
from tests.faults.bench.schedule import Fault
from tests.faults.bench.workload import Client, TopicSpec, Workload, tell_topic
from tests.support.server_process import FaultyServerProcess

_PARTITIONS_MAX = 8


class Rebalancer(Meddler):
    """A meddler with the ``groups`` of the run; ``grown`` is called with a shared topic that has more partitions."""

    def __init__(
        self,
        server: FaultyServerProcess,
        recorder: Recorder,
        topics: Sequence[TopicSpec],
        neighbours: list[Neighbour],
        jobs: Neighbour | None,
        groups: Groups,
        workload: Workload,
        *,
        streams: Streams | None = None,
        patience_s: float = READY_S,
    ) -> None:
        super().__init__(server, recorder, topics, neighbours, jobs, streams=streams, patience_s=patience_s)
        self._groups = groups
        self._workload = workload
        self._shared = [topic for topic in topics if topic.shared]

    # ---- members ----------------------------------------------------------------------------------------------------

    def _member_kill(self, fault: Fault) -> None:
        """Kill a member by SIGKILL; another replaces it, and a static member comes back before its session ends."""
        member = self._chosen_member(fault)
        self._told(fault, member=member.name)
        self._groups.kill_one(member)
        self._groups.add(member.group, member.instance_id)

    def _member_restart(self, fault: Fault) -> None:
        member = self._chosen_member(fault)
        self._told(fault, member=member.name)
        self._groups.close_one(member)
        self._groups.add(member.group, member.instance_id)

    def _member_add(self, fault: Fault) -> None:
        spec = self._chosen_group(fault)
        if len(self._groups.of(spec)) >= spec.members_max:
            self._groups.close_one(self._groups.of(spec)[0])
        self._told(fault, member=self._groups.add(spec).name)

    def _member_close(self, fault: Fault) -> None:
        """Close one member, but never the last one."""
        member = self._chosen_member(fault)
        if len(self._groups.of(member.group)) == 1:
            self._groups.add(member.group)
        self._told(fault, member=member.name)
        self._groups.close_one(member)

    def _member_pause(self, fault: Fault) -> None:
        """Stop a member, usually for less than a session."""
        member = self._chosen_member(fault)
        self._told(fault, member=member.name)
        member.process.send_signal(signal.SIGSTOP)
        time.sleep(min(fault.seconds, 1.0))
        member.process.send_signal(signal.SIGCONT)

    def _member_fence(self, fault: Fault) -> None:
        """Stop a member for longer than its session: other members get its partitions.

        Its commit, which comes after that, is refused (the checker judges it).
        """
        member = self._chosen_member(fault)
        spec = member.group
        if len(self._groups.of(spec)) == 1:
            self._groups.add(spec)
        if spec.kafka and not self._wait_until(lambda: self._has_begun(spec), self._patience_s):
            raise StoreBrokenError(f"group {spec.name} commits nothing of some partitions of {self._groups.topics}")
        self._require_settled(spec)
        fields, owned = self._groups.describe(spec).members.get(member.name, ({}, []))
        self._told(fault, member=member.name)
        member.process.send_signal(signal.SIGSTOP)
        try:
            others = {each.name for each in self._groups.of(spec)} - {member.name}
            if not self._wait_until(lambda: self._own_all(spec, others), self._patience_s):
                self.broken.append(
                    f"G7 {member.name} stands still, and its partitions {owned} do not become others': "
                    f"{self._groups.describe(spec)}"
                )
            if owned and fields:
                self._commit_as(member, fields, owned[0])
        finally:
            member.process.send_signal(signal.SIGCONT)

    def _has_begun(self, spec: GroupSpec) -> bool:
        """Return whether each partition has a committed offset.

        Where one is missing librdkafka asks for the beginning; 2.16 returns to it later, if it was stopped between the
        question and the answer.
        """
        partitions = {(topic, partition) for topic, count in self._groups.topics.items() for partition in range(count)}
        try:
            return self._groups.committed(spec).keys() >= partitions
        except httpx.HTTPError:
            return False

    def _own_all(self, spec: GroupSpec, members: set[str]) -> bool:
        found = self._groups.describe(spec)
        owned = [each for partitions in found.owned.values() for each in partitions]
        return found.owned.keys() == members and len(owned) == sum(self._groups.topics.values())

    def _commit_as(self, member: Member, fields: object, at: tuple[str, int]) -> None:
        """Commit as the former owner of a partition, once the present owner has reported that it owns the partition."""
        assert isinstance(fields, dict)
        # The new owner reports its partitions a moment after the store has assigned them.
        time.sleep(3.0)
        offset = self._groups.committed(member.group).get(at, 0)
        client = Client(self._server.url, member.name, self._recorder)
        client.commit(member.group.name, at[0], {at[1]: offset}, fields)
        client.close()

    # ---- the store, and topics --------------------------------------------------------------------------------------

    def _kill_when_settled(self, fault: Fault) -> None:
        """Kill the store under groups in which nothing happens: they continue as they were."""
        for spec in self._groups.specs:
            self._require_settled(spec)
        before = {spec.name: self._groups.describe(spec).generation for spec in self._groups.specs}
        self._kill(Fault("kill", 0, 0))
        self.faults[fault.kind] += 1
        for spec in self._groups.specs:
            self._require_settled(spec)
            after = self._groups.describe(spec).generation
            self._recorder.tell("nemesis", "group_restarted", group=spec.name, before=before[spec.name], after=after)

    def _grow(self, fault: Fault) -> None:
        at = int(fault.settings["which"] * len(self._shared))
        topic = self._shared[at]
        if topic.partitions < _PARTITIONS_MAX:
            topic = self._shared[at] = dataclasses.replace(topic, partitions=topic.partitions + 1)
            with Admin(self._server.url) as admin:
                admin.add_partitions(topic.name, topic.partitions)
            tell_topic(self._recorder, topic)
            self._workload.grown(topic)
            self._groups.topics[topic.name] = topic.partitions
        self._told(fault)

    @property
    def shared(self) -> list[TopicSpec]:
        """The shared topics with their current partitions."""
        return self._shared

    def _require_settled(self, spec: GroupSpec) -> None:
        if not self._wait_until(lambda: self._groups.is_settled(spec), self._patience_s):
            running = [member.name for member in self._groups.of(spec)]
            raise StoreBrokenError(f"group {spec.name} of {running} does not settle: {self._groups.describe(spec)}")

    def _chosen_group(self, fault: Fault) -> GroupSpec:
        return self._groups.specs[int(fault.settings["which"] * len(self._groups.specs))]

    def _chosen_member(self, fault: Fault) -> Member:
        members = self._groups.members
        return members[int(fault.settings["which"] * len(members))]
