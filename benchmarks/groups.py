"""Consumer groups: commits over HTTP, and the start of a store that has many. Contenders like those of ``ours``."""

import json
import time
from dataclasses import dataclass
from urllib.request import Request, urlopen

from benchmarks.measure import Sample
from benchmarks.ours import NO_ROLL, TOPIC
from benchmarks.run import Stage
from benchmarks.server import BenchmarkError, Result, Store, Turn, run_load, turn_of

_OFFSETS_TOPIC = "__consumer_offsets"
# An empty topic accepts commits of its first offset.
_OFFSET = 0


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commits of ``offsets`` offsets each, to groups in turn; with a ``rate`` (requests per second) an open loop, else
    as fast as responses come. A record is an offset.
    """

    groups: int
    offsets: int
    rate: int | None = None
    connections: int = 8
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        store.create_topic(TOPIC, self.offsets, NO_ROLL)
        store.pause()
        body = stage.directory / f"commit-{self.offsets}"
        body.write_bytes(_commit(self.offsets))
        specification = {
            "servers": [
                {**store.address, "paths": [f"/groups/group-{number}/offsets" for number in range(self.groups)]}
            ],
            "content_type": "application/json",
            "bodies": [str(body)],
            "connections": self.connections,
            "records": self.offsets,
            "limit": 0,
            "rate": self.rate,
            "keep": None,
        }

        def load(seconds: float) -> Result:
            return run_load(
                "http_produce" if self.rate is None else "http_latency", {**specification, "seconds": seconds}
            )

        return turn_of(store, 0, load)


@dataclass(frozen=True, slots=True)
class LoadOffsets:
    """The cost of the committed offsets of many keys for a start: ``ready_s`` and ``resident_mb`` beyond those of the
    same store without them. They are in the table, as after a clean stop.
    """

    groups: int
    offsets: int
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        store.create_topic(TOPIC, self.offsets, NO_ROLL)
        before = _restarted(store)
        body = _commit(self.offsets)
        for number in range(self.groups):
            url = f"{store.url}/groups/group-{number}/offsets"
            request = Request(url, body, {"Content-Type": "application/json"})
            with urlopen(request, timeout=60):
                pass
        store.roll(_OFFSETS_TOPIC)
        store.pause()

        def turn(_seconds: float) -> Sample:
            store.resume()
            after = _restarted(store)
            if (stored := store.stored(_OFFSETS_TOPIC)) < self.groups * self.offsets:
                raise BenchmarkError(f"{self.groups * self.offsets:,} offsets were committed, {stored:,} are there")
            store.pause()
            return Sample(ready_s=after[0] - before[0], resident_mb=after[1] - before[1])

        return turn


def _restarted(store: Store) -> tuple[float, float]:
    """Restart the store; return the seconds until it was ready, and its resident MB a moment later."""
    store.stop()
    store.start()
    time.sleep(1)
    return store.ready_s, store.resident_mb


def _commit(offsets: int) -> bytes:
    """Return a request body that commits an offset of each partition."""
    asked = [{"topic": TOPIC, "partition": number, "offset": _OFFSET} for number in range(offsets)]
    return json.dumps({"offsets": asked}).encode()
