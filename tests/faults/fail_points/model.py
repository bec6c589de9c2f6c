"""The content that a store may have after a history of operations, some of which were cut short or failed.

One client does one thing after the other (except for requests of ``together``), so that little is ever in doubt. Each
operation is an ``invoke`` and then ``ok`` (done, acknowledged), ``fail`` (not done: the store said so) or ``info``
(unknown); an operation without a completion is also unknown. The rules:

* an acknowledged request's records are at their places; a request in doubt is stored whole, in one piece, or not at
  all; a failed one is not stored; nothing else is stored, and nothing twice; offsets have no gaps (A1-A5, B1, B2);
* a topic, its partitions, its configuration, its log starts and a group's offsets are as the last acknowledged
  operation left them, or as one in doubt after it would: each as a whole (G3).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]
#: (topic, partition) -> offset
Offsets = dict[tuple[str, int], int]


@dataclass(slots=True)
class Batch:
    """One request's records in one partition."""

    values: list[str]
    outcome: str = "info"
    base_offset: int = -1


@dataclass(slots=True)
class TopicModel:
    exists: set[bool] = field(default_factory=lambda: {False})
    partitions: set[int] = field(default_factory=set)
    configs: dict[str, set[str | None]] = field(default_factory=dict)
    batches: dict[int, list[Batch]] = field(default_factory=dict)
    #: The possible log starts, by partition.
    starts: dict[int, set[int]] = field(default_factory=dict)


class Model:
    def __init__(self, history: Iterable[Line]) -> None:
        self.topics: dict[str, TopicModel] = {}
        #: The possible states, by group.
        self.groups: dict[str, list[Offsets]] = {}
        self._before: dict[str, list[Offsets]] = {}
        self.founds = 0
        for line in history:
            self._take(line)

    def _topic(self, name: str) -> TopicModel:
        return self.topics.setdefault(name, TopicModel())

    def _take(self, line: Line) -> None:
        operation, phase = line["op"], line["phase"]
        if operation == "found":
            self.check(line)
            self.founds += 1
            return
        getattr(self, f"_{operation}", lambda *_: None)(phase, line)

    # ---- operations -------------------------------------------------------------------------------------------------

    def _create(self, phase: str, line: Line) -> None:
        topic = self._topic(line["topic"])
        if phase == "ok" and topic.exists == {True}:
            return
        if phase in {"invoke", "ok"}:
            topic.partitions = {line["partitions"]}
            topic.configs = {key: {value} for key, value in line["configs"].items()}
        topic.exists = {"invoke": topic.exists | {True}, "ok": {True}, "fail": {False}}.get(phase, topic.exists)

    def _delete(self, phase: str, line: Line) -> None:
        name = line["topic"]
        if phase == "ok":
            self.topics[name] = TopicModel()
            for group, states in self.groups.items():
                self.groups[group] = [without_topic(state, name) for state in states]
        else:
            topic = self._topic(name)
            topic.exists = {"invoke": topic.exists | {False}, "fail": {True}}.get(phase, topic.exists)

    def _alter(self, phase: str, line: Line) -> None:
        configs = self._topic(line["topic"]).configs
        for key, value in line["changes"].items():
            _settle(configs.setdefault(key, {None}), phase, value)

    def _add_partitions(self, phase: str, line: Line) -> None:
        _settle(self._topic(line["topic"]).partitions, phase, line["total"])

    def _delete_records(self, phase: str, line: Line) -> None:
        starts = self._topic(line["topic"]).starts.setdefault(line["partition"], {0})
        _settle(starts, phase, line["before"])

    def _produce(self, phase: str, line: Line) -> None:
        topic = self._topic(line["topic"])
        for partition, values in line["parts"].items():
            batches = topic.batches.setdefault(int(partition), [])
            if phase == "invoke":
                batches.append(Batch(values))
                continue
            batch = next(batch for batch in batches if batch.values == values)
            batch.outcome = phase
            if phase == "ok":
                batch.base_offset = line["bases"][partition]

    def _commit(self, phase: str, line: Line) -> None:
        change = {(topic, partition): offset for topic, partition, offset in line["offsets"]}
        self._change_group(phase, line["group"], lambda state: state | change)

    def _delete_group(self, phase: str, line: Line) -> None:
        self._change_group(phase, line["group"], lambda _: {})

    def _change_group(self, phase: str, group: str, change: Any) -> None:
        states = self.groups.setdefault(group, [{}])
        if phase == "invoke":
            self._before[group] = states
            self.groups[group] = states + [change(state) for state in states]
        elif phase == "ok":
            self.groups[group] = [change(state) for state in self._before[group]]
        elif phase == "fail":
            self.groups[group] = self._before[group]

    # ---- what is found ----------------------------------------------------------------------------------------------

    def check(self, found: Line) -> None:
        """Check the content; from here on the outcomes that were in doubt are decided.

        Raises AssertionError that names each contradiction.
        """
        for name in {*self.topics, *found["topics"]}:
            topic = self._topic(name)
            there = name in found["topics"]
            assert there in topic.exists, f"topic {name} is {'' if there else 'not '}there"
            topic.exists = {there}
            if there:
                _check_topic(name, topic, found["topics"][name])
            else:
                self.topics[name] = TopicModel()
        for group in {*self.groups, *found["groups"]}:
            offsets: Offsets = {(name, partition): offset for name, partition, offset in found["groups"].get(group, [])}
            possible = self.groups.get(group, [{}])
            for name in [name for name, topic in self.topics.items() if topic.exists == {False}]:
                possible = [without_topic(state, name) for state in possible]
            assert offsets in possible, f"group {group} has {offsets}; possible is {possible}"
            self.groups[group] = [offsets]


