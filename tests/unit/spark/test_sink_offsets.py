"""Commits of a sink contain a group's offsets, and show which commit follows which."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRequestError
from logstore.spark.offset_ranges import GroupRange
from logstore.spark.sink_commits import SinkOffsetsUnknownError, parse_user_metadata, user_metadata
from logstore.spark.sink_offsets import (
    GroupCommit,
    MirroredOffset,
    TopicRanges,
    commit_of_mirror,
    mirror_metadata,
    next_commit,
    remaining,
    with_empty_batch,
)
from tests.support.examples import examples

IDS = {"a": "id-a", "b": "id-b"}
NOTHING = GroupCommit("g")


def ranges(*spans: tuple[str, int, int, int]) -> list[GroupRange]:
    return [GroupRange(topic, partition, start, end, start) for topic, partition, start, end in spans]


def test_user_metadata_is_json_that_others_can_read():
    commit = next_commit(NOTHING, ranges(("a", 0, 5, 9)), IDS, "w")
    topics = [{"topic": "a", "topicId": "id-a", "ranges": {"0": [5, 9]}}]
    assert json.loads(user_metadata(commit)) == {
        "logstore": {"group": "g", "txnVersion": 1, "writer": "w", "topics": topics}
    }
    assert parse_user_metadata(user_metadata(commit), GroupCommit) == commit
    with pytest.raises(SinkOffsetsUnknownError, match="cannot be read"):
        parse_user_metadata('{"logstore": {"group": 7}}', GroupCommit)


def test_a_commit_carries_what_its_batch_does_not_have():
    first = next_commit(NOTHING, ranges(("a", 0, 0, 9), ("a", 1, 0, 3), ("b", 0, 0, 4)), IDS, "w")
    second = next_commit(first, ranges(("a", 1, 3, 7)), IDS, "x")
    assert (second.txn_version, second.writer) == (2, "x")
    assert second.positions == {("id-a", 0): 9, ("id-a", 1): 7, ("id-b", 0): 4}
    assert second.topics == (
        TopicRanges("a", "id-a", {0: (9, 9), 1: (3, 7)}),
        TopicRanges("b", "id-b", {0: (4, 4)}),
    )


def test_an_empty_batch_adds_positions_and_is_the_same_commit():
    last = next_commit(NOTHING, ranges(("a", 0, 0, 9)), IDS, "w")
    told = with_empty_batch(last, ranges(("a", 0, 9, 9), ("b", 0, 4, 4)), IDS)
    assert (told.txn_version, told.writer) == (1, "w")
    assert told.positions == {("id-a", 0): 9, ("id-b", 0): 4}


def test_a_topic_that_is_made_again_has_positions_of_its_own():
    # Another store may have a topic of this name and write to the same table, so the older positions stay.
    first = next_commit(NOTHING, ranges(("a", 0, 0, 9)), IDS, "w")
    second = next_commit(first, ranges(("a", 0, 0, 2)), {"a": "id-again"}, "w")
    assert second.positions == {("id-a", 0): 9, ("id-again", 0): 2}


@pytest.mark.parametrize(
    ("start", "end", "committed", "left"),
    [
        (10, 20, 10, (10, 20)),
        (5, 20, 5, (10, 20)),
        (5, 8, 5, (10, 10)),  # its end does not take the position back
        (0, 20, None, (10, 20)),
        (15, 20, 10, (15, 20)),  # retention removed the records between
    ],
)
def test_the_rest_of_a_batch_that_was_planned_without_the_sink_remains(start, end, committed, left):
    last = GroupCommit("g", 1, "w", (TopicRanges("a", "id-a", {0: (0, 10)}),))
    batch = [GroupRange("a", 0, start, end, committed), GroupRange("a", 1, 3, 4, None)]
    found = remaining(last, batch, IDS)
    assert [(r.start, r.end) for r in found] == [left, (3, 4)]


@pytest.mark.parametrize("committed", [15, None])
def test_a_batch_that_leaves_out_records_is_refused(committed):
    last = GroupCommit("g", 1, "w", (TopicRanges("a", "id-a", {0: (0, 10)}),))
    with pytest.raises(
        InvalidRequestError, match="begins at 15, and the sink has the records of group g up to 10 only"
    ):
        remaining(last, [GroupRange("a", 0, 15, 20, committed)], IDS)


def mirrored(topic: str, partition: int, offset: int, metadata: str) -> MirroredOffset:
    return MirroredOffset(topic, IDS[topic], partition, offset, metadata)


def test_committed_offsets_name_the_commit_that_they_mirror():
    of_sink, of_other = mirror_metadata("table", 7), mirror_metadata("other", 7)
    found = commit_of_mirror("g", "table", [mirrored("a", 0, 9, of_sink), mirrored("b", 1, 4, of_sink)])
    assert found.txn_version == 7
    assert found.positions == {("id-a", 0): 9, ("id-b", 1): 4}
    for others in ([], [mirrored("a", 0, 9, "")], [mirrored("a", 0, 9, of_other), mirrored("a", 1, 9, "mine")]):
        assert commit_of_mirror("g", "table", others) == NOTHING
    for metadata in ("", of_other, mirror_metadata("table", 6)):
        with pytest.raises(SinkOffsetsUnknownError, match="have been set since"):
            commit_of_mirror("g", "table", [mirrored("a", 0, 9, of_sink), mirrored("a", 1, 3, metadata)])


class Table:
    """A sink as Delta keeps it: it takes a transaction version once, and its rows are those of the commits."""

    def __init__(self) -> None:
        self.commits: list[GroupCommit] = []
        self.rows: list[tuple[str, int, int]] = []

    @property
    def last(self) -> GroupCommit:
        return self.commits[-1] if self.commits else NOTHING

    def write(self, commit: GroupCommit, batch: list[GroupRange]) -> None:
        if commit.txn_version > self.last.txn_version:
            self.commits.append(commit)
            self.rows += [(r.topic, r.partition, n) for r in batch for n in range(r.start, r.end)]


STEPS = ("produce", "plan", "plan", "plan without", "write", "write", "mirror", "reset")


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(300))
def test_runs_in_any_order_that_stop_anywhere_write_each_record_once(random):
    table, planned = Table(), []
    ends = {("a", 0): 0, ("a", 1): 0, ("b", 0): 0}
    mirror = dict(ends)

    def in_sink() -> dict[tuple[str, int], int]:
        return {place: table.last.positions.get((IDS[place[0]], place[1]), 0) for place in ends}

    def batch_from(positions: dict[tuple[str, int], int]) -> list[GroupRange]:
        topics = random.choice([("a",), ("b",), ("a", "b")])
        return [
            GroupRange(topic, partition, start, random.randint(start, ends[topic, partition]), mirror[topic, partition])
            for (topic, partition), start in positions.items()
            if topic in topics
        ]

    for _ in range(40):
        place = random.choice(sorted(ends))
        match random.choice(STEPS):
            case "produce":
                ends[place] += random.randint(1, 5)
            case "plan":
                batch = batch_from(in_sink())
                planned.append((next_commit(table.last, batch, IDS, "w"), batch))
            case "plan without":
                with contextlib.suppress(InvalidRequestError):
                    batch = remaining(table.last, batch_from(mirror), IDS)
                    planned.append((next_commit(table.last, batch, IDS, "w"), batch))
            case "write" if planned:
                table.write(*planned.pop(random.randrange(len(planned))))
            case "mirror" if table.commits:
                # A run may do this late.
                commit = random.choice(table.commits)
                mirror |= {(t.topic, p): end for t in commit.topics for p, (_, end) in t.ranges.items()}
            case "reset" if in_sink()[place]:
                mirror[place] = random.randint(0, ends[place])
        assert sorted(table.rows) == sorted((*p, n) for p, end in in_sink().items() for n in range(end))
