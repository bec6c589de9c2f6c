"""Runs ``logstore`` and counts the functions of Python that it calls: ``python counted_store.py FILE serve ...``.

At each SIGUSR1 it writes two numbers to FILE: how many signals it has had, and how many calls all its threads have
made. It runs as a file under the interpreter of any checkout, so it imports nothing of this one.
"""

import runpy
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any


def main() -> None:
    report = Path(sys.argv.pop(1))
    calls, signals = count(), count(1)

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            next(calls)

    def write(*_: object) -> None:
        unfinished = report.with_suffix(".unfinished")
        unfinished.write_text(f"{next(signals)} {next(calls)}")
        unfinished.replace(report)

    signal.signal(signal.SIGUSR1, write)
    threading.setprofile(profile)
    sys.setprofile(profile)
    runpy.run_module("logstore.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
