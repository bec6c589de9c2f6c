from collections.abc import Mapping, Sequence

import pytest

from benchmarks.load.result import percentiles_ms
from benchmarks.measure import Finding, Sample, Target, find, median_sample


def rates(*values: float) -> list[Sample]:
    return [Sample(records_s=value) for value in values]


def found(target: Target, samples: Mapping[str, Sequence[Sample]]) -> Finding:
    finding = find(target, samples)
    assert finding is not None
    return finding


def test_a_ratio_is_of_one_round_and_its_spread_from_the_lowest_to_the_highest():
    # Both were slow in the second round, so a ratio of figures of different rounds would be wrong.
    samples = {"ours": rates(100, 10, 120), "kafka": rates(50, 5, 40)}
    finding = found(Target("records_s", "kafka", at_least=2.0), samples)
    assert finding.values == (2.0, 2.0, 3.0)
    assert (finding.median, finding.text, finding.verdict) == (2.0, "2.00 (2.00-3.00)", "reached")


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (Target("p99_ms", "kafka", at_most=3.0), "reached"),
        (Target("p99_ms", "kafka", at_most=2.9), "short"),
        (Target("p99_ms", "kafka", at_least=3.0), "reached"),
        (Target("p99_ms", "kafka", at_least=3.1), "short"),
        (Target("p99_ms", "kafka"), ""),
        (Target("p99_ms", at_most=6.0), "reached"),
        (Target("p99_ms", at_most=5.9), "short"),
    ],
)
def test_a_target_is_reached_or_short(target: Target, verdict: str):
    samples = {"ours": [Sample(p99_ms=6.0)], "kafka": [Sample(p99_ms=2.0)]}
    assert found(target, samples).verdict == verdict


def test_a_target_may_be_about_another_contender_of_ours():
    samples = {"ours": rates(1), "poll_arrow": rates(8), "kafka": rates(4)}
    assert found(Target("records_s", "kafka", of="poll_arrow"), samples).median == 2.0


def test_nothing_is_found_without_both_sides():
    assert find(Target("records_s", "kafka"), {"ours": rates(1)}) is None
    assert find(Target("p99_ms"), {"ours": rates(1)}) is None
    assert find(Target("records_s", "kafka"), {"ours": rates(1), "kafka": rates(0)}) is None


def test_the_median_of_samples_leaves_out_what_was_not_measured():
    median = median_sample([Sample(records_s=1, p99_ms=5), Sample(records_s=9), Sample(records_s=2)])
    assert (median.records_s, median.p99_ms, median.mb_s) == (2, 5, None)


def test_percentiles_are_latencies_that_were_measured():
    latencies = [number / 1000 for number in range(1000, 0, -1)]
    assert percentiles_ms(latencies) == {"p50_ms": 500.0, "p99_ms": 990.0, "p999_ms": 999.0}
    assert percentiles_ms([0.004]) == {"p50_ms": 4.0, "p99_ms": 4.0, "p999_ms": 4.0}
    assert percentiles_ms([]) == {}
