"""Death and failing calls at every step that the store names and every kind of call that it makes to the disk.

The bounded form of ``python -m tests.faults.fail_points``, which goes through every fault at every point.
"""

import random
import re
from collections.abc import Iterator

import pytest

from tests.faults.fail_points.fault import is_named
from tests.faults.fail_points.loop import EACH, FailPointLoop, named_kills, sample_of_final
from tests.faults.fail_points.script import ACTS
from tests.faults.fail_points.zygote import ROOT, Zygote

#: Packages whose code names steps.
PACKAGES = ("logstore", "consumer_offsets", "compaction_jobs", "ingest_api")


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


@pytest.mark.parametrize("act", ACTS)
def test_killed_at_every_named_point_every_time(loop, act):
    for fault in named_kills(loop.hits(act)):
        # How often depends on when files are freed and rolls begin; that it comes there at all does not.
        assert loop.run(act, [fault]) or fault.nth > 1, f"{act} did not come to {fault}"


def test_every_step_that_the_store_names_is_reached(loop):
    sources = (path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    named = {point for source in sources for point in re.findall(r'\breached\("([a-z_.]+)"\)', source)}
    assert {point for act in ACTS for point in loop.hits(act) if is_named(point)} == named


@pytest.mark.parametrize("act", ACTS)
def test_an_operation_that_fails_at_each_of_its_calls_is_done_in_the_end(loop, act):
    for fault in EACH:
        loop.run(act, [fault])


@pytest.mark.parametrize("part", range(4))
def test_killed_in_calls_and_journal_stopped_for_good(loop, rng, part):
    hits = {act: loop.hits(act) for act in ACTS}
    for act, fault in sample_of_final(hits, rng)[part::4]:
        loop.run(act, [fault])


@pytest.mark.parametrize("act", ACTS)
def test_killed_in_recovery_again_and_again(loop, rng, act):
    points = sorted(rng.sample(range(1, 80), 8))
    loop.kill_recovery(act, rng.choice(named_kills(loop.hits(act))), points)


def test_calls_that_fail_in_recovery(loop, rng):
    act = rng.choice(list(ACTS))
    fault = rng.choice(named_kills(loop.hits(act)))
    loop.fail_recovery(act, fault, lambda errors: rng.sample(errors, min(12, len(errors))))
