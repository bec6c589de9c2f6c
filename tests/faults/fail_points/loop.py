"""One run of an act with its faults, in processes that really die, and everything that must hold afterwards.

A run plays an act, and a fault may end it. The store is started on the remains. With ``recovery`` that start is killed
at one point after the other, until no point is left. The start that completes reports its content, and reports it again
after new work. Then the model of the history, the store's own report and the Delta tables, read by Polars, have to
agree.
"""

import contextlib
import hashlib
import json
import random
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

from tests.faults.fail_points.fault import Fault, actions_at, is_named
from tests.faults.fail_points.jobs import kill_jobs
from tests.faults.fail_points.model import Line, Model
from tests.faults.fail_points.zygote import Zygote


@dataclass(slots=True)
class Tally:
    """Counts of the faults of each action at each kind of point, and the CPU seconds of the children."""

    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    runs: int = 0
    #: Runs whose faults did not strike: the visits to a point depend on when files are freed and rolls begin.
    missed: int = 0
    seconds: float = 0.0

    def add(self, fault: Fault, where: str = "") -> None:
        self.faults[fault.action + where, fault.point] += 1

    def __str__(self) -> str:
        actions = sorted({action for action, _ in self.faults})
        runs = f"{self.runs} runs, {sum(self.faults.values())} faults, in {self.missed} runs none"
        lines = [f"{runs}; {self.seconds:.0f} s of CPU in the store"]
        for action in actions:
            points = {point: count for (what, point), count in sorted(self.faults.items()) if what == action}
            named = ", ".join(f"{point} {count}" for point, count in points.items())
            lines.append(f"{action}: {sum(points.values())} ({named})")
        return "\n".join(lines)


class FailPointLoop:
    """Runs acts on one zygote, in directories below ``directory``; ``tally`` counts."""

    def __init__(self, zygote: Zygote, directory: Path) -> None:
        self._zygote = zygote
        self._directory = directory
        self._known: dict[str, dict[str, int]] = {}
        self.tally = Tally()

    def hits(self, act: str) -> dict[str, int]:
        """Return how often the act reaches each point without a fault."""
        if act not in self._known:
            with self._run(act, []) as run:
                self._play(run, [])
                self._known[act] = _hits(run)
                self._check(run)
        return self._known[act]

    def run(self, act: str, faults: Sequence[Fault], *, in_recovery: Callable[[Path], None] = lambda _: None) -> bool:
        """Run the act; return whether all ``faults`` struck.

        Raises AssertionError with the command that repeats the run if anything is wrong.
        """
        with self._run(act, faults) as run:
            struck = self._play(run, faults)
            in_recovery(run)
            self._check(run)
            return struck

    def kill_recovery(self, act: str, fault: Fault, points: Iterable[int]) -> None:
        """Kill a start after a fault at each of these points, counted from its beginning, until it has fewer points."""

        def in_recovery(run: Path) -> None:
            for nth in points:
                if not self._recover_with(run, Fault("any", nth, "kill")):
                    break

        self.run(act, [fault], in_recovery=in_recovery)

    def fail_recovery(self, act: str, fault: Fault, choose: Callable[[list[Fault]], list[Fault]]) -> None:
        """Let starts after a fault fail at calls that ``choose`` selects from all calls of a start."""

        def in_recovery(run: Path) -> None:
            image = run.with_name(f"{run.name}-image")
            shutil.copytree(run, image)
            self._recover_with(image, Fault("none", 1, "kill"))
            possible = [fault for fault in every_fault(_hits(image)) if not fault.kills]
            shutil.rmtree(image)
            for error in choose(possible):
                self._recover_with(run, error)

        self.run(act, [fault], in_recovery=in_recovery)

    def kill_jobs(self, points: Sequence[str]) -> None:
        """Kill key compaction and vacuum at each of ``points``."""
        with self._run("jobs", []) as run:
            for fault in kill_jobs(run, self._zygote, points):
                self.tally.add(fault, " in a job")

    # ---- a run -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _run(self, act: str, faults: Sequence[Fault]) -> Iterator[Path]:
        directory = Path(tempfile.mkdtemp(prefix=f"{act}-", dir=self._directory))
        try:
            yield directory
        except AssertionError as error:
            error.add_note(f"again: python -m tests.faults.fail_points --only {act} {' '.join(map(str, faults))}")
            history = directory / "history.jsonl"
            error.add_note(history.read_text() if history.exists() else "")
            raise
        finally:
            self.tally.runs += 1
            shutil.rmtree(directory)

    def _play(self, run: Path, faults: Sequence[Fault]) -> bool:
        act = run.name.partition("-")[0]
        ended = self._zygote.run("play", run, act=act, faults=list(map(str, faults)))
        self.tally.seconds += ended.seconds
        killed = ended.code == -signal.SIGKILL and any(fault.kills for fault in faults)
        assert killed or ended.code == 0, f"the store ended with {ended.code}\n{ended.said}"
        # A fault that struck is reported by point and error; in one run all faults are of one action.
        struck = map(str, faults) if killed else json.loads((run / "struck.json").read_text())
        points = [re.split("[ :]", text)[0] for text in struck]
        for point in points:
            self.tally.add(Fault(point, 1, faults[0].action))
        self.tally.missed += bool(faults) and not points
        return len(points) == len(faults)

    def _recover_with(self, run: Path, fault: Fault) -> bool:
        """Start the run's remains with a fault; return whether it struck."""
        ended = self._zygote.run("recover", run, faults=[str(fault)])
        self.tally.seconds += ended.seconds
        killed = ended.code == -signal.SIGKILL and fault.kills
        assert killed or ended.code == 0, f"a start with {fault} ended with {ended.code}\n{ended.said}"
        struck = killed or bool(json.loads((run / "struck.json").read_text()))
        if struck:
            self.tally.add(fault, " in recovery")
        return struck

    def _check(self, run: Path) -> None:
        before = _entries(run / "data")
        ended = self._zygote.run("recover", run)
        self.tally.seconds += ended.seconds
        assert ended.code == 0, f"the store does not start again: {ended.code}\n{ended.said}"
        after = _entries(run / "data")
        changed = [path for path, digest in before.items() if after.get(path, digest) != digest]
        assert not changed, f"log entries were overwritten: {changed}"
        lines: list[Line] = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
        model = Model(lines)
        assert model.founds >= 2
        _check_tables(run / "data", lines[-1])


