import io

import pytest
from rich.console import Console

from docs.demo.checks import Checks, Contents

EXPECTED = {0: range(1), 1: range(5, 7)}


def passing() -> Checks:
    checks = Checks()
    checks.count("acknowledged", 3, 3)
    checks.contents("in Delta", Contents({0: range(1), 1: range(5, 7)}, dense=True), EXPECTED)
    checks.holds("in order", held=True)
    return checks


def test_all_checks_agree():
    assert passing().agree


def contents(offsets: dict[int, range]) -> Contents:
    return Contents(offsets, dense=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda checks: checks.count("acknowledged", 2, 3),
        lambda checks: checks.contents("other partitions", contents({0: range(2), 1: range(5, 6)}), EXPECTED),
        lambda checks: checks.contents("from elsewhere", contents({0: range(1), 1: range(4, 6)}), EXPECTED),
        lambda checks: checks.contents("a partition is missing", contents({1: range(5, 7)}), EXPECTED),
        lambda checks: checks.contents("a gap", Contents(EXPECTED, dense=False), EXPECTED),
        lambda checks: checks.holds("in order", held=False),
    ],
)
def test_a_check_that_fails_is_shown(spoil):
    checks = passing()
    spoil(checks)
    assert not checks.agree
    output = io.StringIO()
    Console(file=output, width=100).print(checks.table())
    assert output.getvalue().count("NO") == 1


def test_batches_that_follow_each_other_are_one():
    parts = [contents({0: range(10), 1: range(3, 5)}), contents({0: range(10, 12)}), contents({1: range(5, 9)})]
    assert Contents.joined(parts) == contents({0: range(12), 1: range(3, 9)})


@pytest.mark.parametrize(
    "second",
    [
        contents({0: range(11, 12)}),
        contents({0: range(9, 12)}),
        Contents({0: range(10, 12)}, dense=False),
    ],
)
def test_batches_with_a_gap_or_an_overlap_are_not_dense(second: Contents):
    assert not Contents.joined([contents({0: range(10)}), second]).dense
