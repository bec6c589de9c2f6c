"""The jobs of a simulated world: retention, key compaction, merges and vacuum, each run in its own process.

A run is the work of one thread, so nothing else happens during it; but it may die at any call of its disk.
"""

import asyncio
import functools
import io
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from compaction_jobs.applications import SparkApplication
from compaction_jobs.context import JobContext
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import JobReport, Progress
from logstore.clock import Clock
from logstore.errors import LogStoreError
from logstore.table_root import TableRoot
from tests.simulation.history import History
from tests.simulation.loop import PlayedProcess
from tests.simulation.process_disk import ProcessDisk
from tests.support.faulty_filesystem import CrashedError, FaultyFileSystem

#: The jobs that run. No topic here has declared columns, for which there is another job.
_CHOSEN = ("retention", "compact", "merge", "vacuum")
#: Calls at which a run may die, beside the named steps of jobs.
_DEATHS = ("segment.create", "segment.fdatasync", "delta.create", "delta.link", "job.written", "retention.start_moved")
#: The share of runs that die.
_DYING = 0.25


class Jobs:
    def __init__(
        self,
        history: History,
        disk: FaultyFileSystem,
        data: Path,
        clock: Clock,
        note: Callable[..., None],
        rng: random.Random,
    ) -> None:
        """Set up the jobs. ``disk`` is the disk of their machine, and ``clock`` the clock of all of them."""
        self._history, self._disk, self._data, self._clock, self._note, self._rng = (
            history,
            disk,
            data,
            clock,
            note,
            rng,
        )
        #: True if no further run begins.
        self.is_ending = False

    async def run(self) -> None:
        """Run one job after the other until ``is_ending``."""
        for number in itertools.count():
            await asyncio.sleep(self._rng.uniform(0.5, 4))
            if self.is_ending:
                return
            await self.run_once(self._rng.choice(_CHOSEN), number)

    async def run_once(self, job: str, number: int) -> None:
        process = PlayedProcess(f"jobs.{number}")
        disk = ProcessDisk(self._disk, process, self._data.parent, self._note)
        if self._rng.random() < _DYING:
            self._disk.at(self._rng.choice(_DEATHS), lambda _: process.kill(), nth=self._rng.choice([1, 1, 2, 4]))
        work = functools.partial(self._work, job, disk)
        told = self._history.invoke("jobs", "job", job=job)
        try:
            running: asyncio.Task[JobReport] = process.run(
                asyncio.get_running_loop().create_task, asyncio.to_thread(work)
            )
            report = await running
        except (CrashedError, LogStoreError, asyncio.CancelledError):
            if not process.is_dead:
                raise
            self._history.complete(told, "jobs", "job", "info", job=job)
        else:
            here = str(self._data.parent)  # the path differs between runs
            errors = {topic.topic: topic.error.replace(here, "") for topic in report.topics if topic.error is not None}
            versions = {topic.topic: list(topic.versions) for topic in report.topics}
            phase: Any = "info" if errors else "ok"
            self._history.complete(told, "jobs", "job", phase, job=job, versions=versions, errors=errors)
        finally:
            self._disk.heal()
            disk.release()

    def _work(self, job: str, disk: ProcessDisk) -> JobReport:
        root = TableRoot(self._data, disk, clock=self._clock)
        with SparkApplication("simulated") as spark:
            context = JobContext(spark, Progress(Console(file=io.StringIO())), self._clock)
            return run_job(job, topics_of(job, root, [], {}), context)
