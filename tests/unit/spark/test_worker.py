"""A Python worker of Spark: missing packages, the beginning of a task, and its errors."""

import os
import subprocess
import sys

import pytest
from pyspark import SparkFiles

from logstore.errors import InvalidRequestError
from logstore.spark.worker import NEEDED, one_line_errors


@pytest.mark.system
def test_a_worker_without_a_package_says_all_that_it_lacks_in_one_line():
    # This runs in another process, because this one has the packages loaded.
    code = "import sys; sys.modules |= dict.fromkeys(['msgspec', 'cachetools']); import logstore.spark.source.columns"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f'ImportError: format("logstore") needs msgspec, cachetools, which {sys.executable} on ')
    assert "pip install 'delta-logstore[delta]' where executors run and where the driver runs" in line


@pytest.mark.system
def test_it_needs_what_it_says_and_no_more():
    code = (
        "import sys, logstore.spark.source.slice_reader, logstore.spark.tail_reader, logstore.segments.reader; "
        "import logstore.client.transport; "
        "print(*{name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    spark_brings = {"pyspark", "py4j", "pandas", "googleapiclient"}
    assert (
        set(done.stdout.split()) & {*NEEDED, "pydantic", "structlog", "deltalake", "rich"} <= set(NEEDED) | spark_brings
    )
    assert set(NEEDED) <= set(done.stdout.split())


@pytest.mark.parametrize("on_worker", [True, False])
def test_an_error_of_ours_has_no_traceback_in_a_workers_report(monkeypatch, on_worker):
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", on_worker)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(ZeroDivisionError), one_line_errors():
        _ = 1 / 0
    assert not os.environ["SPARK_HIDE_TRACEBACK"], "a fault in the code is told with all that there is"
    with pytest.raises(InvalidRequestError), one_line_errors():
        raise InvalidRequestError("option subscribe is empty")
    assert bool(os.environ["SPARK_HIDE_TRACEBACK"]) is on_worker


@pytest.mark.system
def test_a_task_begins_with_modules_spared_and_what_has_come_acknowledged():
    # This runs in another process: `gc.freeze` can only be undone for all objects, which would make others collectable.
    code = """
import gc, os, socket, time
from pyspark import SparkFiles
from logstore.spark.worker import begin_task

begin_task()
assert gc.get_freeze_count() == 0, "not in a worker"
SparkFiles._is_running_on_worker = True
listening = socket.create_server(("127.0.0.1", 0))
spark = socket.create_connection(listening.getsockname())
worker, _ = listening.accept()
# A connection that has answered before delays its acknowledgements.
for _ in range(30):
    spark.sendall(b"a")
    worker.recv(1)
    worker.sendall(b"b")
    spark.recv(1)


def unacknowledged():
    info = spark.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int.from_bytes(info[24:28], "little")  # tcpi_unacked


for _ in range(20):  # until one is looked at within 40 ms
    spark.sendall(b"command")
    worker.recv(7)
    before = unacknowledged()
    begin_task()
    if before:
        break
print(before, unacknowledged())
spared, descriptors = gc.get_freeze_count(), os.listdir("/proc/self/fd")
begin_task()
assert gc.get_freeze_count() == spared > 10_000, "once, with the modules"
# A worker has hundreds of tasks, and descriptors that are no sockets: files, pipes.
assert os.listdir("/proc/self/fd") == descriptors, "no descriptor is left open"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["1", "0"], "")
