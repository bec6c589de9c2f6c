"""Appends, rolls, restarts and the commits of other writers in random order, against a dict of records.

After each step the log must serve exactly the records that it has acknowledged, as their owner left them: each once, at
its offset, by rising offset. Merges do not change what readers see. Nor do appends and overwrites by others, whether
they overwrite the table or an entry of its log. A RESTORE undoes what others did since that version, and nothing that
the store has acknowledged.
"""

import asyncio
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.broker import upkeep
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.topics.problems import ProblemState
from logstore.log.topic import Topic
from logstore.settings import Settings
from tests.faults.bench.foreign_commits import entry_path, overwrite_entry
from tests.support import foreign_writers as others
from tests.support.examples import examples
from tests.support.running_broker import produce, read_all, start_broker, stop_broker
from tests.support.table_paths import path_of
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}
offsets = st.integers(0, 40)
#: Every run begins with these steps, so that it has segments to change and to merge.
FIRST = [("append and roll", count) for count in (6, 5, 4, 3, 3)]
spans = st.tuples(offsets, st.integers(1, 15))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("append and roll"), st.integers(1, 6)),
        st.tuples(st.just("optimize")),
        st.tuples(st.just("z-order"), st.sampled_from([None, 1500])),
        st.tuples(st.just("delete"), spans),
        st.tuples(st.just("delete some"), st.integers(2, 4), st.integers(0, 1)),
        st.tuples(st.just("update"), spans),
        st.tuples(st.just("merge"), st.lists(offsets, min_size=1, max_size=4, unique=True)),
        st.tuples(st.just("foreign append"), st.lists(offsets, min_size=1, max_size=4, unique=True)),
        st.tuples(st.just("overwrite")),
        st.tuples(st.just("restore"), st.integers(1, 6)),
        st.tuples(st.just("drop")),
        st.tuples(st.just("join"), st.booleans()),
        st.tuples(st.just("delete records"), offsets),
        st.tuples(st.just("overwrite entry"), st.sampled_from([None, "stop", "crash"])),
        st.tuples(st.just("stop")),
        st.tuples(st.just("crash")),
    ),
    min_size=2,
    max_size=14,
)


@dataclass
class Model:
    #: All acknowledged records; ``served`` has those that readers still get.
    given_out: dict[int, bytes] = field(default_factory=dict)
    served: dict[int, bytes] = field(default_factory=dict)
    sealed: int = 0
    #: The sealed offset and the records below it, by version of the table.
    versions: dict[int, tuple[int, dict[int, bytes]]] = field(default_factory=dict)
    #: True if the table has files of others that are served: an overwrite could then drop rows that exist nowhere else.
    rewritten: bool = False
    #: True if others have added rows that are not served.
    copied: bool = False
    start: int = 0
    #: The versions of the store's own merges; ``statements`` has those of changes and deletions by others.
    joins: list[int] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)

    def note(self, version: int) -> None:
        below = {offset: value for offset, value in self.served.items() if offset < self.sealed}
        self.versions[version] = self.sealed, below

    def restore(self, version: int) -> None:
        sealed, below = self.versions[version]
        served = {**below, **{o: v for o, v in self.given_out.items() if o >= sealed}}
        self.served = {offset: value for offset, value in served.items() if offset >= self.start}


