"""The tasks of the zygote's children: play an act until a fault ends it, or recover the remains and continue."""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import deltalake.transaction  # noqa: F401  for the children, as all that is imported late
import structlog

from logstore.broker import opened_journal, roll_schedule
from logstore.broker.context import INTERNAL
from logstore.delta import maintenance
from logstore.errors import LogStoreError
from logstore.records.offset_record import OFFSETS_TOPIC
from tests.faults.fail_points.fault import FailPoints, Fault
from tests.faults.fail_points.script import ACTS, History, Script, StoppedError
from tests.support.running_broker import read_all

#: The size is so small that a few records cause everything that takes days in production.
_JOURNAL_FILE_BYTES: Final = 8 * 1024
_CHECKPOINT_INTERVAL: Final = 3
_JOURNAL_FILES: Final = 1
#: Work of every few seconds happens when the script requests it, however slow the machine is.
_NEVER_S: Final = 3600.0


def play(directory: Path, *, act: str, faults: Sequence[str] = ()) -> None:
    """Play an act; ``hits.json`` has the points that it reached, ``struck.json`` the faults (other than death)."""
    ordered = [Fault.parse(fault) for fault in faults]
    filesystem = FailPoints.under(directory / "data", ordered)

    def arm() -> None:
        filesystem.hits.clear()
        for fault in ordered:
            fault.order(filesystem)

    def end() -> None:
        _tell(directory, filesystem)
        os._exit(0)

    async def run() -> None:
        with contextlib.suppress(StoppedError):
            await ACTS[act](Script(directory / "data", filesystem, History(directory / "history.jsonl"), arm, end))

    try:
        _run(run())
    finally:
        _tell(directory, filesystem)


def recover(directory: Path, *, faults: Sequence[str] = ()) -> None:
    """Start a store on the remains, report its content, prove that it works, stop; with ``faults`` only start it.

    Exits with an error if it does not start, unless a fault prevented that.
    """
    ordered = [Fault.parse(fault) for fault in faults]
    filesystem = FailPoints.under(directory / "data", ordered)
    for fault in ordered:
        fault.order(filesystem)
    history = History(directory / "history.jsonl")

    async def run() -> None:
        script = Script(directory / "data", filesystem, history)
        async with script.store():
            history.tell("found", "ok", **await _state(script))
            if faults:
                return
            await _work(script)
            history.tell("found", "ok", **await _state(script))

    try:
        _run(run())
    except (LogStoreError, OSError):
        if not filesystem.injected:
            raise
    finally:
        _tell(directory, filesystem)


async def _work(script: Script) -> None:
    """Give every topic records and a group offsets, and create a topic; the stop rolls all of it."""
    for topic in script.broker.topics.served.all(INTERNAL):
        await script.produce(topic.name, dict.fromkeys(range(len(topic.partitions)), 1))
        if script.groups.groups(INTERNAL):
            await script.commit("after", (topic.name, 0, 1))
    await script.create("new", 1)


async def _state(script: Script) -> dict[str, Any]:
    """Return the content of the store, as users see it."""
    topics = {}
    for topic in script.broker.topics.served.all(INTERNAL):
        logs = []
        for log in topic.partitions:
            log.check()
            found = await read_all(script.broker, topic, log.partition)
            rows = [(offset, (value or b"").decode()) for offset, value in found]
            logs.append({"log_start": log.log_start_offset, "high_watermark": log.high_watermark, "rows": rows})
        topics[topic.name] = {"configs": topic.config_overrides, "partitions": logs}
    groups = {
        group: [(c.topic, c.partition, c.offset) for c in script.groups.committed(INTERNAL, group)]
        for group in script.groups.groups(INTERNAL)
    }
    offsets = {}
    with contextlib.suppress(LogStoreError):
        offsets = {p.partition: p.high_watermark for p in script.topic(OFFSETS_TOPIC).partitions}
    return {"topics": topics, "groups": groups, "offsets_topic": offsets}


def _run(work: Any) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    opened_journal.JOURNAL_FILE_BYTES = _JOURNAL_FILE_BYTES
    maintenance.DELTA_CHECKPOINT_INTERVAL = _CHECKPOINT_INTERVAL
    roll_schedule._JOURNAL_FILES = _JOURNAL_FILES
    roll_schedule._TICK_S = roll_schedule._REFRESH_S = _NEVER_S
    asyncio.run(asyncio.wait_for(work, 400))


def _tell(directory: Path, filesystem: FailPoints) -> None:
    (directory / "hits.json").write_text(json.dumps(filesystem.hits))
    (directory / "struck.json").write_text(json.dumps(filesystem.injected))


TASKS: Final = {"play": play, "recover": recover}