def without_topic(state: Offsets, name: str) -> Offsets:
    return {key: offset for key, offset in state.items() if key[0] != name}


def _settle(possible: set[Any], phase: str, value: Any) -> None:
    """Add a value in doubt to the possible ones, or make an acknowledged one the only one."""
    if phase == "invoke":
        possible.add(value)
    elif phase == "ok":
        possible.clear()
        possible.add(value)
    elif phase == "fail" and len(possible) > 1:
        possible.discard(value)


def _check_topic(name: str, topic: TopicModel, found: Line) -> None:
    partitions = len(found["partitions"])
    assert partitions in topic.partitions, f"{name} has {partitions} partitions; possible is {topic.partitions}"
    topic.partitions = {partitions}
    for key, possible in topic.configs.items():
        value = found["configs"].get(key)
        assert value in possible, f"{name} has {key}={value}; possible is {possible}"
        topic.configs[key] = {value}
    for partition, log in enumerate(found["partitions"]):
        starts = topic.starts.get(partition, {0})
        assert log["log_start"] in starts, f"{name}-{partition} starts at {log['log_start']}; possible is {starts}"
        topic.starts[partition] = {log["log_start"]}
        _check_log(f"{name}-{partition}", topic.batches.get(partition, []), log)


def _check_log(name: str, batches: list[Batch], log: Line) -> None:
    start, rows = log["log_start"], [tuple(row) for row in log["rows"]]
    end = log["high_watermark"]
    assert [offset for offset, _ in rows] == list(range(start, end)), f"{name}: of {start} to {end} there are {rows}"
    place = {value: offset for offset, value in rows}
    assert len(place) == len(rows), f"{name} holds a record twice: {rows}"
    for batch in batches:
        found = [place.pop(value, None) for value in batch.values]
        whole = list(range(base, base + len(found))) if (base := _base(batch, found)) >= 0 else []
        expected = [offset if offset >= start else None for offset in whole] or [None] * len(found)
        assert found == expected, f"{name}: {batch} is at {found}"
        assert batch.outcome != "fail" or found == [None] * len(found), f"{name}: {batch} is there"
        if batch.outcome == "info":
            batch.outcome, batch.base_offset = ("ok", base) if base >= 0 else ("fail", -1)
    assert not place, f"{name} holds what nobody sent: {place}"


def _base(batch: Batch, found: list[int | None]) -> int:
    """Return where the batch must begin, or -1 if it is nowhere."""
    if batch.outcome == "ok":
        return batch.base_offset
    return next((offset - at for at, offset in enumerate(found) if offset is not None), -1)
