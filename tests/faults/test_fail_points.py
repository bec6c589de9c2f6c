"""Death and failing calls at every step that the store names and every kind of call that it makes to the disk.

The bounded form of ``python -m tests.faults.fail_points``, which goes through every fault at every point.
"""

import random
import re
from collections.abc import Iterator

import pytest

from tests.faults.fail_points import jobs
from tests.faults.fail_points.fault import Fault, is_named
from tests.faults.fail_points.loop import (
    EACH,
    FailPointLoop,
    named_kills,
    named_power_cuts,
    sample_of_final,
)
from tests.faults.fail_points.script import ACTS
from tests.faults.fail_points.zygote import ROOT, Zygote
from tests.faults.test_repair_kills import REBUILD_POINTS
from tests.spark.programs.test_exactly_once import STEPS as SINK_STEPS
from tests.support.examples import stride
from tests.unit.broker.test_erasing import POINTS as ERASURE_POINTS

pytestmark = pytest.mark.system

#: Packages whose code names steps.
PACKAGES = ("logstore", "consumer_offsets", "compaction_jobs", "ingest_api")

#: The steps at which a process may die, as a reader of the protocols would list them, each with an act and its point.
#: Those of replication, of transactions and of ZooKeeper come with these.
STEPS = {
    "produce: parsed": ("journal", "produce.parsed"),
    "produce: written to the journal": ("journal", "journal.written"),
    "produce: fsynced, before the high watermark": ("journal", "journal.synced"),
    "produce: the high watermark is advanced": ("journal", "produce.durable"),
    "produce: before the answer": ("answers", "ack.before_send"),
    "produce: half of the answer is sent": ("answers", "ack.half_sent"),
    "journal: a file is begun": ("journal", "journal.file_created"),
    "journal: a file begins with its snapshot": ("journal", "journal.snapshotted"),
    "journal: what pins a file is copied": ("journal", "journal.relocated"),
    "journal: trimmed": ("journal", "journal.file_freed"),
    "roll: a segment is opened": ("journal", "segment.opened"),
    "roll: half a segment": ("journal", "segment.half"),
    "roll: a segment is durable": ("journal", "segment.finished"),
    "commit: a snapshot is read": ("history", "delta.opened"),
    "commit: checked": ("history", "delta.checked"),
    "commit: the entry is linked": ("history", "delta.committed"),
    "commit: the entry is durable": ("history", "delta.synced"),
    "checkpoint: written, before the hint": ("history", "delta.checkpointed"),
    "checkpoint: the hint is written": ("history", "delta.vouched"),
    "checkpoint: old entries are gone": ("history", "delta.cleaned"),
    "retention: the start is moved, half of the files are gone": ("history", "retention.start_moved"),
    "retention: planned and written": ("history", "job.written"),
    "topic: its table is staged": ("topics", "delta.staged"),
    "topic: made": ("topics", "topic.created"),
    "topic: deleted by name": ("topics", "topic.removed"),
    "topic: half of its files are gone": ("topics", "topic.purge_half"),
    "group: a commit is written": ("groups", "journal.written"),
    "group: a commit is durable": ("groups", "produce.durable"),
    "group: half of the answer is sent": ("answers", "ack.half_sent"),
    "recovery: half of the journal is read": ("start_and_stop", "journal.recovery_half"),
    "recovery: half of the topics are there": ("start_and_stop", "recovery.half"),
    "compaction: half a segment": ("jobs", "segment.half"),
    "compaction: written": ("jobs", "job.written"),
    "compaction: committed": ("jobs", "delta.committed"),
    "vacuum: half of the files are gone": ("history", jobs.VACUUMED),
}


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Iterator[FailPointLoop]:
    with Zygote() as zygote:
        made = FailPointLoop(zygote, tmp_path_factory.mktemp("stores"))
        yield made
    print(made.tally)


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("part", range(2))
def test_killed_at_every_named_point_in_one_of_the_acts_that_come_there(loop, rng, part):
    """In the act of its step; ``test_every_step_is_reached`` holds the steps to all named points."""
    for act, point in sorted({(act, point) for act, point in STEPS.values() if act in ACTS})[part::2]:
        kill_at(loop, rng, act, point)


