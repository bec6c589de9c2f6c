"""Wall clocks that are wrong or step by an hour, under load and across restarts: the store's, and a job's.

Only intervals of the monotonic clock decide when something is done. The wall clock gives the timestamp of a record
(LogAppendTime never falls in a partition), and the age at which a job removes it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.data_directory import lose_journal
from tests.support.eventually import eventually
from tests.support.produce_load import ProduceLoad
from tests.support.served_topic import (
    PARTITIONS,
    alter_topic,
    check_everywhere,
    create_topic,
    delete_topic,
    partitions_of,
    read_over_http,
    read_records,
    roll,
)
from tests.support.server_process import ROOT, FaultyServerProcess

pytestmark = pytest.mark.system

HOUR_MS = 3_600_000
NOW_MS = time.time_ns() // 1_000_000
YEAR_3000_MS = 32_503_680_000_000


def load_on(server: FaultyServerProcess) -> ProduceLoad:
    return ProduceLoad(server.url, "t", producers=3, partitions=PARTITIONS, pause_s=0.02)


def offset_of_time(url: str, partition: int, timestamp: int) -> int | None:
    answer = httpx.get(f"{url}/topics/t/partitions/{partition}/offsets", params={"timestamp": timestamp}, timeout=30)
    assert answer.status_code == 200, answer.text
    offset: int | None = answer.json()["offset"]
    return offset


def check_times(url: str) -> None:
    """Check that times never fall, and that the offset of a time is the first that is not before it."""
    for partition in range(PARTITIONS):
        rows = read_records(url, partition)
        times = [row["timestamp"] for row in rows]
        assert times == sorted(times), "an append time fell"
        assert times[-1] - times[0] >= HOUR_MS, "the clock never stepped"
        for wanted in {0, times[0], times[0] + 1, times[len(times) // 2], times[-1] - 1, times[-1], times[-1] + 1}:
            expected = next((row["offset"] for row in rows if row["timestamp"] >= wanted), None)
            assert offset_of_time(url, partition, wanted) == expected, wanted


def sealed(url: str, ends: list[int]) -> bool:
    return all(p["sealed_offset"] >= end for p, end in zip(partitions_of(url), ends, strict=True))


@pytest.mark.long
def test_append_times_never_fall_and_rolls_continue_when_the_clock_steps(store: FaultyServerProcess) -> None:
    alter_topic(store.url, message_timestamp_type="LogAppendTime", segment_ms="600")
    with load_on(store) as load:
        for offset in (0, HOUR_MS, -HOUR_MS):
            store.control(f"clock {offset}")
            began = time.monotonic()
            rolls = store.control("hits").get("delta.committed", 0)
            load.wait_for_acknowledged(300)
            ends = [p["log_end_offset"] for p in partitions_of(store.url)]
            eventually(lambda ends=ends: sealed(store.url, ends))
            rolls = store.control("hits")["delta.committed"] - rolls
            # Records that are half as old as segment.ms are rolled together with records that are as old as it.
            assert rolls <= (time.monotonic() - began) / 0.3 + 2, "a storm of rolls"
        # All is sealed, and most of the journal that had the records is freed.
        assert store.stop() == 0
        store.start(faults=f"clock {-HOUR_MS}")
        load.wait_for_acknowledged(100)
        store.kill()
        store.start(faults=f"clock {-2 * HOUR_MS}")
        load.wait_for_acknowledged(100)
        assert store.stop() == 0
        lose_journal(store.data)
        store.start(faults=f"clock {-HOUR_MS}")
        load.wait_for_acknowledged(100)
        alter_topic(store.url, segment_ms=str(HOUR_MS))
        load.wait_for_acknowledged(100)
    # Records are in the history and in the tail.
    assert any(p["sealed_offset"] < p["high_watermark"] for p in partitions_of(store.url))
    check_times(store.url)
    # The roll does not wait an hour longer because the clock is set back.
    store.control(f"clock {-3 * HOUR_MS}")
    alter_topic(store.url, segment_ms="600")
    eventually(lambda: sealed(store.url, [p["high_watermark"] for p in partitions_of(store.url)]))
    check_everywhere(store, load.history)


def run_job(data: Path, name: str, faults: str = "") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.faulty_server", "job", name, "--data", data, "--json", "--topic", "t"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LOGSTORE_FAULTS": faults},
        cwd=data.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def append(url: str, partition: int, timestamp: int | None, value: str) -> None:
    record = {"value": value} if timestamp is None else {"value": value, "timestamp": timestamp}
    answer = httpx.post(f"{url}/topics/t/partitions/{partition}", json={"records": [record]}, timeout=30)
    assert answer.status_code == 200, answer.text


@pytest.mark.long
def test_retention_deletes_nothing_early_and_a_start_brings_nothing_back(store: FaultyServerProcess) -> None:
    """Check that a record's timestamp decides, as in Kafka: a record of the past goes, one of the future stays."""
    delete_topic(store.url)
    create_topic(store.url, segment_ms="3600000", retention_ms=str(HOUR_MS // 2))
    append(store.url, 0, 0, "of 1970")
    append(store.url, 1, YEAR_3000_MS, "of 3000")
    append(store.url, 2, None, "of now")
    assert roll(store.url).status_code == 200
    append(store.url, 1, 0, "of 1970, behind one of the future")
    assert roll(store.url).status_code == 200
    append(store.url, 2, None, "not rolled")
    kept = [(1, 0, "of 3000"), (1, 1, "of 1970, behind one of the future"), (2, 0, "of now"), (2, 1, "not rolled")]

    run_job(store.data, "retention", f"clock {HOUR_MS}")
    eventually(lambda: [p["log_start_offset"] for p in partitions_of(store.url)] == [1, 0, 0])
    assert read_kept(store.url) == kept, "deleted by a clock that is ahead of the storage's"
    for offset in (HOUR_MS, -HOUR_MS):
        store.kill()
        store.start(faults=f"clock {offset}")
        assert read_kept(store.url) == kept
        assert partitions_of(store.url)[0]["log_start_offset"] == 1


def read_kept(url: str) -> list[tuple[int, int, str]]:
    starts = enumerate(facts["log_start_offset"] for facts in partitions_of(url))
    return [(p, row["offset"], row["value"]) for p, start in starts for row in read_records(url, p, start)]


@pytest.mark.long
@pytest.mark.parametrize("offset", [pytest.param(HOUR_MS, marks=pytest.mark.long), -HOUR_MS])
def test_a_file_whose_commit_was_overwritten_is_found_whatever_the_clock_says(
    store: FaultyServerProcess, offset: int
) -> None:
    """Check rule R7: the age of a file decides whether a start may commit it again."""
    for value in ("first", "second"):
        for partition in range(PARTITIONS):
            append(store.url, partition, None, value)
        answer = roll(store.url)
        if value == "first":
            overwritten = store.data / "topics/t/_delta_log" / f"{answer.json()['version']:020d}.json"
    rows = read_over_http(store.url)
    assert store.stop() == 0
    overwritten.write_text(json.dumps({"commitInfo": {"timestamp": NOW_MS, "operation": "WRITE"}}) + "\n")
    store.start(faults=f"clock {offset}")
    assert read_over_http(store.url) == rows
