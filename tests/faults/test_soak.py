"""The soak in short, and what it finds in bad runs. An hour of it is run by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from logstore.limits import MIB
from tests.faults.bench.soak import JOURNAL_BYTES_MAX, Sample, SoakReport, soak

CHANGED = 'logstore_job_topics_total{operation="%s",outcome="changed"}'
FAILED = 'logstore_job_topics_total{operation="retention",outcome="failed"}'


def good_run() -> SoakReport:
    report = SoakReport(100.0, 10_000.0, 20_000.0)
    for n in range(100):
        report.samples.append(Sample(float(n), 200 * MIB, 50, 150 * MIB, 10, 20 * MIB, 100 * MIB, 200))
    report.latencies = [(n / 100, 0.010) for n in range(10_000)]
    report.jobs = {CHANGED % job: 3.0 for job in ("retention", "compact", "vacuum")} | {FAILED: 0.0}
    return report


def found_in(report: SoakReport) -> list[str]:
    return report.judge()


def test_a_good_run_is_good():
    assert found_in(good_run()) == []
    assert "10,000 records/s for 100 s" in str(good_run())


@pytest.mark.parametrize(
    ("figure", "end", "words"),
    [
        ("store_rss", 600 * MIB, "memory of the store"),
        ("store_files", 200, "open files of the store"),
        ("jobs_rss", 600 * MIB, "memory of the jobs"),
        ("jobs_files", 200, "open files of the jobs"),
        ("data_files", 2_000, "data files"),
    ],
)
def test_growth_is_found(figure: str, end: int, words: str):
    report = good_run()
    for n in range(100):
        whole = getattr(report.samples[n], figure)
        report.samples[n] = replace(report.samples[n], **{figure: whole + (end - whole) * n // 99})
    (problem,) = found_in(report)
    assert problem.startswith(f"{words} grew from ")


def test_bounds_that_were_passed_once_are_found():
    report = good_run()
    report.samples[50] = replace(report.samples[50], journal=JOURNAL_BYTES_MAX + 1, disk=10**10)
    journal, disk = found_in(report)
    assert journal.startswith("the journal had ")
    assert disk.startswith("the disk had ")


def test_slow_acknowledgements_and_jobs_are_found():
    report = good_run()
    report.latencies = [(due, 0.016 if due > 90 else latency) for due, latency in report.latencies]
    report.jobs = {FAILED: 1.0, "logstore_jobs_process_ended_total": 1.0}
    report.faults = ["a load ended with code 1: []"]
    assert found_in(report) == [
        "a load ended with code 1: []",
        "p99 of acknowledgements rose from 10.0 to 16.0 ms",
        "retention has changed nothing",
        "compact has changed nothing",
        "vacuum has changed nothing",
        f"a job has failed: {FAILED}",
        "the process of jobs died",
    ]


@pytest.mark.long
@pytest.mark.system
def test_a_short_soak(tmp_path: Path):
    """Run without latencies, because other tests use the processor."""
    report = soak(tmp_path, 15, share=0.25, jobs=("retention",))
    print(report)
    assert report.judge(latencies=False, jobs=("retention",)) == []


@pytest.mark.long
def test_a_minute_of_it(tmp_path: Path):
    report = soak(tmp_path, 60, share=0.25)
    print(report)
    assert report.judge(latencies=False) == []
