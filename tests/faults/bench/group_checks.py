"""Members of groups: one owner of a partition at a time (G1), nothing from a former owner (G2), offsets and membership
that survive (G3), every record processed (G5), in order (C2), by live members (G7).

A member owns a partition from its ``assigned`` to its ``revoked`` or ``lost``, or to its death. It may own it longer
than the store thinks only if the store did not hear from it for a while: because it was stopped or starved (``stall``),
or because the store did not answer. Then it counts as fenced until it notices.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from tests.faults.bench.evidence import FOREVER, Anomaly, Call, Evidence, ranges
from tests.faults.bench.history import (
    Assigned,
    Commit,
    Described,
    Event,
    Fault,
    Group,
    GroupRestarted,
    Lost,
    Processed,
    Revoked,
    Stall,
    TopicPartition,
)

#: An answer that took this long shows that the store hardly ran, or did not run.
_SLOW_NS = 400_000_000
#: A silent member is out of its group after a session, and notices that some requests later.
_SESSIONS = 3


def check_groups(evidence: Evidence) -> Iterator[Anomaly]:
    for group in evidence.singles(Group):
        found = _Group(evidence, group)
        yield from found.strange
        for partition, ownerships in sorted(found.ownerships.items()):
            yield from _check_owners(found, ownerships)
            yield from _check_order(found, partition, ownerships)
            yield from _check_begins(found, partition, ownerships)
            yield from _check_processed(found, partition, ownerships)
        yield from _check_never_read(found)
        yield from _check_losses(found)
        yield from _check_descriptions(found)
    yield from _check_restarts(evidence)


@dataclass(slots=True, eq=False)
class _Ownership:
    """The ownership of one member; ``closed`` is the event that ended it, None if the member died or the run ended."""

    member: str
    partition: TopicPartition
    begun: Assigned
    end: int = FOREVER
    closed: Revoked | Lost | None = None
    processed: list[Processed] = field(default_factory=list)

    @property
    def begin(self) -> int:
        return self.begun.t

    @property
    def offsets(self) -> list[int]:
        return [offset for event in self.processed for offset, _ in event.rows]


class _Group:
    """The evidence of one group, by partition and in the order of time."""

    def __init__(self, evidence: Evidence, group: Group) -> None:
        self.name = group.group
        self.session_ns = group.session_ms * 1_000_000
        self.topics = group.topics
        self.evidence = evidence
        self.strange: list[Anomaly] = []
        self.ownerships: dict[TopicPartition, list[_Ownership]] = defaultdict(list)
        self.losses: list[Lost] = [event for event in evidence.singles(Lost) if event.group == self.name]
        self.descriptions = [call for call in evidence.calls(Described) if call.asked.group == self.name]
        self.commits: dict[TopicPartition, list[Call[Commit]]] = defaultdict(list)
        for call in evidence.calls(Commit):
            if call.asked.group == self.name:
                for partition in call.asked.offsets:
                    self.commits[call.asked.topic, partition].append(call)
        self._stalls: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for stall in evidence.singles(Stall):
            self._stalls[stall.process].append((stall.since, stall.t))
        self._away = _away(evidence)
        self._put_together()

    def _put_together(self) -> None:
        kinds = (Assigned, Revoked, Lost, Processed)
        events: list[Event] = [e for kind in kinds for e in self.evidence.singles(kind) if e.group == self.name]
        events += [fault for fault in self.evidence.faults if fault.kind == "member_killed"]
        #: The partitions that each member owns now.
        now: dict[str, dict[TopicPartition, _Ownership]] = defaultdict(dict)
        for event in sorted(events, key=lambda event: event.t):
            owned = now[event.process]
            match event:
                case Assigned():
                    for partition in event.partitions:
                        if partition in owned:
                            where = f"group {self.name}: {event.process} is given {_named(partition)} twice"
                            self.strange.append(Anomaly("G1", "partition is assigned again", where, (event,)))
                            owned[partition].end = event.t
                        owned[partition] = _Ownership(event.process, partition, event)
                        self.ownerships[partition].append(owned[partition])
                case Revoked() | Lost():
                    for partition in event.partitions:
                        if ended := owned.pop(partition, None):
                            ended.end, ended.closed = event.t, event
                case Fault():
                    for ended in now.pop(event.member, {}).values():
                        ended.end = event.t
                case Processed():
                    if by := owned.get((event.topic, event.partition)):
                        by.processed.append(event)
                    else:
                        where = f"group {self.name}: {event.process} of {event.topic}-{event.partition}"
                        self.strange.append(Anomaly("G1", "records of a partition that is not owned", where, (event,)))

    def unheard(self, member: str, begin: int, end: int) -> bool:
        """Return whether a session of the member may have ended between, or a little later: it or the store was
        stopped.
        """
        since = begin - _SESSIONS * self.session_ns
        silent = (*self._stalls[member], *self._away)
        return any(until > since and first < end for first, until in silent)


def _away(evidence: Evidence) -> list[tuple[int, int]]:
    """Return when the store was away, or a fault may have delayed its answers.

    The times reach from a fault to what heals it; slow answers add the time that they took.
    """
    healed = sorted([*evidence.starts, *(heal.t for heal in evidence.heals)])
    found = []
    for fault in evidence.faults:
        if not fault.member:
            at = bisect_right(healed, fault.t)
            found.append((fault.t, healed[at] if at < len(healed) else FOREVER))
    for call in evidence.calls(Described):
        until = FOREVER if call.told is None else call.told.t
        if until - call.begin > _SLOW_NS or not call.ok:
            found.append((call.begin, until))
    return found


def _named(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


# ---- G1, G2 ---------------------------------------------------------------------------------------------------------


def _check_owners(group: _Group, ownerships: list[_Ownership]) -> Iterator[Anomaly]:
    """Check ownerships by rising begin. A former owner may process what it has until it notices; it commits nothing
    more.
    """
    for before, after in pairwise(ownerships):
        where = f"group {group.name}, {_named(before.partition)}: {before.member}, then {after.member}"
        if before.end > after.begin:
            dead = before.closed is None and before.end != FOREVER
            until = min(before.end, after.begin + _SESSIONS * group.session_ns)
            if not (isinstance(before.closed, Lost) or dead) and not group.unheard(before.member, after.begin, until):
                yield Anomaly("G1", "partition has two owners", where, _events(before, after))
    for at, owned in enumerate(ownerships[1:], start=1):
        begins = [each for each in ownerships[:at] if each.member != owned.member]
        members = {each.member for each in begins}
        for call in group.commits[owned.partition]:
            member = call.asked.process
            if call.ok and member in members and call.begin > owned.begin:
                latest = max(each.begin for each in ownerships if each.member == member and each.begin < call.begin)
                if latest < owned.begin:
                    where = f"group {group.name}, {_named(owned.partition)} of {owned.member}: by {member}"
                    yield Anomaly("G2", "commit of a former owner is accepted", where, (owned.begun, *call.events))
                    break


def _events(*ownerships: _Ownership) -> tuple[Event, ...]:
    return tuple(e for owned in ownerships for e in (owned.begun, owned.closed) if e is not None)


# ---- C2, G3, G5 -----------------------------------------------------------------------------------------------------


def _check_order(group: _Group, partition: TopicPartition, ownerships: list[_Ownership]) -> Iterator[Anomaly]:
    for owned in ownerships:
        offsets = owned.offsets
        for before, after in pairwise(offsets):
            if after != before + 1:
                name = "records skipped by a member" if after > before else "records of a member go back"
                where = f"group {group.name}, {_named(partition)}: {owned.member} has {after} after {before}"
                yield Anomaly("C2", name, where, (owned.begun,))
                break
    log = group.evidence.log(*partition)
    for owned in ownerships:
        for event in owned.processed:
            other = [at for at, record_id in event.rows if log.seen.get(at, (at, 0, record_id))[2] != record_id]
            if other:
                where = f"group {group.name}, {_named(partition)}: {owned.member} at {ranges(other)}"
                yield Anomaly("A4", "a member and another reader, two records", where, (event,))
                break


def _check_begins(group: _Group, partition: TopicPartition, ownerships: list[_Ownership]) -> Iterator[Anomaly]:
    """Check that an owner begins at a possible committed offset.

    It does not begin before an acknowledged one, and not after all that were sent.
    """
    commits = group.commits[partition]
    offset_of = partition[1]
    done = sorted((call.told.t, call.asked.offsets[offset_of]) for call in commits if call.ok and call.told)
    done_most = list(accumulate((offset for _, offset in done), max))
    sent = sorted((call.begin, call.asked.offsets[offset_of]) for call in commits)
    sent_most = list(accumulate((offset for _, offset in sent), max))
    for owned in ownerships:
        if not (offsets := owned.offsets):
            continue
        first, at = offsets[0], owned.processed[0].t
        known = bisect_left(done, (owned.begin, 0))
        least = done_most[known - 1] if known else 0
        begun = bisect_left(sent, (at, 0))
        most = sent_most[begun - 1] if begun else 0
        where = f"group {group.name}, {_named(partition)}: {owned.member} begins at {first}"
        if first < least:
            yield Anomaly("G3", "owner begins before the committed offset", f"{where}, {least} was committed before")
        if first > most:
            yield Anomaly("G5", "owner begins after the committed offset", f"{where}, nobody has committed over {most}")


def _check_processed(group: _Group, partition: TopicPartition, ownerships: list[_Ownership]) -> Iterator[Anomaly]:
    """Check that whatever is committed has been processed before, and that in the end everything is processed."""
    processed = sorted((event for owned in ownerships for event in owned.processed), key=lambda event: event.t)
    commits = sorted((call for call in group.commits[partition] if call.ok), key=lambda call: call.begin)
    seen: set[int] = set()
    frontier = at = 0
    for call in commits:
        while at < len(processed) and processed[at].t <= call.begin:
            seen.update(offset for offset, _ in processed[at].rows)
            at += 1
        while frontier in seen:
            frontier += 1
        offset = call.asked.offsets[partition[1]]
        if offset > frontier:
            where = f"group {group.name}, {_named(partition)}: {offset}, the first record not processed is {frontier}"
            yield Anomaly("G5", "commit of records that nobody has processed", where, call.events)
            break
    every = {offset for event in processed for offset, _ in event.rows}
    yield from _unprocessed(group, partition, every)


def _check_never_read(group: _Group) -> Iterator[Anomaly]:
    for (topic, partition), log in sorted(group.evidence.logs.items()):
        if topic in group.topics and (topic, partition) not in group.ownerships and log.rows:
            yield from _unprocessed(group, (topic, partition), set())


def _unprocessed(group: _Group, partition: TopicPartition, processed: Iterable[int]) -> Iterator[Anomaly]:
    log = group.evidence.log(*partition)
    if missing := sorted(log.rows.keys() - set(processed)):
        where = f"group {group.name}, {_named(partition)}: {ranges(missing)}"
        yield Anomaly("G5", "record was never processed", where)


# ---- membership -----------------------------------------------------------------------------------------------------


def _check_losses(group: _Group) -> Iterator[Anomaly]:
    for lost in group.losses:
        if not group.unheard(lost.process, lost.t, lost.t):
            where = f"group {group.name}: {lost.process} loses {', '.join(map(_named, lost.partitions))}"
            yield Anomaly("G7", "member that was heard of is out of its group", where, (lost,))


def _check_descriptions(group: _Group) -> Iterator[Anomaly]:
    told = [(call, call.told) for call in group.descriptions if call.ok and call.told]
    told.sort(key=lambda each: each[1].t)
    ends = [each.t for _, each in told]
    highest = list(accumulate((each.generation for _, each in told), max))
    fell = False
    for call, description in told:
        known = bisect_left(ends, call.begin)
        if not fell and known and description.generation < highest[known - 1]:
            fell = True
            where = f"group {group.name}: {description.generation} after {highest[known - 1]}"
            yield Anomaly("G2", "generation fell", where, call.events)
        owners: dict[TopicPartition, str] = {}
        for member, partitions in description.members.items():
            for partition in partitions:
                if owners.setdefault(partition, member) != member:
                    where = f"group {group.name}, {_named(partition)}: {owners[partition]} and {member}"
                    yield Anomaly("G1", "two members are assigned a partition", where, call.events)
        if description.live is not None:
            yield from _check_settled(group, description, owners)


def _check_settled(group: _Group, description: Described, owners: dict[TopicPartition, str]) -> Iterator[Anomaly]:
    assert description.live is not None
    gone = sorted(description.members.keys() - set(description.live))
    if gone:
        yield Anomaly("G7", "member that is gone is in its group", f"group {group.name}: {gone}", (description,))
    wanted = {
        (topic, partition) for topic in group.topics for partition in range(max(group.evidence.topic(topic).partitions))
    }
    if nobodys := sorted(wanted - owners.keys()):
        where = f"group {group.name}: {', '.join(map(_named, nobodys))}"
        yield Anomaly("G1", "partition without an owner", where, (description,))


def _check_restarts(evidence: Evidence) -> Iterator[Anomaly]:
    losses = [lost.t for lost in evidence.singles(Lost)]
    starts = evidence.starts
    for told in evidence.singles(GroupRestarted):
        started = starts[max(0, bisect_right(starts, told.t) - 1)] if starts else told.t
        # A member that the store did not hear from in time leaves, and comes back.
        excused = 2 * sum(started < lost <= told.t for lost in losses)
        if told.after > told.before + 1 + excused:
            where = f"group {told.group}: generation {told.before}, then {told.after}"
            yield Anomaly("G2", "more than one rebalance after a restart", where, (told,))
