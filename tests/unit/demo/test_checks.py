import io

import pytest
from rich.console import Console

from logstore.demo.main import Checks
from logstore.demo.reading import Contents


def passing() -> Checks:
    checks = Checks()
    checks.count("acknowledged", 3, 3)
    checks.contents("in Delta", Contents({0: 1, 1: 2}, dense=True), {0: 1, 1: 2})
    checks.holds("in order", held=True)
    return checks


def test_everything_agrees():
    assert passing().agree


@pytest.mark.parametrize(
    "spoil",
    [
        lambda checks: checks.count("acknowledged", 2, 3),
        lambda checks: checks.contents("same sum, other partitions", Contents({0: 2, 1: 1}, dense=True), {0: 1, 1: 2}),
        lambda checks: checks.contents("a partition is missing", Contents({1: 2}, dense=True), {0: 1, 1: 2}),
        lambda checks: checks.contents("a gap", Contents({0: 1, 1: 2}, dense=False), {0: 1, 1: 2}),
        lambda checks: checks.holds("in order", held=False),
    ],
)
def test_one_that_does_not_is_seen_and_shown(spoil):
    checks = passing()
    spoil(checks)
    assert not checks.agree
    output = io.StringIO()
    Console(file=output, width=100).print(checks.table())
    assert output.getvalue().count("NO") == 1