def _entries(data: Path) -> dict[Path, str]:
    """Return digests of the Delta log entries."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in data.glob("topics/*/_delta_log/*.json")}


def _check_tables(data: Path, found: dict[str, Any]) -> None:
    """Check that an independent reader sees the content last reported by the store, and all is sealed (D2, D3, D4)."""
    for name, topic in found["topics"].items():
        path = str(data / "topics" / name)
        rows: dict[int, list[tuple[int, str]]] = {partition: [] for partition in range(len(topic["partitions"]))}
        seen = pl.read_delta(path).sort("partition", "offset")
        for partition, offset, value in seen.select("partition", "offset", pl.col("value").cast(pl.String)).iter_rows():
            rows[partition].append((offset, value))
        table = DeltaTable(path)
        for partition, log in enumerate(topic["partitions"]):
            there = [row for row in rows[partition] if row[0] >= log["log_start"]]
            told = [tuple(row) for row in log["rows"]]
            assert there == told, f"{name}-{partition}: the table has {there}, the store {told}"
            sealed = table.transaction_version(f"logstore/{partition}/sealed")
            assert sealed == log["high_watermark"], f"{name}-{partition} is sealed up to {sealed} after a clean stop"


def _hits(run: Path) -> dict[str, int]:
    hits: dict[str, int] = json.loads((run / "hits.json").read_text())
    return {point: count for point, count in hits.items() if actions_at(point)}


# ---- which faults ---------------------------------------------------------------------------------------------------


def every_fault(hits: dict[str, int]) -> Iterator[Fault]:
    """Yield each possible fault alone, for a run that reached the points this often."""
    for point, count in sorted(hits.items()):
        for nth in range(1, count + 1):
            for action in actions_at(point):
                yield Fault(point, nth, action)


def named_kills(hits: dict[str, int]) -> list[Fault]:
    """Return deaths at every named point, every time that it is reached."""
    return [fault for fault in every_fault(hits) if is_named(fault.point) and fault.action == "kill"]


def named_power_cuts(hits: Mapping[str, dict[str, int]], rng: random.Random) -> list[tuple[str, Fault]]:
    """Return a power cut at every named point: in one of the acts that reach it, at one of the visits."""
    found = []
    for point in sorted({point for reached in hits.values() for point in reached if is_named(point)}):
        act = rng.choice([act for act, reached in hits.items() if point in reached])
        found.append((act, Fault(point, rng.randint(1, hits[act][point]), "power")))
    return found


#: Faults that an operation must overcome by trying again.
EACH = tuple(Fault("each", 1, action) for action in ("EIO", "ENOSPC", "short"))


def sample_of_final(hits: Mapping[str, dict[str, int]], rng: random.Random) -> list[tuple[str, Fault]]:
    """Return, for each call of the seam and each final fault at it, one act and hit: the first, the last or a random
    one.
    """
    places: dict[tuple[str, str], list[tuple[str, Fault]]] = {}
    for act, reached in hits.items():
        for fault in every_fault(reached):
            if fault.is_final and not is_named(fault.point):
                places.setdefault((fault.point, fault.action), []).append((act, fault))
    return [rng.choice([possible[0], possible[-1], rng.choice(possible)]) for _, possible in sorted(places.items())]