@pytest.mark.long
@pytest.mark.parametrize("act", ACTS)
def test_killed_at_every_named_point(loop, rng, act):
    for point in {fault.point: None for fault in named_kills(loop.hits(act))}:
        kill_at(loop, rng, act, point)


def kill_at(loop: FailPointLoop, rng: random.Random, act: str, point: str) -> None:
    """Kill the process at one of the act's visits to the point."""
    count = loop.hits(act)[point]
    # The number of visits depends on when files are freed and rolls begin; one there is always.
    struck = (loop.run(act, [Fault(point, nth, "kill")]) for nth in (rng.randint(1, count), 1))
    assert any(struck), f"{act} did not come to {point}"


@pytest.mark.long
def test_jobs_killed_at_every_named_point(loop):
    loop.kill_jobs(jobs.STEPS)


@pytest.mark.spark
@pytest.mark.long
def test_a_job_of_spark_killed_while_it_writes(loop):
    loop.kill_jobs([jobs.WRITING])


@pytest.mark.parametrize("part", range(2))
def test_power_cut_at_every_named_point(loop, rng, part):
    """``make test`` takes a third of the points, each time others."""
    hits = {act: loop.hits(act) for act in ACTS}
    apart = 2 * stride(1)
    for act, fault in named_power_cuts(hits, rng)[2 * rng.randrange(stride(1)) + part :: apart]:
        loop.run(act, [fault])


def test_every_step_is_reached(loop):
    sources = (path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    named = {point for source in sources for point in re.findall(r'\breached\("([a-z_.]+)"\)', source)}
    named -= set(REBUILD_POINTS)  # no store runs: test_repair_kills kills there
    named -= set(ERASURE_POINTS)  # test_erasing goes on there with what a kill leaves
    named -= set(SINK_STEPS)  # of a Spark driver: test_exactly_once kills it there
    reached = {act: {point for point in loop.hits(act) if is_named(point)} for act in ACTS}
    assert {point for points in reached.values() for point in points if not point.startswith("ack.")} == named
    missing = [step for step, (act, point) in STEPS.items() if point not in {**reached, "jobs": jobs.STEPS}[act]]
    assert not missing
    assert {point for _, point in STEPS.values()} >= named


@pytest.mark.parametrize("act", ACTS)
def test_an_operation_that_fails_at_each_of_its_calls_is_done_in_the_end(loop, act):
    """With one of the errors in ``make test``, another in the next act."""
    for fault in EACH[list(ACTS).index(act) % stride(1) :: stride(1)]:
        loop.run(act, [fault])


@pytest.mark.parametrize("part", range(2))
def test_killed_in_calls_and_journal_stopped_for_good(loop, rng, part):
    """At a third of them in ``make test``, each time others."""
    hits = {act: loop.hits(act) for act in ACTS}
    apart = 2 * stride(1)
    for act, fault in sample_of_final(hits, rng)[2 * rng.randrange(stride(1)) + part :: apart]:
        loop.run(act, [fault])


@pytest.mark.long
@pytest.mark.parametrize("act", ACTS)
def test_killed_in_recovery_again_and_again(loop, rng, act):
    points = sorted(rng.sample(range(1, 80), 9 // stride(1)))
    loop.kill_recovery(act, rng.choice(named_kills(loop.hits(act))), points)


@pytest.mark.long
def test_calls_that_fail_in_recovery(loop, rng):
    act = rng.choice(list(ACTS))
    fault = rng.choice(named_kills(loop.hits(act)))
    loop.fail_recovery(act, fault, lambda errors: rng.sample(errors, min(12, len(errors))))
