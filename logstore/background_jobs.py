"""The process of ``logstore serve --jobs``, as the store sees it: started, watched, started again, ended.

Jobs run in a separate process (``compaction_jobs.background``), because they may start a JVM, take memory, and fail.
Invariants: the store never waits for a job; a failure is reported in the log and the metrics and does not stop the
store. The process holds the other end of one of the store's pipes: it ends when the store does, however that ends.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import msgspec
import structlog

from logstore.observability import JOB_LAST_RUN, JOB_SECONDS, JOB_TOPICS, JOBS_PROCESS_ENDED
from logstore.settings import Settings

log = structlog.stdlib.get_logger(__name__)

MODULE: Final = "compaction_jobs.background"
#: The time in which the process must end by itself before it is killed; its jobs are safe to kill anywhere.
STOP_S: Final = 5.0
#: The pause before it is started again: the first, then twice as long each time, up to the second. After a process that
#: ran for longer than the second, the pause is the first again.
RETRY_S, RETRY_MAX_S = 1.0, 60.0
_LAST_LINES = 20
_LINE_BYTES_MAX = 1 << 20


class JobsOptions(msgspec.Struct, frozen=True):
    """The first line that the process reads: the store's settings for jobs."""

    data: str
    url: str
    topic_defaults: dict[str, str]
    retention_check_interval_ms: int
    cleaner_enable: bool
    cleaner_backoff_ms: int
    cleaner_threads: int
    io_max_bytes_per_second: int | None = None


class JobRun(msgspec.Struct, frozen=True):
    """A line that the process writes: one pass of a job over the topics that were due. ``changed`` topics have a new
    version, or fewer files on disk; ``failed`` ones have their errors.
    """

    job: str
    seconds: float
    changed: tuple[str, ...] = ()
    failed: dict[str, str] = {}


@contextlib.asynccontextmanager
async def background_jobs(settings: Settings, url: str) -> AsyncIterator[None]:
    """Run jobs on the topics of the store at ``url`` for as long as the block lasts."""
    options = JobsOptions(
        data=str(settings.data),
        url=url,
        topic_defaults=settings.topic_defaults,
        retention_check_interval_ms=settings.log_retention_check_interval_ms,
        cleaner_enable=settings.log_cleaner_enable,
        cleaner_backoff_ms=settings.log_cleaner_backoff_ms,
        cleaner_threads=settings.log_cleaner_threads,
        io_max_bytes_per_second=settings.log_cleaner_io_max_bytes_per_second,
    )
    watching = asyncio.create_task(_keep_running(msgspec.json.encode(options), _environment(settings)))
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the process. Over TLS it trusts this store's own certificate, under any name, because
    it connects to the address that it is given here; the variables are those of the store's clients.
    """
    location = settings.ssl_keystore_location
    if not settings.http_tls or location is None:
        return dict(os.environ)
    password = settings.ssl_key_password
    return {
        **os.environ,
        "LOGSTORE_SSL_CAFILE": str(location.absolute()),
        "LOGSTORE_SSL_CHECK_HOSTNAME": "false",
        "LOGSTORE_SSL_CERTFILE": str(location.absolute()),
        **({} if password is None else {"LOGSTORE_SSL_PASSWORD": password.get_secret_value()}),
    }


async def _keep_running(options: bytes, environment: dict[str, str]) -> None:
    loop, delay = asyncio.get_running_loop(), RETRY_S
    while True:
        began = loop.time()
        try:
            ended = await _run(options, environment)
        except OSError as error:
            ended = f"it could not be started: {error}"
        delay = RETRY_S if loop.time() - began > RETRY_MAX_S else delay
        JOBS_PROCESS_ENDED.inc()
        log.error("jobs.process_ended", reason=ended, again_in_seconds=delay)
        await asyncio.sleep(delay)
        delay = min(RETRY_MAX_S, 2 * delay)


async def _run(options: bytes, environment: dict[str, str]) -> str:
    """Run the process to its end, which should not come; return the reason why it came."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        MODULE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        limit=_LINE_BYTES_MAX,
        # Ctrl-C in the terminal of the store is for the store. The process's JVM is in the same group, to be killed
        # with it.
        start_new_session=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    log.info("jobs.process_started", pid=process.pid)
    last: deque[str] = deque(maxlen=_LAST_LINES)
    readers = [
        asyncio.create_task(_read_runs(process.stdout)),
        asyncio.create_task(_read_errors(process.stderr, last)),
    ]
    try:
        process.stdin.write(options + b"\n")
        await process.wait()
    finally:
        await _end(process)
        # A JVM that the process has left behind also ends at the end of its input, and holds these pipes until then.
        await asyncio.wait(readers, timeout=1)
        for reader in readers:
            reader.cancel()
    return "\n".join([f"exit code {process.returncode}", *last])


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process: the end of its input asks it to end, and its JVM after it."""
    assert process.stdin
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), STOP_S)
    if process.returncode is None:
        log.warning("jobs.process_killed", pid=process.pid, seconds=STOP_S)
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _read_runs(stream: asyncio.StreamReader) -> None:
    async for line in _lines(stream):
        try:
            run = msgspec.json.decode(line, type=JobRun)
        except msgspec.DecodeError:
            log.warning("jobs.output", line=line.decode(errors="replace").rstrip())
            continue
        JOB_SECONDS.labels(run.job).inc(run.seconds)
        JOB_TOPICS.labels(run.job, "changed").inc(len(run.changed))
        JOB_TOPICS.labels(run.job, "failed").inc(len(run.failed))
        if not run.failed:
            JOB_LAST_RUN.labels(run.job).set_to_current_time()
        if run.changed:
            log.info("job.done", job=run.job, topics=list(run.changed), seconds=run.seconds)
        for topic, error in run.failed.items():
            log.error("job.failed", job=run.job, topic=topic, error=error)


async def _read_errors(stream: asyncio.StreamReader, last: deque[str]) -> None:
    """Read the progress of jobs, Spark's messages, and the traceback of a process that dies."""
    async for line in _lines(stream):
        last.append(line.decode(errors="replace").rstrip())
        log.debug("jobs.output", line=last[-1])


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than any useful line
            continue
        if not line:
            return
        yield line
