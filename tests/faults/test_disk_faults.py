"""A real server under load on a disk that fills up, turns read-only, fails, is slow or loses power.

The seam's disk (``tests.support.faulty_filesystem``) is everywhere; a real small file system and a copied file-system
image need the right to mount. ``LOGSTORE_TORTURE=1`` runs the longer forms.
"""

import os
import random
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable

from benchmarks.free_port import free_port
from tests.support.background_load import BackgroundLoad
from tests.support.eventually import eventually
from tests.support.history import History
from tests.support.produce_load import ProduceLoad
from tests.support.served_topic import (
    PARTITIONS,
    alter_topic,
    check_everywhere,
    create_topic,
    partitions_of,
    read_over_http,
    roll,
    segment_files,
)
from tests.support.server_process import FaultyServerProcess, NotStartedError, ServerProcess
from tests.support.torture import TORTURE

pytestmark = pytest.mark.system

MIB = 1 << 20
FOREVER_MS = 10**15
STORAGE_FAILED, FULL, TIMED_OUT, THROTTLED = (500, 50002), (503, 50302), (504, 50401), (429, 42901)
ROLL_CALLS = (
    "journal.read_at",
    "segment.create",
    "segment.write_at",
    "segment.fdatasync",
    "segment.sync_directory",
    "delta.sync_file",
    "delta.sync_directory",
)


def produce(url: str, value: str, *, partition: int = 0, timeout_ms: int = 30_000) -> httpx.Response:
    return httpx.post(
        f"{url}/topics/t/partitions/{partition}",
        json={"records": [{"value": value}]},
        params={"timeout_ms": timeout_ms},
        timeout=60,
    )


def use_up_the_reserve(url: str) -> httpx.Response:
    """The journal reserves some MiB ahead: a request for more than that finds out first that the disk is full."""
    records = [{"value": "x" * 1_000_000}] * 5
    return httpx.post(f"{url}/topics/t/partitions/0", json={"records": records}, timeout=60)


def refusal(server: ServerProcess, **how: str) -> str:
    """The one line that says why the server does not start."""
    with pytest.raises(NotStartedError) as failed:
        server.start(**how)
    assert failed.value.code == 1
    assert "Traceback" not in str(failed.value)
    return failed.value.lines[-1]


def resident_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


def read_table_files(data: Path) -> list[str]:
    return DeltaTable(data / "topics" / "t").file_uris()


def error_of(answer: httpx.Response) -> tuple[int, int]:
    return answer.status_code, answer.json()["error_code"]


def not_ready_reason(url: str) -> str:
    answer = httpx.get(f"{url}/health/ready", timeout=30)
    return "" if answer.status_code == 200 else str(answer.json()["message"])


def load_on(server: ServerProcess, *, producers: int = 4) -> ProduceLoad:
    return ProduceLoad(server.url, "t", producers=producers, partitions=PARTITIONS, pause_s=0.02)


# ---- a full disk ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_full_disk_refuses_appends_serves_reads_and_recovers_by_itself(store: FaultyServerProcess) -> None:
    with load_on(store) as load:
        load.wait_for_acknowledged(300)
        store.control("fill 0")
        assert error_of(use_up_the_reserve(store.url)) == FULL
        store.control("fill 0")  # what was reserved has been given back
        load.wait_for_answers(*FULL, count=20)
        assert not_ready_reason(store.url) == "", "a full disk is the request's error, not the store's end"
        assert len(read_over_http(store.url)) >= 300
        files = segment_files(store.data)
        for _ in range(5):
            answer = roll(store.url)
            assert error_of(answer) == FULL, answer.text
        assert segment_files(store.data) == files, "rolls that fail pile up files"
        store.control("heal")
        load.wait_for_acknowledged(300)
        assert roll(store.url).status_code == 200
    assert set(load.answers) == {FULL}
    check_everywhere(store, load.history)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A data directory that is a file system of 24 MiB of its own."""
    data = tmp_path / "data"
    data.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", data], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield data
    finally:
        subprocess.run(["umount", "--lazy", data], check=True)


def fill_up(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as file:
        for size in (MIB, 4096):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert shutil.disk_usage(ballast).free < 4096


@pytest.mark.long
def test_a_really_full_disk_meets_every_writer_and_loses_nothing(small_disk: Path) -> None:
    """The Delta writer's own calls do not go through the seam: only a disk that is full shows what they do."""
    ballast = small_disk / "ballast"
    with ServerProcess(small_disk, port=free_port()) as server:
        create_topic(server.url, segment_ms="3600000")
        with load_on(server) as load:
            load.wait_for_acknowledged(300)
            assert roll(server.url).status_code == 200
            load.wait_for_acknowledged(300)
            fill_up(ballast)
            assert error_of(use_up_the_reserve(server.url)) == FULL
            fill_up(ballast)
            load.wait_for_answers(*FULL, count=20)
            assert len(read_over_http(server.url)) >= 600
        assert set(load.answers) == {FULL}
        committed = segment_files(small_disk)
        entries = sorted((small_disk / "topics/t/_delta_log").iterdir())
        # Page after page is given back until the roll succeeds, so that each of its writers finds no space once.
        uncommitted: set[Path] = set()
        while (answer := roll(server.url)).status_code != 200:
            assert error_of(answer) == FULL, answer.text
            assert len(segment_files(small_disk)) <= len(committed) + PARTITIONS, "rolls that fail pile up files"
            assert sorted((small_disk / "topics/t/_delta_log").iterdir()) == entries, "and so do commits that fail"
            uncommitted.update(set(segment_files(small_disk)) - set(committed))
            os.truncate(ballast, ballast.stat().st_size - 4096)
        assert uncommitted, "the Delta writer itself never met the full disk"
        assert set(segment_files(small_disk)) == {*committed, *uncommitted}, "what was written is what is committed"

        fill_up(ballast)
        server.kill()
        assert refusal(server) == f"cannot use {small_disk}: No space left on device"
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        assert refusal(server) == f"cannot use {small_disk}: Read-only file system"
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        server.start()
        check_everywhere(server, load.history)


