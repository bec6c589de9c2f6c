"""A logstore command with a faulty disk, a clock to set and an event loop to block: ``python -m ... serve --data D``.

``LOGSTORE_FAULTS`` (commands, separated by ``;``) is carried out before it begins; ``LOGSTORE_MUTANT`` names a function
of ``tests.faults.bench.mutants``, or of another module with its path, that breaks the code on purpose;
``LOGSTORE_INSTALL`` names a function with its path that adds points to stop at. At ``LOGSTORE_CONTROL``, a Unix socket,
it takes commands while it runs, one a connection, and answers each with JSON::

    fail <call> <ERRNO|SHORT> [nth=] [times=] [written=] [path=]    slow <call> <seconds>    fill <free bytes>
    readonly
    point <name or call> <kill|stop|ERRNO> [nth=]             heal                     power-cut <seed> [strict]
    block <seconds>                                           clock <offset in ms>     hits    faults
    session

``session`` returns number and password of the broker's session with ZooKeeper, or nothing while there is none.
``power-cut`` removes unsynced data from the disk and kills the process; it sends no response.
"""

import asyncio
import contextlib
import errno
import functools
import gc
import importlib
import json
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import logstore.filesystem
from logstore.clock import SystemClock
from tests.support.faulty_filesystem import SHORT, FaultyFileSystem, kill, raising, stop

_ACTIONS = {"kill": kill, "stop": stop}


class Controls:
    def __init__(self, filesystem: FaultyFileSystem) -> None:
        self.filesystem = filesystem
        self.clock_offset_ms = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        #: The ``ZooKeeper`` of a broker of a cluster.
        self.zookeeper: Any = None

    def run(self, command: str) -> object:
        """Carry out one command and return its result.

        Raises ValueError, KeyError or AttributeError for a text that is no command.
        """
        name, *words = command.split()
        options: dict[str, Any] = {}
        for word in words:
            key, given, value = word.partition("=")
            if given:
                options[key] = int(value) if value.isdecimal() else value
        return getattr(self, f"_{name.replace('-', '_')}")(*(w for w in words if "=" not in w), **options)

    def _fail(self, call: str, error: str, **options: Any) -> None:
        self.filesystem.fail(call, SHORT if error == "SHORT" else getattr(errno, error), **options)

    def _point(self, point: str, action: str, nth: int = 1) -> None:
        self.filesystem.at(point, _ACTIONS.get(action) or raising(getattr(errno, action)), nth=nth)

    def _fill(self, free_bytes: str) -> None:
        self.filesystem.fill(int(free_bytes))

    def _readonly(self) -> None:
        self.filesystem.readonly()

    def _slow(self, call: str, seconds: str) -> None:
        self.filesystem.slow(call, float(seconds))

    def _heal(self) -> None:
        self.filesystem.heal()
        self.clock_offset_ms = 0

    def _power_cut(self, seed: str, *how: str) -> None:
        # The disk of a machine that loses power needs no descriptors of the process.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with self.filesystem.holding():
            try:
                self.filesystem.power_cut(random.Random(int(seed)), strict="strict" in how)
            except BaseException:  # noqa: BLE001 - whatever it is
                traceback.print_exc()
                os._exit(70)  # half a power cut is none: the caller has to see the error
            os.kill(os.getpid(), signal.SIGKILL)

    def _block(self, seconds: str) -> None:
        assert self.loop
        self.loop.call_soon_threadsafe(time.sleep, float(seconds))

    def _clock(self, offset_ms: str) -> None:
        self.clock_offset_ms = int(offset_ms)

    def _hits(self) -> dict[str, int]:
        return dict(self.filesystem.hits)

    def _faults(self) -> list[str]:
        return self.filesystem.injected

    def _session(self) -> tuple[int, str] | None:
        if (session := self.zookeeper._client.client_id) is None:
            return None
        number, password = session
        return number, password.hex()


def install(root: Path) -> Controls:
    """Give this process a faulty disk below ``root`` and a clock that can be set."""
    gc.disable()  # as ``logstore serve`` while it imports
    from logstore.broker.broker import Broker

    gc.enable()
    controls = Controls(FaultyFileSystem(root))
    controls.filesystem.spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    logstore.filesystem._local = controls.filesystem
    now_ms = SystemClock.now_ms
    SystemClock.now_ms = lambda self: now_ms(self) + controls.clock_offset_ms  # type: ignore[method-assign]
    start = Broker.start.__func__  # type: ignore[attr-defined]

    @functools.wraps(start)
    async def start_here(cls: type[Broker], *args: Any, **kwargs: Any) -> Broker:
        controls.loop = asyncio.get_running_loop()
        return await start(cls, *args, **kwargs)  # type: ignore[no-any-return]

    Broker.start = classmethod(start_here)  # type: ignore[assignment, method-assign]
    return controls


def _listen(controls: Controls, path: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    Path(path).unlink(missing_ok=True)
    listener.bind(path)
    listener.listen()

    def answer(asked: socket.socket) -> None:
        command = b"".join(iter(functools.partial(asked.recv, 4096), b""))
        try:
            reply: object = {"ok": controls.run(command.decode())}
        except Exception as error:  # noqa: BLE001 - sent to the client of the socket
            reply = {"error": repr(error)}
        asked.sendall(json.dumps(reply).encode())

    def answer_all() -> None:
        while True:
            asked, _ = listener.accept()
            with asked, contextlib.suppress(OSError):  # the client may have given up
                answer(asked)

    threading.Thread(target=answer_all, daemon=True).start()


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def main(arguments: Sequence[str]) -> None:
    from logstore.cli import main as logstore_main

    root = Path(arguments[arguments.index("--data") + 1]).absolute()
    controls = install(root)
    for command in filter(None, os.environ.get("LOGSTORE_FAULTS", "").split(";")):
        controls.run(command)
    if mutant := os.environ.get("LOGSTORE_MUTANT"):
        _named(mutant if "." in mutant else f"tests.faults.bench.mutants.{mutant}")()
    if installed := os.environ.get("LOGSTORE_INSTALL"):
        _named(installed)(controls)
    if path := os.environ.get("LOGSTORE_CONTROL"):
        _listen(controls, path)
    sys.argv = ["logstore", *arguments]
    logstore_main()


if __name__ == "__main__":
    main(sys.argv[1:])
