"""The acts before a store is killed: each a fixed sequence of operations on a fresh store.

``Script`` does the operations and records each in the history, before it begins and when it is answered. An operation
that fails because of a fault is tried again until it is done: a store works again when its disk does. Only a fault that
stops the journal for good ends the act early.
"""

import asyncio
import base64
import contextlib
import functools
import io
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from fastapi import FastAPI
from rich.console import Console

from compaction_jobs.applications import SparkApplication
from compaction_jobs.context import JobContext
from compaction_jobs.jobs import run_job
from compaction_jobs.report import Progress
from compaction_jobs.topics import JobTopic
from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.offsets import OffsetToCommit
from ingest_api.app import create_app
from ingest_api.state import ApiState
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.clock import SystemClock
from logstore.delta.topic_table import TopicTable
from logstore.errors import (
    LogStoreError,
    StorageError,
    StorageFullError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
)
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords
from logstore.settings import Settings
from logstore.table_files import open_table
from tests.faults.fail_points.fault import FailPoints
from tests.support.running_broker import records, start_broker, stop_broker

_ATTEMPTS: Final = 300
_BINARY: Final = "application/vnd.kafka.binary.v2+json"
_FULL: Final = 50302


class StoppedError(Exception):
    """The journal takes nothing until a restart."""


