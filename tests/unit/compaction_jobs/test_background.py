"""Passes of ``serve --jobs``, in process."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest

from compaction_jobs import background, jobs
from compaction_jobs.background import BackgroundJobs
from compaction_jobs.context import JobContext
from compaction_jobs.report import TopicReport
from logstore.background_jobs import JobRun, JobsOptions
from tests.support.eventually import eventually
from tests.support.keyed_topics import KeyedTopic, Record

OLD_MS = 1_700_000_000_000


class Jobs:
    """The jobs of a data directory, with the runs that they report."""

    def __init__(
        self,
        data: Path,
        defaults: Mapping[str, str] | None = None,
        threads: int = 1,
        io_max: int | None = None,
        interval_ms: int = 20,
    ) -> None:
        options = JobsOptions(str(data), "", dict(defaults or {}), interval_ms, True, 20, threads, io_max)
        self.runs: list[JobRun] = []
        self.stopping = threading.Event()
        self.jobs = BackgroundJobs(options, self.runs.append, self.stopping)


def old_topic(data: Path, name: str, **config: object) -> KeyedTopic:
    topic = KeyedTopic.create(data, name, **config)
    topic.roll({0: [Record(b"k", b"v", OLD_MS)] * 3})
    return topic


def test_the_stores_defaults_count_and_a_topic_that_fails_keeps_no_other_from_its_work(tmp_path):
    topics = {name: old_topic(tmp_path, name) for name in ("a", "b", "c")}
    topics["b"].table.alter_config({"retention.ms": "soon"})
    own = Jobs(tmp_path, {"retention.ms": "1000"})
    run = own.jobs.upkeep_pass("retention")
    assert own.runs == [run]
    assert (run.job, run.changed, list(run.failed)) == ("retention", ("a", "c"), ["b"])
    assert "retention.ms" in run.failed["b"]
    assert [topic.contents() for topic in topics.values()] == [{}, topics["b"].contents(), {}]
    assert own.jobs.upkeep_pass("retention").failed == {}, "it is tried again after a while"


def test_an_unforeseen_fault_is_a_failure_of_its_topic(tmp_path):
    for name in ("a", "b"):
        old_topic(tmp_path, name)

    def run(_: object, topic: jobs.JobTopic) -> TopicReport:
        if topic.name == "a":
            raise ZeroDivisionError("no such number")
        return TopicReport(topic.name, versions=(2,))

    with mock.patch.dict(jobs.JOBS, {"retention": run}):
        found = Jobs(tmp_path).jobs.upkeep_pass("retention")
    assert (found.changed, found.failed) == (("b",), {"a": "ZeroDivisionError: no such number"})


def test_a_data_directory_that_cannot_be_read_is_reported(tmp_path):
    found = Jobs(tmp_path / "gone")
    assert found.jobs.upkeep_pass("retention").changed == ()
    assert [list(run.failed) for run in found.runs] in ([["(all)"], []], [[]])


@pytest.mark.parametrize("threads", [1, 2])
def test_each_thread_compacts_a_topic(tmp_path, threads):
    for name in ("a", "b", "c", "d"):
        old_topic(tmp_path, name, cleanup_policy="compact")
    at_work, most = [], []
    both = threading.Barrier(threads, timeout=30)

    def run(_: object, topic: jobs.JobTopic) -> TopicReport:
        at_work.append(topic.name)
        both.wait()
        most.append(len(at_work))
        both.wait()
        at_work.remove(topic.name)
        return TopicReport(topic.name, versions=(2,))

    found = Jobs(tmp_path, threads=threads)
    with mock.patch.dict(jobs.JOBS, {"compact": run}):
        assert found.jobs.cleaner_pass()
    assert most == [threads] * threads
    assert len(found.runs[0].changed) == threads


@pytest.mark.parametrize("io_max", [None, 12_345])
def test_one_bound_holds_for_what_all_jobs_read_and_write(tmp_path, io_max):
    old_topic(tmp_path, "a", cleanup_policy="compact")
    found = Jobs(tmp_path, io_max=io_max)
    throttles = []

    def run(context: JobContext, topic: jobs.JobTopic) -> TopicReport:
        throttles.append(context.throttle)
        return TopicReport(topic.name)

    with mock.patch.dict(jobs.JOBS, {"compact": run, "retention": run}):
        found.jobs.cleaner_pass()
        found.jobs.upkeep_pass("retention")
    first, second = throttles
    assert first is second
    assert (first and first.bytes_per_second) == io_max


def test_the_first_look_is_a_while_after_the_start_and_not_an_interval_later(tmp_path, monkeypatch):
    """Roll after the start: the topic waits for seconds, not for minutes."""
    monkeypatch.setattr(background, "INITIAL_DELAY_S", 5)
    found = Jobs(tmp_path, {"retention.ms": "1000"}, interval_ms=3_600_000)
    (tmp_path / "topics").mkdir()
    thread = threading.Thread(target=found.jobs.keep_up, daemon=True)
    thread.start()
    topic = old_topic(tmp_path, "later")
    # The segments are gone before the run is reported.
    eventually(lambda: [run.job for run in found.runs][:1] == ["retention"])
    assert topic.contents() == {}
    found.stopping.set()
    thread.join(30)


def test_it_continues_until_it_is_stopped(tmp_path):
    found = Jobs(tmp_path, {"retention.ms": "1000"})
    (tmp_path / "topics").mkdir()
    threads = [threading.Thread(target=work, daemon=True) for work in (found.jobs.keep_up, found.jobs.clean)]
    for thread in threads:
        thread.start()
    topic = old_topic(tmp_path, "later")
    eventually(lambda: topic.contents() == {})
    eventually(lambda: {run.job for run in found.runs} == {*background._UPKEEP, "compact"})
    began = time.monotonic()
    found.stopping.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert time.monotonic() - began < 20
