"""Both jobs in a loop beside a store that takes records and rolls every second: nothing lost, doubled or reordered."""

import itertools
import json
import time

import httpx

from compaction_jobs.jobs import run_job, topics_of
from logstore.clock import SystemClock
from tests.support.background_load import BackgroundLoad
from tests.support.job_context import job_context
from tests.support.server_process import ServerProcess

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
ROUNDS = 2
KEYS = 20


class Load(BackgroundLoad):
    """One producer a topic and a reader that follows ``events``; all that was acknowledged is kept."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: dict[tuple[str, int], dict[int, tuple[str, str]]] = {
            (topic, partition): {} for topic in ("events", "users") for partition in (0, 1)
        }
        self.read: dict[int, list[tuple[int, str]]] = {0: [], 1: []}
        self.resets = 0
        super().__init__([lambda: self._produce("events"), lambda: self._produce("users"), lambda: self._follow(0)])

    def _produce(self, topic: str) -> None:
        with httpx.Client(timeout=30) as client:
            for number in itertools.count():
                if self._stop.wait(0.02):
                    return
                partition = number % 2
                rows = [(f"k{(7 * number + n) % KEYS}", f"{topic}-{number}-{n}") for n in range(10)]
                body = {"records": [{"key": key, "value": value} for key, value in rows]}
                answer = client.post(
                    f"{self.url}/topics/{topic}/partitions/{partition}", content=json.dumps(body), headers=JSON
                )
                assert answer.status_code == 200, answer.text
                for row, offset in zip(rows, answer.json()["offsets"], strict=True):
                    self.acknowledged[topic, partition][offset["offset"]] = row

    def _follow(self, partition: int) -> None:
        """A slow consumer: where retention was faster, it gets 416 and goes to the log start."""
        at = 0
        with httpx.Client(timeout=30) as client:
            while not self._stop.wait(0.5):
                answer = client.get(
                    f"{self.url}/topics/events/partitions/{partition}/records",
                    params={"offset": at, "max_bytes": 500},
                    headers={"Accept": JSON["Content-Type"]},
                )
                if answer.status_code == 416:
                    self.resets += 1
                    ends = client.get(f"{self.url}/topics/events/partitions/{partition}/offsets").json()
                    assert ends["beginning_offset"] > at
                    at = ends["beginning_offset"]
                    continue
                assert answer.status_code == 200, answer.text
                for record in answer.json():
                    assert record["offset"] >= at
                    at = record["offset"] + 1
                    self.read[partition].append((record["offset"], record["value"]))


def everything(client: httpx.Client, url: str, topic: str, partition: int) -> tuple[int, dict[int, tuple[str, str]]]:
    """The log start, and all records from it on, as HTTP reads them: rising, none twice."""
    ends = client.get(f"{url}/topics/{topic}/partitions/{partition}/offsets").json()
    at, found = ends["beginning_offset"], {}
    while at < ends["end_offset"]:
        answer = client.get(
            f"{url}/topics/{topic}/partitions/{partition}/records",
            params={"offset": at},
            headers={"Accept": JSON["Content-Type"]},
        )
        rows = answer.json()
        if not rows:
            break
        for record in rows:
            assert record["offset"] >= at
            at = record["offset"] + 1
            found[record["offset"]] = (record["key"], record["value"])
    return ends["beginning_offset"], found


def test_live_load_with_rolls_and_both_jobs(spark, tmp_path):
    data = tmp_path / "data"
    defaults = {"LOGSTORE_TOPIC_SEGMENT_MS": "1000"}
    with ServerProcess(data, environment=defaults) as server, httpx.Client(timeout=60) as client:
        cluster = client.get(f"{server.url}/v3/clusters").json()["data"][0]["cluster_id"]
        for name, configs in {
            "events": {"retention.bytes": "6000"},
            "users": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
        }.items():
            listed = [{"name": key, "value": value} for key, value in configs.items()]
            body = {"topic_name": name, "partitions_count": 2, "configs": listed}
            assert client.post(f"{server.url}/v3/clusters/{cluster}/topics", json=body).is_success
        with Load(server.url) as load:
            done = 0
            deadline = time.monotonic() + 120
            while done < ROUNDS and time.monotonic() < deadline and not load.errors:
                time.sleep(1.2)
                with job_context(0) as still:
                    context = type(still)(still.spark, still.progress, SystemClock())
                    reports = [
                        run_job(job, topics_of(job, data, [], {}), context, server.url)
                        for job in ("retention", "compact")
                    ]
                assert not [topic.error for report in reports for topic in report.topics if topic.error]
                done += all(any(topic.versions for topic in report.topics) for report in reports)
        assert not load.errors, load.errors
        assert done == ROUNDS, "the jobs had nothing to do"
        assert load.resets, "retention never overtook the reader"
        rolled = client.post(f"{server.url}/topics/users/roll", json={})
        assert rolled.is_success
        client.post(f"{server.url}/topics/events/roll", json={})
        run_job("compact", topics_of("compact", data, ["users"], {}), context)
        # Upon which the store looks at its table; else it does so every few seconds.
        assert client.post(f"{server.url}/topics/users/roll", json={}).is_success
        plain = {
            name: {
                (row.partition, row.offset): (json.loads(row.key), json.loads(row.value))
                for row in spark.read.format("delta").load(str(data / "topics" / name)).collect()
            }
            for name in ("events", "users")
        }
        for partition in (0, 1):
            acknowledged = load.acknowledged["events", partition]
            start, found = everything(client, server.url, "events", partition)
            assert start > 0
            assert found == {offset: row for offset, row in acknowledged.items() if offset >= start}
            assert {o: row for (p, o), row in plain["events"].items() if p == partition} == found

            acknowledged = load.acknowledged["users", partition]
            latest = {key: offset for offset, (key, _) in acknowledged.items()}
            expected = {offset: acknowledged[offset] for offset in latest.values()}
            assert {o: row for (p, o), row in plain["users"].items() if p == partition} == expected
            assert everything(client, server.url, "users", partition) == (0, expected)
        whole = [everything(client, server.url, topic, p) for topic in ("events", "users") for p in (0, 1)]
        server.stop()
        server.start()
        assert [everything(client, server.url, topic, p) for topic in ("events", "users") for p in (0, 1)] == whole
        offsets = [offset for offset, _ in load.read[0]]
        assert offsets == sorted(set(offsets))
        assert all(load.acknowledged["events", 0][offset][1] == value for offset, value in load.read[0])