# ---- a read-only disk -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_disk_that_turns_read_only_ends_appends_not_reads(store: FaultyServerProcess) -> None:
    with load_on(store) as load:
        load.wait_for_acknowledged(300)
        store.control("readonly")
        load.wait_for_answers(*STORAGE_FAILED, count=5)
        assert "Read-only file system" in not_ready_reason(store.url)
        # A producer may have an answer that it has not noted yet.
        eventually(lambda: len(read_over_http(store.url)) == load.history.acknowledged_records)
        acknowledged = load.history.acknowledged_records
        assert roll(store.url).status_code == 500
        load.wait_for_answers(*STORAGE_FAILED, count=20)
        assert load.history.acknowledged_records == acknowledged, "acknowledged by a journal that failed"
    store.kill()
    assert refusal(store, faults="readonly") == f"cannot use {store.data}: Read-only file system"
    store.start()
    check_everywhere(store, load.history)


# ---- syncs and reads that fail --------------------------------------------------------------------------------------


def test_a_failed_sync_of_the_journal_ends_acknowledging_until_a_restart(store: FaultyServerProcess) -> None:
    with load_on(store) as load:
        load.wait_for_acknowledged(300)
        store.control("fail journal.fdatasync EIO")
        load.wait_for_answers(*STORAGE_FAILED, count=5)
        # A producer may have an answer that it has not noted yet.
        eventually(lambda: len(read_over_http(store.url)) == load.history.acknowledged_records)
        acknowledged = load.history.acknowledged_records
        reason = not_ready_reason(store.url)
        assert "could not sync journal file" in reason
        assert "Input/output error" in reason
        load.wait_for_answers(*STORAGE_FAILED, count=20)
        assert load.history.acknowledged_records == acknowledged
        assert len(read_over_http(store.url)) == acknowledged, "read, though whether it is stored is open"
    # The bytes of the failed sync may be on the disk or not: a restart that finds them must keep them.
    store.power_cut(seed=acknowledged)
    store.start()
    assert not_ready_reason(store.url) == ""
    check_everywhere(store, load.history)


@pytest.mark.long
def test_a_roll_that_meets_a_bad_disk_frees_nothing_and_is_repeated(store: FaultyServerProcess) -> None:
    """Even if the failed sync is never repeated: records freed after it must not depend on it."""
    load = load_on(store)
    with load:
        load.wait_for_acknowledged(100)
        store.control("fail journal.read_at EIO")
        answer = httpx.get(f"{store.url}/topics/t/partitions/0/records", timeout=30)
        assert error_of(answer) == STORAGE_FAILED, answer.text
        assert "cannot read journal file" in answer.text
        for number, call in enumerate(ROLL_CALLS, start=1):
            load.wait_for_acknowledged(100)
            store.control(f"fail {call} EIO")
            answer = roll(store.url)
            assert answer.status_code == 500, (call, answer.text)
            assert "Input/output error" in answer.text
            assert store.control("faults")[-1].startswith(call)
            assert not_ready_reason(store.url) == ""
            answer = roll(store.url)
            assert answer.status_code == 200, (call, answer.text)
            assert len(segment_files(store.data)) == len(read_table_files(store.data)) >= number, "a file was left"
    # A new journal file is begun, and those before it are freed.
    assert store.stop() == 0
    store.start()
    store.power_cut(seed=1, strict=True)
    store.start()
    check_everywhere(store, load.history)


