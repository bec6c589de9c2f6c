"""A driver is killed again and again: each offset is in one batch, under load, rolls, merges and retention."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logstore.client.admin import Admin
from logstore.client.producer import Producer
from logstore.errors import UnknownGroupError
from tests.support.background_load import BackgroundLoad
from tests.support.eventually import eventually
from tests.support.server_process import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

PARTITIONS, KILLS, GROUP = 3, 4, "killed"
_NUMBERS = itertools.count()


class Load(BackgroundLoad):
    """Produces records all the time, rolls each second, and lets retention delete what the group has committed."""

    def __init__(self, url: str, topic: str) -> None:
        super().__init__([self._produce, self._roll_and_retain])
        self._url, self._topic = url, topic

    def _produce(self) -> None:
        with Producer(self._url) as producer:
            number = 0
            # Drivers and jobs start slowly on a busy machine; the last driver reads all records that came meanwhile.
            while not self._stop.wait(0.05):
                for _ in range(20):
                    producer.send(self._topic, str(number).encode(), partition=number % PARTITIONS)
                    number += 1

    def _roll_and_retain(self) -> None:
        with Admin(self._url) as admin:
            while not self._stop.wait(1):
                admin.roll(self._topic)
                for at in committed(admin):
                    admin.delete_records(at.topic, at.partition, at.offset)


def committed(admin):
    try:
        return admin.group_offsets(GROUP)
    except UnknownGroupError:
        return ()


class Driver:
    def __init__(self, directory: Path, url: str, topic: str) -> None:
        self.out = directory / "out"
        self.out.mkdir(exist_ok=True)
        self._log = (directory / f"driver-{next(_NUMBERS)}.log").open("wb")
        script = ROOT / "tests/support/streaming_driver.py"
        self.process = subprocess.Popen(
            [sys.executable, script, url, topic, directory / "checkpoint", self.out, GROUP],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def batches(self) -> int:
        # The beginning is shown, because the error of a streaming query ends with the query's plan.
        assert self.process.poll() is None, Path(self._log.name).read_text()[:6000]
        return len(list(self.out.glob("*.json")))

    def kill(self) -> None:
        """Kill the driver and its JVM with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def test_each_offset_is_in_one_batch_however_often_the_driver_is_killed(store, tmp_path):
    topic = store.create("stream-killed", PARTITIONS)
    moments = random.Random(16)
    with Admin(store.url) as admin:
        with Load(store.url, topic):
            for _ in range(KILLS):
                driver = Driver(tmp_path, store.url, topic)
                before = driver.batches()
                try:
                    eventually(
                        lambda driver=driver, before=before: driver.batches() > before + 1,
                        "two more batches",
                        seconds=180,
                    )
                    for job in ("merge", "retention"):
                        command = [sys.executable, "-m", "logstore.cli", "job", job, "--topic", topic]
                        subprocess.run([*command, "--data", store.server.data], cwd=ROOT, check=True, timeout=120)
                    time.sleep(moments.uniform(0, 1))
                finally:
                    driver.kill()
        # Everything is acknowledged; a last driver reads to the end.
        ends = {p.partition: p.high_watermark for p in admin.describe_topic(topic).partitions}
        driver = Driver(tmp_path, store.url, topic)
        stood = lambda: (driver.batches(), {at.partition: at.offset for at in committed(admin)})  # noqa: E731
        try:
            while (before := stood())[1] != ends:
                eventually(
                    lambda before=before: stood() != before,
                    f"{before[0]} batches, the group at {before[1]}: nothing came for 180 s; the topic ends at {ends}",
                    seconds=180,
                )
        finally:
            driver.kill()
        assert all(p.log_start_offset > 0 for p in admin.describe_topic(topic).partitions)
    assert not list(driver.out.glob("*.changed"))
    position = dict.fromkeys(range(PARTITIONS), 0)
    files = sorted(driver.out.glob("*.json"), key=lambda file: int(file.stem))
    assert [int(file.stem) for file in files] == list(range(len(files)))
    for file in files:
        for partition, (first, last, count) in json.loads(file.read_text()).items():
            assert (first, count) == (position[int(partition)], last - first + 1), file.name
            position[int(partition)] = last + 1
    assert position == ends