class Run:
    """A broker on its own directory, with the model beside it."""

    def __init__(self, root: Path) -> None:
        self.root, self.model = root, Model()
        self.data = root / "0"
        self.starts = 0
        self.broker: Broker

    async def start(self) -> None:
        self.broker = await start_broker(Settings(data=self.data))
        self.topic: Topic = self.broker.topics.served.topic(INTERNAL, "t")

    @property
    def table(self) -> Path:
        return path_of(self.topic.table)

    async def apply(self, kind: str, *arguments) -> None:
        step = getattr(self, f"_{kind.replace(' ', '_').replace('-', '_')}")
        if asyncio.iscoroutinefunction(step):
            await step(*arguments)
        elif self._sealed:
            await asyncio.to_thread(step, *arguments)

    # ---- what the store does ----------------------------------------------------------------------------------------

    async def _append(self, count: int) -> None:
        values = [b"%d" % (len(self.model.given_out) + at) for at in range(count)]
        base = await produce(self.broker, self.topic, list(values))
        assert base == len(self.model.given_out)
        fresh = dict(enumerate(values, base))
        self.model.given_out |= fresh
        self.model.served |= fresh

    async def _append_and_roll(self, count: int) -> None:
        await self._append(count)
        await self.broker.topics.tables.roll(INTERNAL, self.topic)
        self.model.sealed = len(self.model.given_out)

    async def _join(self, overwritten: bool) -> None:
        before = others.version(self.table)
        while await self.broker._upkeep.merge(self.topic):
            pass
        if others.version(self.table) > before:
            self.model.joins.append(others.version(self.table))
            if overwritten:
                await self._overwrite_entry(None)

    async def _delete_records(self, before_offset: int) -> None:
        if self.model.start < before_offset <= len(self.model.given_out):
            await self.broker.topics.tables.delete_records(INTERNAL, self.topic, 0, before_offset)
            self.model.start, self.model.sealed = before_offset, self.topic.partition(0).sealed_offset
            self.model.served = {o: value for o, value in self.model.served.items() if o >= before_offset}

    async def _overwrite_entry(self, then: str | None) -> None:
        """Overwrite the newest entry if it is a roll or a merge: another one may be the only one with a log start."""
        version = others.version(self.table)
        entry = entry_path(self.table, version)
        if re.search(r'"logstore.operation": ?"(roll|merge)"', entry.read_text()):
            overwrite_entry(entry)
            self.model.versions.pop(version, None)
            if then:
                await self.apply(then)

    async def _drop(self) -> None:
        await self.broker.topics.tables.drop_foreign_files(INTERNAL, self.topic)

    async def _stop(self) -> None:
        await stop_broker(self.broker)
        await self.start()

    async def _crash(self) -> None:
        self.starts += 1
        copy = self.root / str(self.starts)
        shutil.copytree(self.data, copy)
        await stop_broker(self.broker)
        shutil.rmtree(self.data)
        self.data = copy
        await self.start()

    # ---- what others do, and what their statements mean for the records ---------------------------------------------

    def _optimize(self) -> None:
        if self._has_refused():
            return  # it would merge the copies with their originals, and the store refuses such a file as a whole
        others.optimize(self.table)
        self.model.rewritten = True

    def _z_order(self, target_size: int | None) -> None:
        if self._has_refused():
            return
        others.z_order(self.table, target_size=target_size)
        self.model.rewritten = True

    def _delete(self, span: tuple[int, int]) -> None:
        start, end = span[0], sum(span)
        self._change(f'"offset" >= {start} AND "offset" < {end}', range(start, end), None)

    def _delete_some(self, modulus: int, rest: int) -> None:
        self._change(f'"offset" % {modulus} = {rest}', range(rest, self.model.sealed, modulus), None)

    def _update(self, span: tuple[int, int]) -> None:
        start, end = span[0], sum(span)
        self._change(f'"offset" >= {start} AND "offset" < {end}', range(start, end), b"new")

    def _change(self, predicate: str, changed: range, value: bytes | None) -> None:
        if self._has_refused():
            return  # the statement would also change the copies, and could leave only them in the table
        hit = [offset for offset in self._sealed if offset in changed]
        if value is None:
            others.delete(self.table, predicate)
            self.model.served = {o: v for o, v in self.model.served.items() if o not in hit}
        else:
            others.update(self.table, predicate, value.decode())
            self.model.served |= dict.fromkeys(hit, value)
        self.model.rewritten = True
        self.model.statements.append(others.version(self.table))

    def _merge(self, wanted: list[int]) -> None:
        hit = [offset for offset in wanted if offset in self._sealed]
        if hit and not self._has_refused():
            others.merge(self.table, hit, b"merged")
            self.model.served |= dict.fromkeys(hit, b"merged")
            self.model.rewritten = True
            self.model.statements.append(others.version(self.table))

    def _foreign_append(self, wanted: list[int]) -> None:
        # The offsets are taken, or not yet given out. An owner may put a deleted record back, so deleted offsets are
        # left out.
        if rows := [o for o in wanted if o in self._sealed or o >= self.model.sealed]:
            others.append(self.table, rows)
            self.model.copied = True

    def _overwrite(self) -> None:
        if not self.model.rewritten:
            others.overwrite(self.table)
            self.model.copied = True

    def _restore(self, back: int) -> None:
        version = others.version(self.table) - back
        # RESTORE to a version before a merge may not bring back a record that was deleted from the merged file.
        uncertain = any(version < j < s for j in self.model.joins for s in self.model.statements)
        if version in self.model.versions and not uncertain and not self._has_refused():
            others.restore(self.table, version)
            self.model.restore(version)
            self.model.rewritten = True

    @property
    def _sealed(self) -> list[int]:
        return [offset for offset in self.model.served if offset < self.model.sealed]

    def _has_refused(self) -> bool:
        return any(problem.state is ProblemState.FOREIGN_FILE for problem in self.broker.topics.problems.all(INTERNAL))

    async def check(self) -> None:
        await self.broker._roller.refresh(self.topic)
        # A start may find records in the journal whose roll was overwritten, so the sealed offset may have fallen.
        self.model.sealed = self.topic.partition(0).sealed_offset
        states = {problem.state for problem in self.broker.topics.problems.all(INTERNAL)}
        assert states <= ({ProblemState.FOREIGN_FILE} if self.model.copied else set()), self.broker.topics.problems.all(
            INTERNAL
        )
        assert await read_all(self.broker, self.topic) == sorted(self.model.served.items())
        assert await read_all(self.broker, self.topic, max_bytes=40) == sorted(self.model.served.items())
        self.model.note(others.version(self.table))


@pytest.fixture(autouse=True)
def _merged_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a merge take any number of segments, and let only the steps of a test merge."""
    monkeypatch.setattr(upkeep, "_LOOK_S", 3600)
    monkeypatch.setattr(upkeep, "MERGE_AT", 0)
    monkeypatch.setattr("logstore.log.merge.NEWEST_KEPT", 1)


@settings(deadline=None, max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(steps)
def test_the_log_serves_what_it_gave_out_as_its_owner_left_it(history: list[tuple]) -> None:
    async def scenario(root: Path) -> None:
        running = Run(root)
        running.broker = await start_broker(Settings(data=running.data))
        running.topic = await running.broker.topics.changes.create(INTERNAL, "t", partitions=1, configs=NEVER)
        await running.check()
        for kind, *arguments in [*FIRST, *history]:
            await running.apply(kind, *arguments)
            await running.check()
        await running.apply("stop")
        await running.check()
        await stop_broker(running.broker)

    with tempfile.TemporaryDirectory() as directory:
        run(scenario(Path(directory)))
