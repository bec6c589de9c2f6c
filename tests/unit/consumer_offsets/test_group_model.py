"""Group offsets agree with a dictionary: commits, deletions of groups and topics, rolls, restarts, crashes.

A crash is a copy of the data directory while the store runs, as a kill -9 would leave it.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.context import INTERNAL
from logstore.errors import LogStoreError, UnknownGroupError
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.settings import Settings
from tests.support.data_directory import copy_of_one_moment
from tests.support.examples import examples
from tests.support.running_broker import produce, start_broker, stop_broker

PARTITIONS = 2
Committed = dict[tuple[str, int], tuple[int, str]]
#: Like ``Committed``, with a share of the partition's records in place of an offset.
Wanted = dict[tuple[str, int], tuple[float, str]]

groups = st.sampled_from(["a", "b", "c.d"])
topics = st.sampled_from(["t", "u"])
places = st.tuples(topics, st.integers(0, PARTITIONS - 1))
shares = st.floats(0, 1)
metadata = st.sampled_from(["", "x", 'é"\\\n', "\0"])
commits = st.dictionaries(places, st.tuples(shares, metadata), min_size=1, max_size=4)


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="logstore-groups-"))
        self.data = self.root / "0"
        self.crashes = 0
        self.ends: dict[str, list[int]] = {}
        self.model: dict[str, Committed] = {}

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def open(self, partitions: int = 3) -> None:
        self.broker = self.run(
            start_broker(Settings(data=self.data, offsets_topic_num_partitions=partitions, log_level="error"))
        )
        self.coordinator = self.run(GroupCoordinator.start(self.broker))

    def close(self) -> None:
        self.run(self.coordinator.close())
        self.run(stop_broker(self.broker))

    @initialize(partitions=st.sampled_from([1, 3]))
    def begin(self, partitions: int) -> None:
        self.open(partitions)

    @rule(topic=topics, count=st.integers(1, 5))
    def produce(self, topic: str, count: int) -> None:
        if topic not in self.ends:
            self.run(
                self.broker.topics.changes.create(
                    INTERNAL, topic, partitions=PARTITIONS, configs={"segment.ms": "100000000"}
                )
            )
            self.ends[topic] = [0] * PARTITIONS
        for partition in range(PARTITIONS):
            self.run(
                produce(
                    self.broker, self.broker.topics.served.topic(INTERNAL, topic), [b"x"] * count, partition=partition
                )
            )
            self.ends[topic][partition] += count

    def asked(self, wanted: Wanted) -> list[OffsetToCommit]:
        return [
            OffsetToCommit(topic, partition, int(share * self.ends[topic][partition]), text)
            for (topic, partition), (share, text) in wanted.items()
            if topic in self.ends
        ]

    @rule(group=groups, wanted=commits)
    def commit(self, group: str, wanted: Wanted) -> None:
        offsets = self.asked(wanted)
        if offsets:
            self.run(self.coordinator.commit(INTERNAL, group, offsets))
            self.model.setdefault(group, {}).update({(o.topic, o.partition): (o.offset, o.metadata) for o in offsets})

    @rule(requests=st.lists(st.tuples(groups, commits), min_size=2, max_size=4), deleted=st.none() | groups)
    def commit_at_once(self, requests: list[tuple[str, Wanted]], deleted: str | None) -> None:
        """Commit at once: appends follow the order of the calls, and the deletion removes commits under way."""

        async def at_once() -> None:
            work = [self.coordinator.commit(INTERNAL, group, offsets) for group, offsets in asked]
            await asyncio.gather(
                *work, *([self.coordinator.delete(INTERNAL, deleted)] if deleted in self.model else [])
            )

        asked = [(group, offsets) for group, wanted in requests if (offsets := self.asked(wanted))]
        self.run(at_once())
        known = deleted in self.model
        for group, offsets in asked:
            self.model.setdefault(group, {}).update({(o.topic, o.partition): (o.offset, o.metadata) for o in offsets})
        if known:
            del self.model[deleted]

    @rule(group=groups, wanted=commits, wrong=st.sampled_from(["offset", "partition", "metadata", "topic"]))
    def commit_something_wrong(self, group: str, wanted: Wanted, wrong: str) -> None:
        offsets = self.asked(wanted)
        if not offsets:
            return
        first = offsets[0]
        offsets.append(
            {
                "offset": OffsetToCommit(first.topic, 1 - first.partition, self.ends[first.topic][0] + 1),
                "partition": OffsetToCommit(first.topic, PARTITIONS, 0),
                "metadata": OffsetToCommit(first.topic, 1 - first.partition, 0, "x" * 4097),
                "topic": OffsetToCommit("absent", 0, 0),
            }[wrong]
        )
        with pytest.raises(LogStoreError):
            self.run(self.coordinator.commit(INTERNAL, group, offsets))

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        if group in self.model:
            self.run(self.coordinator.delete(INTERNAL, group))
            del self.model[group]
        else:
            with pytest.raises(UnknownGroupError):
                self.run(self.coordinator.delete(INTERNAL, group))

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        if topic in self.ends:
            self.run(self.broker.topics.changes.delete(INTERNAL, topic))
            del self.ends[topic]
            kept = {g: {k: v for k, v in found.items() if k[0] != topic} for g, found in self.model.items()}
            self.model = {group: found for group, found in kept.items() if found}

    @rule()
    def roll(self) -> None:
        for topic in self.broker.topics.served.all(INTERNAL, include_internal=True):
            self.run(self.broker.topics.tables.roll(INTERNAL, topic))

    @rule()
    def restart(self) -> None:
        self.close()
        self.open()

    @precondition(lambda self: self.crashes < 4)
    @rule()
    def crash(self) -> None:
        self.crashes += 1
        after = self.root / str(self.crashes)
        copy_of_one_moment(self.data, after)
        self.close()
        shutil.rmtree(self.data)
        self.data = after
        self.open()

    @invariant()
    def groups_are_the_models(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        assert self.coordinator.groups(INTERNAL) == sorted(self.model)
        for group, found in self.model.items():
            rows = self.coordinator.committed(INTERNAL, group)
            assert [((r.topic, r.partition), (r.offset, r.metadata)) for r in rows] == sorted(found.items())
            lags = self.coordinator.lag(INTERNAL, group)
            assert [(lag.topic, lag.partition, lag.lag) for lag in lags] == [
                (topic, partition, end - found.get((topic, partition), (0, ""))[0])
                for topic in sorted({topic for topic, _ in found})
                for partition, end in enumerate(self.ends[topic])
            ]

    def teardown(self) -> None:
        if hasattr(self, "coordinator"):
            self.close()
            self.check_table()
        self.loop.close()
        shutil.rmtree(self.root)

    def check_table(self) -> None:
        """Read the table after a clean stop, as readers of storage do: the latest row of each key, no tombstones."""
        path = self.data / "topics" / OFFSETS_TOPIC
        found: dict[str, Committed] = {}
        if path.exists():
            rows = DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist()
            latest = {
                (r["group"], r["topic"], r["topic_partition"]): r for r in sorted(rows, key=lambda r: r["offset"])
            }
            for (group, topic, partition), row in latest.items():
                if row["value"] is not None:
                    found.setdefault(group, {})[topic, partition] = (row["committed_offset"], row["metadata"])
        assert found == self.model


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = settings(
    max_examples=examples(15), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