class History:
    """Lines in a file, written at once, so that they outlast the process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(self, op: str, phase: str, **fields: Any) -> None:
        os.write(self._fd, json.dumps({"op": op, "phase": phase, **fields}).encode() + b"\n")


class Script:
    """The operations of an act. ``arm`` begins to count for the faults; ``end`` ends the process as it is."""

    def __init__(
        self,
        data: Path,
        filesystem: FailPoints,
        history: History,
        arm: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.data = data
        self.arm = arm
        self.end = end
        self._filesystem = filesystem
        self._history = history
        self._values = itertools.count(os.getpid() * 1_000)

    @contextlib.asynccontextmanager
    async def store(self):
        """Yield a running store; start it again if a fault prevented its start."""
        self._settings = settings = Settings(data=self.data, offsets_topic_num_partitions=2)
        self.broker: Broker = await self._insist(lambda: start_broker(settings, filesystem=self._filesystem))
        try:
            self.groups = await self._insist(lambda: GroupCoordinator.start(self.broker))
            yield self
            await self.groups.close()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        before = self._struck
        self._filesystem.attempt(1)
        try:
            await stop_broker(self.broker)
        except LogStoreError:
            if self._struck == before:
                raise

    # ---- operations -------------------------------------------------------------------------------------------------

    async def create(self, name: str, partitions: int, **configs: str) -> None:
        configs = {key.replace("_", "."): value for key, value in configs.items()}

        async def work() -> None:
            try:
                await self.broker.topics.changes.create(INTERNAL, name, partitions=partitions, configs=configs)
            except TopicExistsError:
                self.broker.topics.served.topic(INTERNAL, name)

        await self._do("create", work, topic=name, partitions=partitions, configs=configs)

    async def delete(self, name: str) -> None:
        async def work() -> None:
            with contextlib.suppress(UnknownTopicError):
                await self.broker.topics.changes.delete(INTERNAL, name)

        await self._do("delete", work, topic=name)

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        await self._do(
            "alter",
            lambda: self.broker.topics.changes.alter_configs(INTERNAL, name, changes),
            topic=name,
            changes=dict(changes),
        )

    async def add_partitions(self, name: str, total: int) -> None:
        await self._do(
            "add_partitions",
            lambda: self.broker.topics.changes.add_partitions(INTERNAL, name, total),
            topic=name,
            total=total,
        )

    async def delete_records(self, name: str, partition: int, before: int) -> None:
        await self._do(
            "delete_records",
            lambda: self.broker.topics.tables.delete_records(INTERNAL, self.topic(name), partition, before),
            topic=name,
            partition=partition,
            before=before,
        )

    async def produce(self, name: str, counts: Mapping[int, int], *, value_bytes: int = 20) -> None:
        """Send one request with the given number of records for each partition."""

        def fields() -> dict[str, Any]:
            parts = {
                str(p): [f"{next(self._values)}".ljust(value_bytes, ".") for _ in range(count)]
                for p, count in counts.items()
            }
            return {"topic": name, "parts": parts}

        async def work(topic: str, parts: dict[str, list[str]]) -> dict[str, Any]:
            batch = records([value.encode() for values in parts.values() for value in values]).batch
            partitions = np.concatenate([np.full(len(values), int(p), np.int32) for p, values in parts.items()])
            done = await self.broker.produce.records.produce(
                INTERNAL, self.topic(topic), DecodedRecords(batch, partitions)
            )
            return {"bases": {str(made.partition): made.base_offset for made in done.partitions}}

        await self._do("produce", work, fields)

    async def post_records(self, name: str, partition: int, count: int) -> None:
        """Produce over HTTP; the answer may be cut."""

        def fields() -> dict[str, Any]:
            return {"topic": name, "parts": {str(partition): [f"{next(self._values)}" for _ in range(count)]}}

        async def work(topic: str, parts: dict[str, list[str]]) -> dict[str, Any]:
            (values,) = parts.values()
            sent = [{"value": base64.b64encode(value.encode()).decode()} for value in values]
            told = await self._post(f"/topics/{topic}/partitions/{partition}", {"records": sent}, _BINARY)
            return {"bases": {str(partition): told["offsets"][0]["offset"]}}

        await self._do("produce", work, fields)

    async def post_commit(self, group: str, *offsets: tuple[str, int, int]) -> None:
        rows = [{"topic": name, "partition": partition, "offset": offset} for name, partition, offset in offsets]

        async def work() -> None:
            await self._post(f"/groups/{group}/offsets", {"offsets": rows})

        await self._do("commit", work, group=group, offsets=offsets)

    @functools.cached_property
    def _app(self) -> FastAPI:
        """The application of the store that runs when it is first needed."""
        app = create_app(self._settings, self.broker.authorizer, self.broker.quotas)
        app.open(ApiState(self._settings, self.broker, self.groups))
        return app

    async def _post(self, path: str, body: dict[str, Any], media_type: str = "application/json") -> dict[str, Any]:
        """Post to the application. The points are the two sends of an answer: a client may see the head and no body."""

        async def cut(scope: Any, receive: Any, send: Any) -> None:
            async def answer(message: Any) -> None:
                head = message["type"] == "http.response.start"
                if head:
                    self._filesystem.reached("ack.before_send")
                await send(message)
                if head:
                    self._filesystem.reached("ack.half_sent")

            await self._app(scope, receive, answer)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(cut), base_url="http://localhost") as client:
            answer = await client.post(path, content=json.dumps(body), headers={"Content-Type": media_type})
        told: dict[str, Any] = answer.json()
        if answer.is_success:
            return told
        raise (StorageFullError if told["error_code"] == _FULL else StorageError)(told["message"])

    async def together(self, *operations: Awaitable[None]) -> None:
        """Send requests of several clients at once, for the journal's group commit."""
        outcomes = await asyncio.gather(*operations, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def commit(self, group: str, *offsets: tuple[str, int, int]) -> None:
        asked = [OffsetToCommit(*offset) for offset in offsets]
        await self._do("commit", lambda: self.groups.commit(INTERNAL, group, asked), group=group, offsets=offsets)

    async def delete_group(self, group: str) -> None:
        async def work() -> None:
            with contextlib.suppress(UnknownGroupError):
                await self.groups.delete(INTERNAL, group)

        await self._do("delete_group", work, group=group)

    async def roll(self, name: str) -> None:
        await self._do("roll", lambda: self.broker.topics.tables.roll(INTERNAL, self.topic(name)), topic=name)

    async def look_at_table(self, name: str) -> None:
        """Do the table's periodic work: follow the table, write a checkpoint when it is due, clean up."""
        log = self.data / "topics" / name / "_delta_log"
        for entry in log.iterdir():
            os.utime(entry, (1, 1))  # it has expired long ago
        await self._do("refresh", lambda: self.broker._roller.refresh(self.topic(name)), topic=name)

    async def unpin_journal(self) -> None:
        """Do the journal's periodic work: copy the frames that pin an old file forward, and free the file."""
        await self._do("unpin", self.broker._schedule._unpin_journal)

    async def run_job(self, job: str, name: str) -> None:
        """Run a job, which is a separate process in production; its commits and deletions use the same seam here."""

        def run() -> None:
            topic = JobTopic(
                name, TopicTable(open_table(self.data / "topics" / name, self._filesystem)), {}, named=True
            )
            context = JobContext(SparkApplication("test"), Progress(Console(file=io.StringIO())), SystemClock())
            (done,) = run_job(job, [topic], context).topics
            if done.error:
                raise LogStoreError(done.error)

        await self._do(job, lambda: asyncio.to_thread(run), topic=name)

    def topic(self, name: str) -> Topic:
        return self.broker.topics.served.topic(INTERNAL, name)

    # ---- trying ------------------------------------------------------------------------------------------------------

    async def _do(
        self,
        op: str,
        work: Callable[..., Awaitable[Any]],
        make_fields: Callable[[], dict[str, Any]] | None = None,
        **fields: Any,
    ) -> None:
        for number in range(2, _ATTEMPTS):
            self._filesystem.attempt(number // 2)
            told, before = make_fields() if make_fields else fields, self._struck
            self._history.tell(op, "invoke", **told)
            try:
                done = await (work(**told) if make_fields else work())
            except LogStoreError as error:
                self._history.tell(op, "fail" if _nothing_was_done(error) else "info", **told, error=str(error))
                if self.broker.not_ready_reason is not None:
                    struck = self._filesystem.injected
                    if not any(fault.startswith("journal.") for fault in struck):
                        raise AssertionError(f"{op}: the store stopped taking appends after {struck}") from error
                    raise StoppedError from error
                if self._struck == before:
                    raise AssertionError(f"{op} fails though nothing is wrong any more") from error
            else:
                self._history.tell(op, "ok", **told, **(done if isinstance(done, dict) else {}))
                return
        raise AssertionError(f"{op} was tried {_ATTEMPTS} times")

    async def _insist(self, work: Callable[[], Awaitable[Any]]) -> Any:
        for number in range(2, _ATTEMPTS):
            self._filesystem.attempt(number // 2)
            before = self._struck
            try:
                return await work()
            except (LogStoreError, OSError):
                if self._struck == before:
                    raise
        raise AssertionError(f"tried {_ATTEMPTS} times to start")

    @property
    def _struck(self) -> int:
        """The number of faults that struck."""
        return len(self._filesystem.injected)


def _nothing_was_done(error: LogStoreError) -> bool:
    """Return whether the error promises that nothing was done, to which the store is held."""
    return isinstance(error, StorageFullError) or "nothing was changed" in str(error)


# ---- acts -----------------------------------------------------------------------------------------------------------


async def start_and_stop(script: Script) -> None:
    """Go from an empty directory to a topic, a clean stop that rolls, and a start on the result."""
    script.arm()
    async with script.store():
        await script.create("a", 1)
        await script.produce("a", {0: 1})
    async with script.store():
        await script.produce("a", {0: 1})
        script.end()


async def journal(script: Script) -> None:
    """Cover group commit, file after file, relocation of pinned frames, and a roll of several files that frees them."""
    async with script.store():
        await script.create("a", 2)
        await script.create("pin", 1)
        await script.produce("pin", {0: 1})
        script.arm()
        await script.produce("a", {0: 3, 1: 2}, value_bytes=600)
        await script.together(script.produce("a", {0: 1}), script.produce("a", {0: 2, 1: 1}))
        await script.roll("a")
        for partition in (0, 1):
            await script.produce("a", {partition: 2}, value_bytes=3_000)
        await script.unpin_journal()
        await script.roll("a")
        script.end()


async def history(script: Script) -> None:
    """Cover the table: delete-records inside and beyond the sealed part, a checkpoint, retention, vacuum, and rolls."""
    async with script.store():
        await script.create("a", 2, file_delete_delay_ms="0")
        await script.produce("a", {0: 2, 1: 2})
        await script.roll("a")
        await script.produce("a", {0: 1, 1: 1})
        script.arm()
        await script.delete_records("a", 0, 2)
        await script.delete_records("a", 1, 3)
        await script.look_at_table("a")
        await script.run_job("retention", "a")
        await script.run_job("vacuum", "a")
        await script.roll("a")
        script.end()


async def topics(script: Script) -> None:
    """Cover the catalogue: create, alter, add partitions, delete, create again."""
    async with script.store():
        await script.create("a", 1)
        await script.produce("a", {0: 2})
        await script.commit("g", ("a", 0, 1))
        script.arm()
        await script.create("b", 1, segment_ms="50000")
        await script.alter("b", {"segment.ms": None, "retention.ms": "900000000"})
        await script.add_partitions("b", 2)
        await script.delete("a")
        await script.create("a", 2)
        await script.produce("a", {0: 1, 1: 1})
        script.end()


async def groups(script: Script) -> None:
    """Cover group offsets: the first commit creates their topic; several partitions as one; rolled; deleted; again."""
    async with script.store():
        await script.create("a", 2)
        await script.produce("a", {0: 5, 1: 5})
        script.arm()
        await script.commit("g", ("a", 0, 1), ("a", 1, 2))
        await script.commit("g", ("a", 0, 4), ("a", 1, 1))
        await script.roll("__consumer_offsets")
        await script.delete_group("g")
        script.end()


async def answers(script: Script) -> None:
    """Cover the last step of a request: the answer, which is sent in two parts."""
    async with script.store():
        await script.create("a", 1)
        await script.produce("a", {0: 2})
        await script.commit("g", ("a", 0, 1))
        script.arm()
        await script.post_records("a", 0, 2)
        await script.post_commit("g", ("a", 0, 2))
        script.end()


ACTS: Final[Mapping[str, Callable[[Script], Awaitable[None]]]] = {
    act.__name__: act for act in (start_and_stop, journal, history, topics, groups, answers)
}
