"""The functions of docs/delivery.md, run in processes that are killed in the middle of their work."""

import multiprocessing
import os
import re
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.server_process import ROOT

# The processes are forked from one that has imported the clients, which saves a second for each.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["logstore.client.consumer", "logstore.client.producer"])


def run(name: str, url: str, done: Path, *arguments: Any, kill_after: int | None = None) -> None:
    """Run the page's function ``name``; its ``work`` adds a line to ``done`` for each record.

    With ``kill_after`` the process kills itself after the work of that record.
    """
    process: BaseProcess = _PROCESSES.Process(target=_run, args=(name, url, done, arguments, kill_after))
    process.start()
    process.join(120)
    expected = 0 if kill_after is None else -signal.SIGKILL
    assert process.exitcode == expected, f"{name} ended with {process.exitcode}"
    process.close()


def _run(name: str, url: str, done: Path, arguments: tuple[Any, ...], kill_after: int | None) -> None:
    page = (ROOT / "docs" / "delivery.md").read_text()
    functions: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "docs/delivery.md", "exec"), functions)
    count = 0
    with done.open("ab", buffering=0) as file:

        def work(record: Any) -> str:
            nonlocal count
            count += 1
            line = f"{record.partition}-{record.offset}"
            file.write(line.encode() + b"\n")
            if count == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            return line

        functions[name](url, work, *arguments)
