"""The files of ``conf`` that run the store in other environments, read as Docker and systemd read them.

A test runs their commands with its own paths for ``/opt/logstore`` (an environment) and ``/data``.
"""

import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.server_process import ROOT

DOCKERFILE = ROOT / "conf/Dockerfile"
COMPOSE_FILE = ROOT / "conf/compose.yaml"
UNIT = ROOT / "conf/logstore.service"
SOCKET_UNIT = ROOT / "conf/logstore.socket"
PORT, KAFKA_PORT = "8082", "9092"
_START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Stage:
    """The instructions from one FROM to the next: ``(name, arguments)``, in order."""

    instructions: list[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        return [arguments for found, arguments in self.instructions if found == name]

    def one(self, name: str) -> str:
        (arguments,) = self.all(name)
        return arguments


def stages() -> list[Stage]:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    found: list[Stage] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, arguments = line.strip().partition(" ")
        if name == "FROM":
            found.append(Stage([]))
        if name:
            found[-1].instructions.append((name, arguments.strip()))
    return found


def container_command() -> list[str]:
    """Return the exec forms of ENTRYPOINT and CMD: no shell that would keep SIGTERM from the store."""
    return [*json.loads(stages()[-1].one("ENTRYPOINT")), *json.loads(stages()[-1].one("CMD"))]


def container_environment() -> dict[str, str]:
    """Return the variables of the image."""
    pairs = (pair.partition("=") for arguments in stages()[-1].all("ENV") for pair in shlex.split(arguments))
    return {name: value for name, _, value in pairs}


def health_check() -> list[str]:
    command: list[str] = json.loads(stages()[-1].one("HEALTHCHECK").partition("CMD ")[2])
    return command


def sections(file: Path) -> dict[str, dict[str, list[str]]]:
    """Return the values of each key of each section of a unit."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        if line.startswith("["):
            section = found[line.strip("[]")] = {}
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            section.setdefault(key, []).append(value)
    return found


def unit() -> dict[str, list[str]]:
    """Return the values of each key of the service, whatever its section."""
    return {key: values for section in sections(UNIT).values() for key, values in section.items()}


def unit_command() -> list[str]:
    return shlex.split(unit()["ExecStart"][0])


def placed(command: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """Return the command with each path of ``places`` replaced by the test's own."""
    found = list(command)
    for there, here in places.items():
        found = [argument.replace(there, here) for argument in found]
    return found


def environment_command() -> Path:
    """Return the ``logstore`` command of the tests' environment."""
    return Path(sys.executable).parent / "logstore"


@contextmanager
def started(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the URL at which the store of ``command`` listens. At the end it must exit with 0 on SIGTERM."""
    with (directory / "store.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        line = process.stdout.readline() if ready else ""
        assert line.startswith("listening on "), (directory / "store.log").read_text()
        yield line.removeprefix("listening on ").strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
