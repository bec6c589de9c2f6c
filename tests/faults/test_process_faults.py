"""A real server under load that is stopped, ended, blocked, short of descriptors, or started twice.

``LOGSTORE_TORTURE=1`` runs the longer forms.
"""

import os
import resource
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.free_port import free_port
from tests.support.eventually import eventually
from tests.support.produce_load import ProduceLoad
from tests.support.served_topic import (
    PARTITIONS,
    alter_topic,
    check_everywhere,
    create_topic,
    partitions_of,
    read_over_http,
    roll,
)
from tests.support.server_process import FaultyServerProcess, NotStartedError, ServerProcess
from tests.support.torture import TORTURE

pytestmark = pytest.mark.system

# The sum of ingest_api.http_listener.GRACEFUL_SHUTDOWN_SECONDS and the time to seal.
STOP_SECONDS = 10 + 20


def is_ready(url: str) -> bool:
    """Return whether the store is ready; False if nobody listens."""
    try:
        return httpx.get(f"{url}/health/ready", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def all_sealed(url: str, ends: list[int]) -> bool:
    return all(p["sealed_offset"] >= end for p, end in zip(partitions_of(url), ends, strict=True))


def files_begun(store: FaultyServerProcess) -> int:
    return int(store.control("hits").get("segment.opened", 0))


def refusal(data: Path, **environment: str) -> str:
    """Return the line that says why a server does not start on ``data``."""
    with pytest.raises(NotStartedError) as failed:
        ServerProcess(data, environment=environment)
    assert failed.value.code == 1
    assert "Traceback" not in str(failed.value)
    said = [line for line in failed.value.lines if line.startswith("cannot ")]
    assert said == failed.value.lines[-1:]
    return said[0]


def test_a_server_under_faults_answers_at_any_length_and_also_behind_somebody_who_gave_up(
    store: FaultyServerProcess,
) -> None:
    """Check long answers, because a list of all faults that struck may be long."""
    for _ in range(3):
        store.ask("hits").close()
    unknown = "x" * 300_000
    with pytest.raises(RuntimeError, match=f"has no attribute '_{unknown}'"):
        store.control(unknown)
    assert is_ready(store.url)


@pytest.mark.long
def test_a_second_store_that_is_refused_leaves_no_socket_behind(store: FaultyServerProcess, monkeypatch) -> None:
    made: list[Path] = []
    make = tempfile.TemporaryDirectory

    def noted(**options: Any) -> tempfile.TemporaryDirectory[str]:
        directory = make(**options)
        made.append(Path(directory.name))
        return directory

    monkeypatch.setattr(tempfile, "TemporaryDirectory", noted)
    with pytest.raises(NotStartedError):
        store.beside()
    (sockets,) = made
    assert not sockets.exists()


# ---- stopped and blocked --------------------------------------------------------------------------------------------


def out_of_time(load: ProduceLoad, requests: int) -> None:
    """Wait until that many more requests have timed out."""

    def count() -> int:
        return sum(request.outcome == "info" for request in load.history.requests)

    wanted = count() + requests
    eventually(lambda: count() >= wanted, seconds=120)


def test_a_process_that_stands_still_acknowledges_nothing_and_continues(store: FaultyServerProcess) -> None:
    alter_topic(store.url, segment_ms="150")
    with ProduceLoad(store.url, "t", producers=4, partitions=PARTITIONS, pause_s=0.02, timeout_s=1) as load:
        load.wait_for_acknowledged(300)
        store.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(store.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        # Answers that the store had already sent arrive before the producer's time is over.
        out_of_time(load, 4)
        acknowledged = load.history.acknowledged_records
        out_of_time(load, 120 if TORTURE else 8)
        assert load.history.acknowledged_records == acknowledged
        store.process.send_signal(signal.SIGCONT)
        load.wait_for_acknowledged(300)
        ends = [p["log_end_offset"] for p in partitions_of(store.url)]
        eventually(lambda: all_sealed(store.url, ends))
    assert any(request.outcome == "info" for request in load.history.requests), "no client ever ran out of time"
    check_everywhere(store, load.history)


def test_an_event_loop_that_is_blocked_makes_nobody_believe_what_is_not_so(store: FaultyServerProcess) -> None:
    polled: list[httpx.Response] = []

    def poll() -> None:
        url = f"{store.url}/topics/t/partitions/0/records"
        end = partitions_of(store.url)[0]["high_watermark"]
        polled.append(httpx.get(url, params={"offset": end, "max_wait_ms": 1000, "min_bytes": 10**6}, timeout=60))

    alter_topic(store.url, segment_ms="150")
    with ProduceLoad(store.url, "t", producers=4, partitions=PARTITIONS, pause_s=0.02) as load:
        load.wait_for_acknowledged(300)
        poller = threading.Thread(target=poll)
        poller.start()
        store.control(f"block {10 if TORTURE else 2}")
        assert is_ready(store.url)
        load.wait_for_acknowledged(300)
        poller.join(60)
        ends = [p["log_end_offset"] for p in partitions_of(store.url)]
        eventually(lambda: all_sealed(store.url, ends))
    assert polled[0].status_code == 200
    assert not load.answers
    assert all(request.outcome == "ok" for request in load.history.requests)
    check_everywhere(store, load.history)


# ---- few descriptors ------------------------------------------------------------------------------------------------


@contextmanager
def few_descriptors(pid: int, spare: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = max(int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken + 1 + spare, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_server_out_of_descriptors_says_so_and_recovers(tmp_path: Path) -> None:
    # The server has no disk of the seam, which opens further files with every sync.
    kept = httpx.Limits(keepalive_expiry=None)  # a new connection would not be accepted
    with ServerProcess(tmp_path / "data", port=free_port()) as server, httpx.Client(timeout=60, limits=kept) as client:
        create_topic(server.url, segment_ms="3600000")
        with ProduceLoad(server.url, "t", producers=4, partitions=PARTITIONS, pause_s=0.02) as load:
            load.wait_for_acknowledged(300)
            assert roll(server.url).status_code == 200
            load.wait_for_acknowledged(300)
            assert client.get(f"{server.url}/health/ready").status_code == 200
            with few_descriptors(server.process.pid, spare=8), crowd(server.url, 100):
                topic = f"{server.url}/topics/t"
                eventually(lambda: is_refused(server, client, "POST", f"{topic}/roll"))
                eventually(lambda: is_refused(server, client, "GET", f"{topic}/partitions/0/records?offset=0"))
                # Connected clients are still served, because the journal's file is open.
                load.wait_for_acknowledged(100)
            eventually(lambda: is_ready(server.url))
            load.wait_for_acknowledged(300)
        check_everywhere(server, load.history)


def is_refused(server: ServerProcess, client: httpx.Client, method: str, url: str) -> bool:
    """Return whether the request was refused for lack of descriptors; False if one was free again just then.

    ``client`` is already connected.
    """
    with crowd(server.url, 20):
        answer = client.request(method, url)
    if answer.status_code == 500:
        assert "Too many open files" in answer.text
    else:
        assert answer.status_code == 200, answer.text
    return answer.status_code == 500


@contextmanager
def crowd(url: str, size: int) -> Iterator[None]:
    """Hold this number of connections that do nothing."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with ExitStack() as connections:
        for _ in range(size):
            connections.enter_context(socket.create_connection(address, timeout=30))
        yield


# ---- ended by signals -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_stop_under_load_ends_with_0_and_takes_back_no_answer(store: FaultyServerProcess) -> None:
    """Stop twice: the first time while a roll is under way, the second time with two signals."""
    with ProduceLoad(store.url, "t", producers=4, partitions=PARTITIONS, pause_s=0.02) as load:
        for signals in (1, 2):
            load.wait_for_acknowledged(300)
            store.control("slow segment.fdatasync 0.5")
            before = files_begun(store)
            alter_topic(store.url, segment_ms="150")
            eventually(lambda before=before: files_begun(store) > before)
            began = time.monotonic()
            for _ in range(signals):
                store.process.send_signal(signal.SIGTERM)
                eventually(lambda: not is_ready(store.url))
            assert store.stop() == 0
            assert time.monotonic() - began < STOP_SECONDS
            assert not (store.data / "brokers/0/endpoint.json").exists()
            assert "Traceback" not in store.log
            store.start()
        load.wait_for_acknowledged(100)
    check_everywhere(store, load.history)


@pytest.mark.long
def test_a_stop_during_recovery_ends_with_0_and_serves_nobody(store: FaultyServerProcess) -> None:
    with ProduceLoad(store.url, "t", producers=4, partitions=PARTITIONS, pause_s=0.02) as load:
        load.wait_for_acknowledged(300)
        store.kill()
    failures: list[NotStartedError] = []

    def start() -> None:
        with pytest.raises(NotStartedError) as failed:
            store.start(faults="slow journal.fsync 3")
        failures.append(failed.value)

    def recovers() -> bool:
        try:
            return store.control("hits", seconds=1).get("journal.read_at", 0) > 0
        except OSError:
            return False

    starter = threading.Thread(target=start)
    starter.start()
    eventually(recovers)
    store.process.send_signal(signal.SIGTERM)
    starter.join(60)
    assert failures[0].code == 0
    assert "Traceback" not in str(failures[0])
    store.start()
    check_everywhere(store, load.history)


# ---- two of them ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_data_directory_has_one_server_at_a_time(store: FaultyServerProcess) -> None:
    link = store.data.with_name("link")
    link.symlink_to(store.data)
    with ProduceLoad(store.url, "t", producers=2, partitions=PARTITIONS, pause_s=0.02) as load:
        load.wait_for_acknowledged(100)
        line = refusal(store.data)
        assert line.startswith(f"cannot start: Another process is serving {store.data}")
        assert "Another process is serving" in refusal(link, LOGSTORE_BROKER_ID="1")
        store.process.send_signal(signal.SIGSTOP)
        try:
            assert "Another process is serving" in refusal(store.data)
        finally:
            store.process.send_signal(signal.SIGCONT)
        load.wait_for_acknowledged(100)
        assert len(read_over_http(store.url)) > 0
        store.kill()
        store.start()
        load.wait_for_acknowledged(100)
    assert store.stop() == 0
    assert "belongs to broker 0, not to 1" in refusal(store.data, LOGSTORE_BROKER_ID="1")
    store.start()
    check_everywhere(store, load.history)
