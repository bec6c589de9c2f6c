"""kill -9 of a real server under load, many times: no acknowledged record is lost, none is doubled, none is moved."""

import json
import random
import socket
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable

from tests.support.history import rows_by_partition
from tests.support.produce_load import ProduceLoad
from tests.support.server_process import ServerProcess

PARTITIONS = 3
KILLS = 10


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def create_topic(url: str, **configs: str) -> None:
    cluster = httpx.get(f"{url}/v3/clusters").json()["data"][0]["cluster_id"]
    body = {
        "topic_name": "t",
        "partitions_count": PARTITIONS,
        "configs": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()],
    }
    assert httpx.post(f"{url}/v3/clusters/{cluster}/topics", json=body).status_code == 201


def read_over_http(url: str) -> list[tuple[int, int, str]]:
    rows = []
    for partition in range(PARTITIONS):
        at = 0
        while True:
            answer = httpx.get(
                f"{url}/topics/t/partitions/{partition}/records", params={"offset": at, "max_wait_ms": 0}
            )
            assert answer.status_code == 200, answer.text
            rows += [(partition, r["offset"], r["value"]) for r in answer.json()]
            at = int(answer.headers["Logstore-Next-Offset"])
            if at == int(answer.headers["Logstore-High-Watermark"]):
                break
    return rows


def read_from_delta(data: Path) -> list[tuple[int, int, str]]:
    table = DeltaTable(data / "topics" / "t").to_pyarrow_dataset().to_table(["partition", "offset", "value"])
    columns = (table[name].to_pylist() for name in ("partition", "offset", "value"))
    return [(p, o, json.loads(v)) for p, o, v in zip(*columns, strict=True)]


def check_everywhere(server: ServerProcess, load: ProduceLoad) -> None:
    """After the load: over HTTP, and after a clean stop from the Delta table alone, the same and right."""
    over_http = rows_by_partition(read_over_http(server.url))
    load.history.check(over_http)
    assert server.stop() == 0
    assert rows_by_partition(read_from_delta(server.data)) == over_http


def test_kills_at_random_moments(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with ServerProcess(tmp_path / "data", port=free_port()) as server:
        create_topic(server.url, segment_ms="150")
        with ProduceLoad(server.url, "t", producers=6, partitions=PARTITIONS) as load:
            for _ in range(KILLS):
                load.wait_for_acknowledged(chance.randrange(1, 1500))
                server.kill()
                server.start()
                # Seconds, whatever the journal holds; most of it is Python's start-up.
                assert server.seconds_to_start < 30
            load.wait_for_acknowledged(500)
        check_everywhere(server, load)


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("journal.written", 20),
        ("journal.synced", 20),
        ("journal.file_created", 1),
        ("journal.snapshotted", 1),
        ("segment.finished", 2),
        ("delta.committed", 2),
        ("delta.synced", 2),
    ],
)
def test_kill_at_a_named_point(tmp_path: Path, point: str, count: int) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "data", port=port) as server:
        create_topic(server.url, segment_ms="150")
        server.stop()
        doomed = (
            ServerProcess(server.data, port=port, environment={"LOGSTORE_FAULT": f"{point}:{count}:kill"})
            if not point.startswith(("journal.file", "journal.snap"))
            else None
        )
        if doomed is None:
            with pytest.raises(RuntimeError, match="did not start"):
                ServerProcess(server.data, port=port, environment={"LOGSTORE_FAULT": f"{point}:{count}:kill"})
            server.start()
            with ProduceLoad(server.url, "t", producers=2, partitions=PARTITIONS) as load:
                load.wait_for_acknowledged(100)
        else:
            with ProduceLoad(doomed.url, "t", producers=4, partitions=PARTITIONS) as load:
                assert doomed.process.wait(60) == -9
                doomed.kill()
                server.start()
                load.wait_for_acknowledged(100)
        check_everywhere(server, load)
