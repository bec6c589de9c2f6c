from collections import Counter

import pytest

from benchmarks.cases import CLUSTER, DEFAULT, KAFKA, MATRIX, choose
from benchmarks.rivals import PRODUCED
from benchmarks.server import BenchmarkError


def test_every_case_has_a_name_of_its_own():
    assert Counter(case.name for case in (*DEFAULT, *KAFKA, *CLUSTER, *MATRIX)).most_common(1)[0][1] == 1


@pytest.mark.parametrize("case", [*DEFAULT, *KAFKA, *CLUSTER, *MATRIX], ids=lambda case: case.name)
def test_contenders_differ_and_targets_name_them(case):
    names = [contender.name for contender in case.contenders]
    assert len(set(names)) == len(names)
    assert names[0] == "ours"
    for target in case.targets:
        assert target.of in names
        assert target.against is None or target.against in names
        assert target.at_least is None or target.at_most is None


def test_cases_are_chosen_by_name_and_pattern_in_their_order():
    assert [case.name for case in choose(["roll", "produce-json-1*"])] == [
        "produce-json-100",
        "produce-json-1k",
        "roll",
    ]
    assert choose([]) == [*DEFAULT, *KAFKA, *CLUSTER]
    assert choose([], full=True) == [*DEFAULT, *KAFKA, *CLUSTER, *MATRIX]


def test_a_pattern_without_a_case_is_refused():
    with pytest.raises(BenchmarkError, match="produce-jason"):
        choose(["roll", "produce-jason"])


def test_the_matrix_has_every_axis():
    suffixes = {case.name.removeprefix("matrix-json-100") for case in MATRIX if "-json-100" in case.name}
    assert suffixes == {"", "-random", "-p1", "-p1000", "-c1", "-c32", "-b1", "-b100", "-b10000"}


def test_the_output_of_kafkas_tool_is_read():
    line = (
        "2000000 records sent, 612345.6 records/sec (58.40 MB/sec), 12.41 ms avg latency, 267.00 ms max latency, "
        "9 ms 50th, 34 ms 95th, 56 ms 99th, 78 ms 99.9th.\n"
    )
    window = "100 records sent, 20.0 records/sec (0.00 MB/sec), 1.0 ms avg latency, 2.0 ms max latency.\n"
    assert PRODUCED.findall(window + line) == [("2000000", "612345.6", "9", "56", "78")]