TABLE_READS = ("segment.open_read", "segment.read_into", "segment.stat")
LOG_READS = ("delta.names", "delta.stat", "delta.open_read", "delta.read_into")
FOR_EVER = "times=1000000"


def test_a_table_read_that_fails_is_an_error_to_that_reader_alone(store: FaultyServerProcess) -> None:
    with load_on(store) as load:
        for call in TABLE_READS:
            load.wait_for_acknowledged(100)
            assert roll(store.url).status_code == 200
            # Nothing of that segment was read before, so nothing of it is at hand.
            last = partitions_of(store.url)[0]["sealed_offset"] - 1
            store.control(f"fail {call} EIO {FOR_EVER}")
            answer = httpx.get(f"{store.url}/topics/t/partitions/0/records", params={"offset": last}, timeout=30)
            assert error_of(answer) == STORAGE_FAILED, (call, answer.text)
            assert "Input/output error" in answer.text
            assert any(said.startswith(call) for said in store.control("faults"))
            load.wait_for_acknowledged(100)
            assert not_ready_reason(store.url) == ""
            store.control("heal")
            assert len(read_over_http(store.url)) >= 200, "the next read is served"
    check_everywhere(store, load.history)


def test_short_reads_change_nothing(store: FaultyServerProcess) -> None:
    with load_on(store) as load:
        load.wait_for_acknowledged(300)
        for call in ("segment.read_into", "delta.read_into"):
            store.control(f"fail {call} SHORT {FOR_EVER}")
        assert roll(store.url).status_code == 200
        load.wait_for_acknowledged(100)
        assert roll(store.url).status_code == 200
        assert len(read_over_http(store.url)) >= 400
        assert any("segment.read_into SHORT" in said for said in store.control("faults"))
    check_everywhere(store, load.history)


@pytest.mark.long
def test_a_log_that_cannot_be_read_holds_rolls_up_and_nothing_else(store: FaultyServerProcess) -> None:
    with load_on(store) as load:
        load.wait_for_acknowledged(100)
        assert roll(store.url).status_code == 200
        for call in LOG_READS:
            # Somebody else's commit: there is something new to read.
            DeltaTable(store.data / "topics" / "t").alter.set_table_properties(
                {"user.note": call}, raise_if_not_exists=False
            )
            store.control(f"fail {call} EIO {FOR_EVER}")
            load.wait_for_acknowledged(100)
            answer = roll(store.url)
            assert answer.status_code == 500, (call, answer.text)
            assert "Input/output error" in answer.text, (call, answer.text)
            assert not_ready_reason(store.url) == ""
            assert len(read_over_http(store.url)) >= 100, "what is known of the table is served"
            store.control("heal")
            assert roll(store.url).status_code == 200, call
    check_everywhere(store, load.history)


@pytest.mark.long
def test_a_start_that_cannot_read_tables_says_so_and_changes_nothing(store: FaultyServerProcess) -> None:
    with load_on(store) as load:
        load.wait_for_acknowledged(300)
        assert roll(store.url).status_code == 200
    for call in ("delta.read_into", "delta.names", "catalog.names"):
        store.kill()
        assert "Input/output error" in refusal(store, faults=f"fail {call} EIO {FOR_EVER}"), call
    store.start()
    check_everywhere(store, load.history)


# ---- a slow disk ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_slow_disk_makes_requests_wait_or_time_out_and_holds_little_in_memory(store: FaultyServerProcess) -> None:
    body = {"records": [{"value": "x" * 1_000_000}] * 4}
    with load_on(store, producers=2) as load:
        load.wait_for_acknowledged(100)
        before = resident_bytes(store)
        store.control("slow journal.fdatasync 5")
        outcomes: Counter[tuple[int, int]] = Counter()
        with httpx.Client(timeout=60) as client:
            while outcomes[THROTTLED] < (100 if TORTURE else 3):
                assert outcomes.total() < (1000 if TORTURE else 60), "nothing bounds what waits for the disk"
                url = f"{store.url}/topics/t/partitions/0"
                outcomes[error_of(client.post(url, json=body, params={"timeout_ms": 1}))] += 1
        assert set(outcomes) == {TIMED_OUT, THROTTLED}
        assert resident_bytes(store) - before < 128 * MIB
        assert not_ready_reason(store.url) == ""
        store.control("heal")
        load.wait_for_acknowledged(100)
    values = {value for _, _, value in read_over_http(store.url)}
    assert values >= {value for r in load.history.requests if r.outcome == "ok" for value in r.values}


