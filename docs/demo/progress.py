"""The progress of the demo: a bar on a terminal, plain lines elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Advance = Callable[[int], None]


class Steps:
    """Steps one after the other, each with the time that it took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the first step began."""
        return time.monotonic() - self._began

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Advance]:
        """Begin a step of ``total`` units (None: unknown). Call the yielded function with the units done, from any
        thread.
        """
        began = time.monotonic()
        if self.console.is_terminal:
            with self._bar(title, total) as advance:
                yield advance
        else:
            self.console.print(f"{title} ...")
            yield _Quarters(self.console, total) if total else _nothing
        counted = f" ({total:,})" if total else ""
        self.console.print(f"[green]done[/] {title}{counted} in {time.monotonic() - began:.1f} s", highlight=False)

    @contextmanager
    def _bar(self, title: str, total: int | None) -> Iterator[Advance]:
        columns = [SpinnerColumn(), TextColumn("{task.description}")]
        columns += [BarColumn(), MofNCompleteColumn()] if total else []
        with Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda units: progress.advance(task, units)


class _Quarters:
    """Prints a plain line at each quarter."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        self._lock = threading.Lock()

    def __call__(self, units: int) -> None:
        with self._lock:
            before = 4 * self._done // self._total
            self._done += units
            if before < 4 * self._done // self._total < 4:
                self._console.print(f"  {self._done:,} of {self._total:,}", highlight=False)


def _nothing(units: int) -> None:
    pass
