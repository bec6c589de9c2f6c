"""Judges the history of a cluster: H1 to H8 of the guarantees (``docs/fault-tests.md``).

It is pure, as the checker beside it. The state in ZooKeeper is certain from when a document was reported to the last
read that showed it; between two documents nothing is known.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.faults.bench.evidence import Anomaly, Call, Evidence, Log, LogName
from tests.faults.bench.history import Fetch, Final, Probe, Produce, Registered, Replica, ReplicaFrame
from tests.faults.cluster.brokers import SESSION_MS
from tests.faults.cluster.journals import rows_digest

#: The time between the history's line of a fault and the fault.
_TOLD_NS = 10**9
#: The time between a change of the ISR and ZooKeeper's answer to the leader that has written it.
_ANSWERED_NS = 10**9


@dataclass(frozen=True, slots=True)
class Certain:
    """The certain state of a partition in ZooKeeper during [``begin``, ``end``]; ``mzxid`` orders the states."""

    begin: int
    end: int
    mzxid: int
    leader: int
    epoch: int
    in_sync: tuple[int, ...]
    replicas: tuple[int, ...]
    told: Registered


def check_cluster(evidence: Evidence, *, min_in_sync: int) -> Iterator[Anomaly]:
    states = _states(evidence)
    for name, known in states.items():
        yield from _check_leaders(name, known)
    yield from _check_acknowledgements(evidence, states, min_in_sync)
    yield from _check_probes(evidence, states)
    yield from _check_replicas(evidence, states)


def _states(evidence: Evidence) -> dict[LogName, list[Certain]]:
    documents: dict[str, list[Registered]] = defaultdict(list)
    for told in evidence.singles(Registered):
        documents[told.topic].append(told)
    states: dict[LogName, list[Certain]] = defaultdict(list)
    for topic, told_of in documents.items():
        for at, told in enumerate(told_of):
            following = told_of[at + 1] if at + 1 < len(told_of) else None
            if at and told.mzxid == told_of[at - 1].mzxid:
                continue
            end = max(told.t, following.seen_until) if following else told.t
            for partition, (leader, epoch, in_sync, replicas) in enumerate(told.partitions):
                known = states[topic, partition]
                new = Certain(told.t, end, told.mzxid, leader, epoch, tuple(in_sync), tuple(replicas), told)
                before = known[-1] if known else None
                if before and replace(new, begin=0, end=0, mzxid=0, told=told) == replace(
                    before, begin=0, end=0, mzxid=0, told=told
                ):
                    # Another partition of the topic has changed.
                    known[-1] = replace(before, end=end)
                else:
                    known.append(new)
    return states


# ---- H1, H2 ---------------------------------------------------------------------------------------------------------


def _check_leaders(name: LogName, known: list[Certain]) -> Iterator[Anomaly]:
    leaders: dict[int, int] = {}
    last = None
    for state in sorted(known, key=lambda one: one.mzxid):
        where = f"{name[0]}-{name[1]}"
        if state.leader >= 0:
            if leaders.setdefault(state.epoch, state.leader) != state.leader:
                message = f"{where}: {leaders[state.epoch]} and {state.leader} in epoch {state.epoch}"
                yield Anomaly("H1", "two leaders in an epoch", message, (state.told,))
            if state.leader not in state.in_sync:
                message = f"{where}: leader {state.leader}, in sync are {list(state.in_sync)}"
                yield Anomaly("H2", "leader is not in sync", message, (state.told,))
        if not set(state.in_sync) <= set(state.replicas):
            yield Anomaly("H2", "in sync without being a replica", f"{where}: {state.in_sync}", (state.told,))
        if last is not None and state.epoch < last.epoch:
            yield Anomaly("H1", "epoch fell", f"{where}: {state.epoch}, was {last.epoch}", (last.told, state.told))
        if last is not None and state.epoch == last.epoch and state.leader not in {last.leader, -1}:
            message = f"{where}: {last.leader}, then {state.leader}, in epoch {state.epoch}"
            yield Anomaly("H1", "leader changed without a new epoch", message, (last.told, state.told))
        last = state


def _state_during(known: list[Certain], call: Call[Produce] | Call[Probe]) -> Certain | None:
    """Return the state that lasted throughout a call; None if it is not known, or changed."""
    at = bisect_right(known, call.begin, key=lambda state: state.begin) - 1
    if at < 0 or call.told is None or known[at].end < call.told.t:
        return None
    return known[at]


# ---- H5, H8 ---------------------------------------------------------------------------------------------------------


def _check_acknowledgements(
    evidence: Evidence, states: dict[LogName, list[Certain]], min_in_sync: int
) -> Iterator[Anomaly]:
    for request in evidence.requests:
        call = request.call
        if call.asked.acks not in {"all", "-1", -1} or not call.ok:
            continue
        for partition in {sent.acknowledged[0] for sent in request.records if sent.acknowledged}:
            known = states.get((request.asked.topic, partition), [])
            state = _state_during(known, call)
            if (
                state is not None
                and _has_too_few(state, min_in_sync)
                and not _is_to_hear(state, known, call, min_in_sync)
            ):
                where = f"{request.asked.topic}-{partition}: in sync were {list(state.in_sync)} all the time"
                yield Anomaly("H5", "acks=all below min.insync.replicas", where, (*call.events, state.told))


def _has_too_few(state: Certain, min_in_sync: int) -> bool:
    return len(state.in_sync) < min(min_in_sync, len(state.replicas))


def _is_to_hear(state: Certain, known: list[Certain], call: Call[Produce], min_in_sync: int) -> bool:
    """Return whether the leader has removed a follower from the ISR, and may not have ZooKeeper's answer yet.

    Until then it counts the ISR before and the new one together (KIP-497), so that as many replicas as before have the
    records.
    """
    at = known.index(state)
    before = known[at - 1] if at else None
    return (
        before is not None
        and (before.leader, before.epoch) == (state.leader, state.epoch)
        and not _has_too_few(before, min_in_sync)
        and call.begin < state.begin + _ANSWERED_NS
    )


def _check_probes(evidence: Evidence, states: dict[LogName, list[Certain]]) -> Iterator[Anomaly]:
    floors = _Floors(evidence)
    for call in evidence.calls(Probe):
        if not call.ok or call.told is None or call.told.offset < 0:
            continue
        asked, told = call.asked, call.told
        state = _state_during(states.get((asked.topic, asked.partition), []), call)
        where = f"{asked.topic}-{asked.partition} by broker {asked.broker}"
        if asked.record_id:
            if (
                state is not None
                and state.leader != asked.broker
                and not _is_hearing(state, call)
                and not _is_expired(evidence, call)
            ):
                message = (
                    f"{where}: {asked.record_id} was acknowledged, while {state.leader} led in epoch {state.epoch}"
                )
                yield Anomaly("H8", "acknowledged by a former leader", message, (asked, told, state.told))
        elif state is not None and state.leader == asked.broker:
            floor = floors.at((asked.topic, asked.partition), call.begin)
            if told.offset < floor:
                message = f"{where}: {told.offset} in epoch {state.epoch}, {floor} was told before"
                yield Anomaly("H4", "high watermark fell", message, (asked, told, state.told))


def _is_hearing(state: Certain, call: Call[Probe]) -> bool:
    """Return whether the broker's session holds, and it will soon learn that it leads no longer.

    An election of a preferred leader takes the partition from a broker that stays in the ISR. The lease is for brokers
    that cannot be notified.
    """
    return call.asked.broker in state.in_sync and call.begin < state.begin + SESSION_MS * 1_000_000


def _is_expired(evidence: Evidence, call: Call[Probe]) -> bool:
    """Return whether another client has ended the session early: the lease of its broker lasts a little longer."""
    before = [fault.t for fault in evidence.faults if fault.kind == "session_expired" and fault.t <= call.begin]
    return bool(before) and call.begin < max(before) + SESSION_MS * 1_000_000 + _TOLD_NS


class _Floors:
    """The highest end that any reader was shown before a time, by log."""

    def __init__(self, evidence: Evidence) -> None:
        shown: dict[LogName, list[tuple[int, int]]] = defaultdict(list)
        for name, log in evidence.logs.items():
            for batch in log.batches:
                call = batch.request.call
                if call.ok and call.told and call.asked.acks == "all":
                    ends = [s.acknowledged[1] + 1 for s in batch.request.records if s.acknowledged]
                    of_log = [s for s in batch.request.records if s.acknowledged and s.acknowledged[0] == log.partition]
                    if ends and of_log:
                        shown[name].append((call.told.t, max(s.acknowledged[1] + 1 for s in of_log if s.acknowledged)))
        for fetch in evidence.calls(Fetch):
            if fetch.ok and fetch.told:
                shown[fetch.asked.topic, fetch.asked.partition].append((fetch.told.t, fetch.told.high_watermark))
        for probe in evidence.calls(Probe):
            if probe.ok and probe.told and not probe.asked.record_id:
                shown[probe.asked.topic, probe.asked.partition].append((probe.told.t, probe.told.offset))
        self._times: dict[LogName, list[int]] = {}
        self._ends: dict[LogName, list[int]] = {}
        for name, told in shown.items():
            told.sort()
            highest, ends = 0, []
            for _, end in told:
                highest = max(highest, end)
                ends.append(highest)
            self._times[name], self._ends[name] = [t for t, _ in told], ends

    def at(self, name: LogName, t: int) -> int:
        at = bisect_right(self._times.get(name, []), t) - 1
        return self._ends[name][at] if at >= 0 else 0


# ---- H3, H6, H7 -----------------------------------------------------------------------------------------------------


def _check_replicas(evidence: Evidence, states: dict[LogName, list[Certain]]) -> Iterator[Anomaly]:
    """Check that in-sync replicas have every record that any client was shown, and all of them the same frames."""
    floors = _Floors(evidence)
    looks: dict[tuple[LogName, int], list[Replica]] = defaultdict(list)
    ends = [final.t for final in evidence.singles(Final)]
    looked: dict[int, list[Replica]] = defaultdict(list)
    for replica in evidence.singles(Replica):
        if replica.error:
            yield Anomaly("H6", "damaged journal", f"broker {replica.broker}: {replica.error}", (replica,))
            continue
        looked[replica.look].append(replica)
        looks[(replica.topic, replica.partition), replica.look].append(replica)
    for (name, _), replicas in looks.items():
        log = evidence.log(*name)
        state = _state_at(states.get(name, []), replicas[0].t)
        if state is None or log.final is None:
            continue
        floor = log.final.high_watermark if ends and replicas[0].t > max(ends) else floors.at(name, replicas[0].t)
        in_sync = [replica for replica in replicas if replica.broker in state.in_sync]
        for broker in set(state.in_sync) - {replica.broker for replica in in_sync}:
            if floor > replicas[0].sealed:
                yield Anomaly("H3", "replica has no journal", f"{log.name}: broker {broker}, records end at {floor}")
        for replica in in_sync:
            yield from _check_replica(log, replica, floor)
        yield from _check_equal(log, in_sync, floor)
    yield from _check_removed(evidence, list(looked.values()))


def _state_at(known: list[Certain], t: int) -> Certain | None:
    """Return the last state before ``t``: no broker ran that could have changed it since."""
    at = bisect_right(known, t, key=lambda state: state.begin) - 1
    return known[at] if at >= 0 else None


def _check_replica(log: Log, replica: Replica, floor: int) -> Iterator[Anomaly]:
    at = replica.sealed
    for base, count, epoch, _, rows in replica.frames:
        if base + count <= replica.sealed:
            continue
        if base > at:
            break
        at = max(at, base + count)
        known = [log.rows.get(offset) for offset in range(base, base + count)]
        if base + count <= floor and None not in known and rows_digest([row for row in known if row]) != rows:
            where = f"{log.name} offsets {base}-{base + count - 1} of epoch {epoch} on broker {replica.broker}"
            yield Anomaly("H6", "replica differs from the log", where, (replica,))
    if at < floor:
        where = f"{log.name}: broker {replica.broker} is in sync and ends at {at}, records end at {floor}"
        yield Anomaly("H3", "replica in sync lacks records", where, (replica,))


def _check_equal(log: Log, replicas: list[Replica], floor: int) -> Iterator[Anomaly]:
    """Check that replicas have equal frames, apart from older epochs below the sealed offset.

    Records below the sealed offset are read from the table. A replica that begins again there, or starts with a table
    that is ahead of its journal, may have frames of an older epoch below, which do not count: the sealed records are
    the same in each epoch.
    """
    frames: dict[tuple[int, int], tuple[int, ReplicaFrame]] = {}
    for replica in replicas:
        for frame in replica.frames:
            end = frame[0] + frame[1]
            if end > floor:
                continue
            place = (frame[0], frame[2] if end <= replica.sealed else -1)
            broker, known = frames.setdefault(place, (replica.broker, frame))
            if known != frame:
                message = f"{log.name}: {known} on broker {broker}, {frame} on broker {replica.broker}"
                yield Anomaly("H6", "replicas differ", message, (replica,))
                return


def _newest(frames: set[ReplicaFrame]) -> set[ReplicaFrame]:
    """Return ``frames`` without those whose offsets exist in a newer epoch.

    Records that an older leader never committed may lie below the sealed offset (``_check_equal``).
    """
    epochs: dict[int, int] = {}
    for base, count, epoch, _, _ in frames:
        for offset in range(base, base + count):
            epochs[offset] = max(epoch, epochs.get(offset, epoch))
    return {frame for frame in frames if epochs[frame[0]] == frame[2]}


def _check_removed(evidence: Evidence, looked: list[list[Replica]]) -> Iterator[Anomaly]:
    """Check that no log has a truncated frame any more: leaders decide that by epochs alone."""
    ends = [final.t for final in evidence.singles(Final)]
    if not ends or not looked or looked[-1][0].t < max(ends):
        return  # the run broke off: replicas that are down may not have truncated yet
    kept: dict[LogName, set[ReplicaFrame]] = defaultdict(set)
    for replica in looked[-1]:
        kept[replica.topic, replica.partition].update(replica.frames)
    kept = {name: _newest(frames) for name, frames in kept.items()}
    # A document that was read may lack replicas that leave and return within a moment.
    moved = {(fault.topic, fault.moved) for fault in evidence.faults if fault.kind == "move"}
    for look in looked:
        for replica in look:
            name = replica.topic, replica.partition
            if name in moved:
                continue  # a broker drops all frames of a partition that moves to other brokers
            for frame in replica.removed:
                if frame in kept.get(name, ()):
                    where = f"{name[0]}-{name[1]}: {frame} was truncated on broker {replica.broker}"
                    yield Anomaly("H7", "truncated below what is committed", where, (replica,))