# ---- power cuts -----------------------------------------------------------------------------------------------------


class Changes(BackgroundLoad):
    """Commits offsets of a group and alters a configuration, each to ever higher numbers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent: Counter[str] = Counter()
        self.acknowledged: Counter[str] = Counter()
        super().__init__([partial(self._change, "offset", self._commit), partial(self._change, "config", self._alter)])

    def after(self) -> "Changes":
        """The same, to be run once more."""
        again = Changes(self.url)
        again.sent, again.acknowledged = self.sent, self.acknowledged
        return again

    def wait_for_one_of_each(self) -> None:
        before = dict(self.acknowledged)
        eventually(lambda: all(self.acknowledged[w] > before.get(w, 0) for w in ("offset", "config")), seconds=60)

    def _change(self, what: str, change: Callable[[int], None]) -> None:
        while not self._stop.wait(0.02):
            self.sent[what] += 1
            try:
                change(self.sent[what])
            except (httpx.HTTPError, AssertionError):
                continue
            self.acknowledged[what] = self.sent[what]

    def _commit(self, number: int) -> None:
        entries = [{"topic": "t", "partition": 0, "offset": number}]
        httpx.post(f"{self.url}/groups/g/offsets", json={"offsets": entries}, timeout=20).raise_for_status()

    def _alter(self, number: int) -> None:
        alter_topic(self.url, retention_ms=str(FOREVER_MS + number))

    def check(self) -> None:
        """After a start, while nothing has changed yet."""
        config = httpx.get(f"{self.url}/topics/t", timeout=30).json()["configs"]["retention.ms"]
        answer = httpx.get(f"{self.url}/groups/g/offsets", timeout=30)
        assert answer.status_code == 200, f"what was committed is gone: {answer.text}"
        (entry,) = answer.json()["offsets"]
        found = {"config": int(config) - FOREVER_MS, "offset": entry["offset"]}
        for what, number in found.items():
            assert self.acknowledged[what] <= number <= self.sent[what], (what, self.acknowledged, found, self.sent)


@pytest.mark.long
def test_power_cuts_under_load_lose_nothing_that_was_acknowledged(store: FaultyServerProcess) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    alter_topic(store.url, segment_ms="150")
    load = load_on(store)
    changes = Changes(store.url)
    with load:
        for number in range(40 if TORTURE else 2):
            changes = changes.after()
            with changes:
                load.wait_for_acknowledged(300)
                changes.wait_for_one_of_each()
                store.power_cut(seed + number, strict=number == 0)
            store.start()
            changes.check()
    check_everywhere(store, load.history)


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[None]:
    at.mkdir()
    # Nothing but what is synced is to be on the disk by itself.
    done = subprocess.run(["mount", "-o", "loop,commit=300", image, at], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file-system image can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


def copy_of_a_moment(image: Path, copy: Path) -> None:
    while True:
        before = image.stat().st_mtime_ns
        subprocess.run(["cp", "--sparse=always", image, copy], check=True)
        if image.stat().st_mtime_ns == before:
            return


@pytest.mark.long
def test_a_file_system_image_copied_under_load_holds_all_that_was_acknowledged(tmp_path: Path) -> None:
    """As after a loss of power: the kernel has written all synced pages, and any others that it liked."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(192 * MIB)
    if not shutil.which("mkfs.ext4"):
        pytest.skip("there is no mkfs.ext4")
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    copies: list[tuple[Path, set[int]]] = []
    with mounted(image, tmp_path / "data"), ServerProcess(tmp_path / "data", port=free_port()) as server:
        create_topic(server.url, segment_ms="150")
        with load_on(server) as load:
            for number in range(10 if TORTURE else 1):
                load.wait_for_acknowledged(300)
                # Otherwise no copy would be of one moment. Work of the process inside the kernel goes on.
                server.process.send_signal(signal.SIGSTOP)
                acknowledged = {id(request) for request in load.history.requests if request.outcome == "ok"}
                copies.append((tmp_path / f"image-{number}", acknowledged))
                copy_of_a_moment(image, copies[-1][0])
                server.process.send_signal(signal.SIGCONT)
    for copy, acknowledged in copies:
        known = [r if id(r) in acknowledged else replace(r, outcome="info") for r in load.history.requests]
        data = tmp_path / f"data-{copy.name}"
        with mounted(copy, data), ServerProcess(data, port=free_port()) as server:
            check_everywhere(server, History(known))
