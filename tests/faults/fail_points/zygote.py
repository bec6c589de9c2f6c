"""A process that has imported everything and forks a child for each task: thousands of real processes, cheaply.

It uses nothing of delta-rs and starts no thread, so that its children may (delta-rs must not be used in a forked child
of a process that used it). ``Zygote`` is the handle to it; a task is a function of ``processes.py`` by name.
"""

import faulthandler
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[3]
#: A child that takes longer reports its stack, and ends.
_HANGS_S: Final = 480


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a child: ``code`` as ``subprocess`` gives it, its stderr, CPU seconds."""

    code: int
    said: str
    seconds: float


class Zygote:
    """The handle: ``with Zygote() as zygote: zygote.run("act", directory, ...)``, from one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fail_points.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("LOGSTORE_")},
        )

    def run(self, task: str, directory: Path, **arguments: Any) -> Ended:
        """Run ``task(directory, **arguments)`` in a child and wait for its end."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        order = {"task": task, "directory": str(directory), "arguments": arguments}
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise RuntimeError("the zygote is dead")
        return Ended(**json.loads(answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def serve(tasks: dict[str, Callable[..., None]]) -> None:
    """Fork a child for each request on stdin, until there are no more."""
    # Memory that the children do not touch is not copied.
    gc.freeze()
    gc.disable()
    for line in sys.stdin:
        order = json.loads(line)
        directory = Path(order["directory"])
        stderr = directory / "stderr.txt"
        child = os.fork()
        if child == 0:
            _be_child(stderr, tasks[order["task"]], directory, order["arguments"])
        _, status, usage = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        said = stderr.read_text(errors="replace") if stderr.exists() else ""
        print(json.dumps({"code": code, "said": said, "seconds": usage.ru_utime + usage.ru_stime}), flush=True)


def _be_child(stderr: Path, task: Callable[..., None], directory: Path, arguments: dict[str, Any]) -> None:
    code = 1
    try:
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        faulthandler.dump_traceback_later(_HANGS_S, exit=True)
        task(directory, **arguments)
        code = 0
    except BaseException:  # noqa: BLE001  told to whoever ordered the task
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stderr.flush()
        # The zygote has nothing to clean up here.
        os._exit(code)


if __name__ == "__main__":
    from tests.faults.fail_points.processes import TASKS

    serve(TASKS)
