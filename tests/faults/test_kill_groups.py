"""A committed offset outlasts kill -9 (invariant G3); a commit of several partitions is there whole or not at all."""

import contextlib
import functools
import random
from collections.abc import Callable
from pathlib import Path

import httpx
from deltalake import DeltaTable

from tests.support.background_load import BackgroundLoad
from tests.support.server_process import ServerProcess

GROUPS = 4
PARTITIONS = 3
RECORDS = 50_000
KILLS = 3


class CommitLoad(BackgroundLoad):
    """A thread per group, each committing one number to all partitions at once, always a higher one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged = [0] * GROUPS
        self.sent = [0] * GROUPS
        super().__init__(functools.partial(self._commit, n) for n in range(GROUPS))

    def wait_for(self, commits: int) -> None:
        wanted = [before + commits for before in self.acknowledged]
        for _ in range(6_000):
            if all(now >= then for now, then in zip(self.acknowledged, wanted, strict=True)):
                return
            self._stop.wait(0.01)
        raise AssertionError("commits make no progress")

    def _commit(self, group: int) -> None:
        with httpx.Client(timeout=20) as client:
            while not self._stop.is_set():
                self.sent[group] = number = self.sent[group] + 1
                entries = [{"topic": "t", "partition": p, "offset": number} for p in range(PARTITIONS)]
                try:
                    answer = client.post(f"{self.url}/groups/g{group}/offsets", json={"offsets": entries})
                except httpx.HTTPError:
                    self._stop.wait(0.05)
                    continue
                if answer.status_code == 200:
                    self.acknowledged[group] = number

    def check(self, offsets_of: Callable[[str], list[int]]) -> None:
        """No group is behind what was acknowledged, or ahead of what was sent; partitions are never torn apart."""
        for group in range(GROUPS):
            found = offsets_of(f"g{group}")
            assert len(found) == PARTITIONS
            assert len(set(found)) == 1, f"half of a commit: {found}"
            assert self.acknowledged[group] <= found[0] <= self.sent[group]


def over_http(url: str) -> Callable[[str], list[int]]:
    return lambda group: [row["offset"] for row in httpx.get(f"{url}/groups/{group}/offsets").json()["offsets"]]


def from_delta(data: Path) -> Callable[[str], list[int]]:
    table = DeltaTable(data / "topics" / "__consumer_offsets").to_pyarrow_dataset().to_table()
    rows = sorted(table.to_pylist(), key=lambda row: row["offset"])
    latest = {(row["group"], row["topic_partition"]): row["committed_offset"] for row in rows}
    return lambda group: [offset for (name, _), offset in sorted(latest.items()) if name == group]


def create_topic(url: str) -> None:
    cluster = httpx.get(f"{url}/v3/clusters").json()["data"][0]["cluster_id"]
    body = {"topic_name": "t", "partitions_count": PARTITIONS}
    assert httpx.post(f"{url}/v3/clusters/{cluster}/topics", json=body).status_code == 201
    headers = {"Content-Type": "application/x-ndjson"}
    for partition in range(PARTITIONS):
        answer = httpx.post(f"{url}/topics/t/partitions/{partition}", content=b"x\n" * RECORDS, headers=headers)
        assert answer.status_code == 200


def test_an_acknowledged_commit_outlasts_kills(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with ServerProcess(tmp_path / "data") as server:
        create_topic(server.url)
        with CommitLoad(server.url) as load:
            for _ in range(KILLS):
                load.wait_for(chance.randrange(1, 60))
                # What is on its way then may be in a segment that is being written, too.
                with contextlib.suppress(httpx.HTTPError):
                    httpx.post(f"{server.url}/topics/__consumer_offsets/roll", timeout=chance.random() / 50)
                server.kill()
                server.start()
                load.url = server.url
            load.wait_for(5)
        load.check(over_http(server.url))
        assert server.stop() == 0
        load.check(from_delta(server.data))
