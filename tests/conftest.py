"""The start of every test: without this machine's own settings, and without processes except in lanes that may have
them.

A test without a mark is quick. Marks (``pyproject.toml`` lists them) put it into a slower lane: ``system`` and
``spark`` run in ``make test``, ``long``, ``airflow`` and ``wheel`` only in ``make test-all``.
"""

import faulthandler
import functools
import gc
import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import pytest_timeout
import structlog
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from logstore.records import native
from tests.support import examples
from tests.support.process_logging import logging_put_back

# The store's log is shown only if a test asks for it.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

# A shell that starts the tests in the background ignores Ctrl-C, and commands that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# httpx reads the certificates of all authorities for each client, and for each call without one: 24 ms of CPU.
_of_httpx = httpx._transports.default
_of_httpx.create_ssl_context = functools.cache(_of_httpx.create_ssl_context)
# httpx's default of 5 s for a call without a timeout is less than a busy machine may take for an fsync.
_of_calls = httpx._config.DEFAULT_TIMEOUT_CONFIG
_of_calls.connect = _of_calls.read = _of_calls.write = _of_calls.pool = 60

# `--hypothesis-profile many` overrides it.
for name, number in examples.PROFILES.items():
    settings.register_profile(name, max_examples=number, deadline=None)
settings.load_profile(examples.DEFAULT)


# Directories of tests are in memory if it has room for them: an fsync of a disk takes longer than most tests.
_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 8 * 1024**3
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

#: Stores of tests listen for Kafka's clients only if a test asks for it: only one store of a machine can have their
#: default port.
_NO_KAFKA = "LOGSTORE_KAFKA_LISTENERS"
os.environ[_NO_KAFKA] = ""


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ:
        if variable.startswith("LOGSTORE_") and variable != _NO_KAFKA:
            monkeypatch.delenv(variable)


@pytest.fixture(autouse=True)
def logging_of_its_own() -> Iterator[None]:
    """Restore the process's logging after a test that sets it up."""
    with logging_put_back():
        yield


@pytest.fixture(scope="module", params=["with C", "without C"])
def with_and_without_c(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module with the library of ``logstore.records``, if there is one, and without it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "without C":
            patch.setattr(native, "NATIVE", None)
        elif native.NATIVE is None:
            pytest.skip("there is no C compiler")
        yield


# ---- lanes -----------------------------------------------------------------------------------------------------------

_SLOW_LANES = frozenset({"system", "spark", "long", "airflow", "wheel"})
_STARTS_A_PROCESS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
_REFUSAL = (
    "A quick test starts a process. Do without, or mark it: pytest.mark.system, or pytest.mark.spark for a JVM "
    "(docs/CONTRIBUTING.md, Lanes)."
)
#: The quick test that runs, if any.
_quick: list[str] = []


def _refuse_processes(event: str, _given: object) -> None:
    if _quick and event in _STARTS_A_PROCESS:
        raise AssertionError(f"{_REFUSAL} It is {_quick[0]}.")


# The hook stays for as long as Python runs: it cannot be removed.
sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note a quick test from its first fixture to its last."""
    if not any(mark.name in _SLOW_LANES for mark in item.iter_markers()):
        _quick.append(item.nodeid)
    try:
        return (yield)
    finally:
        _quick.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail a quick test that started a process past the audit (``multiprocessing``), or that swallowed the refusal."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    result = yield
    assert not _quick or resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt == before, _REFUSAL
    return result


# ---- tests that hang -------------------------------------------------------------------------------------------------
#
# pytest-timeout fails a test by a signal, with all stacks in its report. Python handles signals between bytecodes only:
# a wait inside uvloop, pyarrow or delta-rs does not see it. And pytest-timeout does nothing once a test has failed,
# although its teardown may hang. A thread of faulthandler, which needs no GIL, then ends the process with all stacks on
# stderr, and xdist reports the test and continues in a new process.

#: Seconds until the process ends, for the running test. The report by the signal comes first.
_watched: list[float] = []


def _end_process_if_it_hangs(config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(_watched[0], exit=True, file=config.stash[_STDERR])


_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)  # before the output of tests is captured


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> None:
    """Set a second timer and return None, so that pytest-timeout also sets its own."""
    _watched[:] = [settings.timeout * 1.2]
    _end_process_if_it_hangs(item.config)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Give the teardown of a failed test new time: pytest has stopped both timers for a debugger that may start."""
    if _watched and not node.config.option.usepdb:
        _end_process_if_it_hangs(node.config)


def pytest_runtest_logfinish() -> None:
    _watched.clear()
    faulthandler.cancel_dump_traceback_later()


# ---- order and processes of xdist ------------------------------------------------------------------------------------

# All files with the same one of these prefixes run in one process. The first ones share Spark's JVM. The second ones
# start programs with their own Spark: if more of these ran at once, each would have too little of the machine.
_TOGETHER = ("tests/spark/test_", "tests/spark/programs/")
# The longest tests begin first; the many short ones fill the remaining time of the processes.
_FIRST = (*_TOGETHER, "tests/faults/", "tests/concurrency/", "tests/stateful/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        return next((at for at, folder in enumerate(_FIRST) if item.nodeid.startswith(folder)), len(_FIRST))

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """Freeze modules and tests, which stay for good, so that the garbage collector does not look at them."""
    gc.freeze()


class Scheduling(LoadFileScheduling):
    """Gives a process a whole file, with the servers that its tests share, or all files ``_TOGETHER``."""

    def _split_scope(self, nodeid: str) -> str:
        together = (prefix for prefix in _TOGETHER if nodeid.startswith(prefix))
        return next(together, None) or str(super()._split_scope(nodeid))

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a process, and do not run its last test again, which may have hung for ten minutes. The tests after it
        are next: if they were last, all of Spark could be left for one process.
        """
        assigned = self.assigned_work[node]
        unfinished = ((tests, name) for tests in assigned.values() for name, done in tests.items() if not done)
        tests, ended_in = next(unfinished, ({}, None))
        if ended_in is not None:
            tests[ended_in] = True
        super().remove_node(node)
        for scope in reversed(assigned):
            if scope in self.workqueue:
                self.workqueue.move_to_end(scope, last=False)
        return ended_in


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    config.option.loadscopereorder = False  # the order is by number of tests, which says little about their time
    return Scheduling(config, log)
