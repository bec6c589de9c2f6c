"""The store of the demo: one that already serves the data directory, or its own on a free port."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.demo.flights import DemoError
from logstore.client.local_store import running_store
from logstore.endpoint_file import Endpoint

_START_SECONDS = 60
_STOP_SECONDS = 60


@contextmanager
def store_of(data: Path, log: Path) -> Iterator[tuple[str, Endpoint | None]]:
    """Yield the URL of a store on ``data``, and its addresses if it ran before; the demo's own store ends with the
    block.

    Its log goes to the file ``log``. Raises DemoError if none can be started.
    """
    if running := running_store(data):
        yield running.url, running
        return
    with _server(data, log) as url:
        yield url, None


@contextmanager
def _server(data: Path, log: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "logstore.cli", "serve", "--data", str(data), "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (our own command)
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, text=True, env=environment()
        )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("listening on "):
            reason = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise DemoError(f"the store did not start: {reason} (its log is {log})")
        yield line.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def environment() -> dict[str, str]:
    """Return the environment of this shell without settings of a store, which are for another one. The demo leaves
    Kafka's default port, which only one store of a machine can have, to others.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOGSTORE_")}
    return {**inherited, "LOGSTORE_KAFKA_LISTENERS": ""}
