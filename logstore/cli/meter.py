"""The speed of ``consume`` and ``topic copy``, on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from logstore.cli.output import bytes_text, counted

_PROGRESS_SECONDS = 1.0


@dataclass(slots=True)
class Meter:
    """The number of records, and their rate: one line on stderr, on a terminal always the same one. ``part`` is the
    finished share of the whole, if known.
    """

    shown: bool
    verb: str = "Consumed"
    part: float | None = None
    began: float = field(default_factory=time.monotonic)
    due: float = field(default_factory=lambda: time.monotonic() + _PROGRESS_SECONDS)
    records: int = 0
    bytes: int = 0

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size

    def show(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if not self.shown or (now < self.due and not last):
            return
        self.due = now + _PROGRESS_SECONDS
        seconds = max(now - self.began, 1e-3)
        rate = f"{self.records / seconds:,.0f} records/s, {bytes_text(self.bytes / seconds)}/s"
        part = "" if self.part is None else f", {self.part:.0%} of the topic"
        done = f"{self.verb} {counted(self.records, 'record')} ({bytes_text(self.bytes)})"
        line = f"{done} in {seconds:,.1f} s: {rate}{part}"
        start, end = ("\r", "\n" if last else "\x1b[K") if sys.stderr.isatty() else ("", "\n")
        sys.stderr.write(f"{start}{line}{end}")
        sys.stderr.flush()


@contextmanager
def metered(*, shown: bool, verb: str = "Consumed") -> Iterator[Meter]:
    meter = Meter(shown, verb)
    try:
        yield meter
    finally:
        meter.show(last=True)
