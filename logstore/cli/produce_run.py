"""A run of ``logstore produce``: records sent, records acknowledged by the store, and the report on both."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logstore.cli.output import bytes_text, counted, print_json
from logstore.cli.record_blocks import Block

if TYPE_CHECKING:
    from logstore.client.producer import Producer
    from logstore.client.producer.delivery import BatchDelivery

# Seconds to wait, after a failure or Ctrl-C, for the responses to requests that were sent.
_CLOSE_SECONDS = 10.0

#: Called with the bytes and records that are done.
Report = Callable[[int, int], None]


@dataclass(slots=True)
class Stored:
    """Records stored in one partition. Offsets are -1 with acks=0."""

    partition: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Run:
    """Keeps account of the records sent: only acknowledged ones count as stored."""

    topic: str
    producer: "Producer"
    report: Report
    unit: str
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    records: int = 0
    bytes: int = 0
    partitions: dict[int, Stored] = field(default_factory=dict)
    waiting: deque[tuple[Block, "BatchDelivery"]] = field(default_factory=deque)

    def send_all(self, blocks: Iterator[Block]) -> tuple[bool, str | None]:
        """Send all blocks; return True if Ctrl-C ended it, and the problem, if any."""
        from logstore.errors import LogStoreError

        problem: str | None = None
        interrupted = False
        try:
            for block in blocks:
                self.waiting.append((block, self._send(block)))
                problem = self._collect(wait=False)
                if problem:
                    break
        except KeyboardInterrupt:
            interrupted = True
        except LogStoreError as error:
            problem = error.message
        hurry = interrupted or problem is not None
        try:
            self.producer.close(_CLOSE_SECONDS if hurry else None)
        except KeyboardInterrupt:
            interrupted = True
        except LogStoreError as error:
            problem = problem or (error.message if hurry else None)
        failure = self._collect(wait=True)
        problem = problem or failure
        self.seconds = time.monotonic() - self.began
        return interrupted, problem

    def _collect(self, *, wait: bool) -> str | None:
        """Count what is delivered; return the first failure with its line."""
        problem = None
        while self.waiting and (wait or self.waiting[0][1].done()):
            block, delivery = self.waiting.popleft()
            if not delivery.done():
                # The producer is closed, and the response has not come.
                problem = problem or (
                    f"{self.unit} {block.numbers[0]} and on: no answer came, they may or may not be stored"
                )
                continue
            for rows, error in delivery.failures()[:1]:
                problem = problem or f"{self.unit} {block.numbers[rows[0]]}: {error.message}"
            self._count(block, delivery)
        return problem

    def _send(self, block: Block) -> "BatchDelivery":
        from logstore.errors import InvalidRequestError

        try:
            return self.producer.send_batch(self.topic, block.columns)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{self.unit} {block.numbers[0]} and on: {error.message}") from error

    def _count(self, block: Block, delivery: "BatchDelivery") -> None:
        import numpy as np

        stored = np.ones(len(block.numbers), bool)
        for rows, _ in delivery.failures():
            stored[rows] = False
        if not stored.any():
            return
        where = delivery.places()
        for partition in np.unique(where.partitions[stored]).tolist():
            offsets = where.offsets[stored & (where.partitions == partition)]
            seen = self.partitions.setdefault(partition, Stored(partition, 0, int(offsets[0]), int(offsets[-1])))
            seen.records += len(offsets)
            seen.last_offset = int(offsets[-1])
        self.records += int(stored.sum())
        self.bytes += block.size
        self.report(block.size, int(stored.sum()))


def summarize(run: Run, problem: str | None, *, json: bool, quiet: bool) -> None:
    partitions = [run.partitions[partition] for partition in sorted(run.partitions)]
    if json:
        print_json(
            {
                "topic": run.topic,
                "records": run.records,
                "bytes": run.bytes,
                "seconds": round(run.seconds, 3),
                "partitions": partitions,
                "error": problem,
            }
        )
    elif not quiet and (run.records or problem is None):
        rate = run.records / max(run.seconds, 1e-3)
        print(
            f"Produced {counted(run.records, 'record')} ({bytes_text(run.bytes)}) to topic {run.topic}, "
            f"{counted(len(partitions), 'partition')}, in {run.seconds:.1f} s ({rate:,.0f} records/s)"
        )


@contextmanager
def progress_bar(size: int | None, *, shown: bool) -> Iterator[Report]:
    """Show a bar on stderr; ``report(bytes, records)`` moves it."""
    if not shown:
        yield lambda _bytes, _records: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = [
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[records]:,} records"),
    ]
    if size is not None:
        columns.append(TimeRemainingColumn())
    console = Console(stderr=True)
    # Without a terminal nothing can be overwritten, so only the last state is printed.
    with Progress(*columns, console=console, transient=console.is_terminal) as progress:
        task = progress.add_task("", total=size, records=0)
        sent = 0

        def report(size: int, records: int) -> None:
            nonlocal sent
            sent += records
            progress.update(task, advance=size, records=sent)

        yield report
