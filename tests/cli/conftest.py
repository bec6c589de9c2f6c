"""One real store for the tests of the command line, and the command line itself."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from logstore.cli.app import app
from tests.support.server_process import ROOT, ServerProcess

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("cli") / "data") as server:
        yield server


@pytest.fixture(autouse=True)
def _no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the profiles of the person who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("LOGSTORE_PROFILE", raising=False)


@pytest.fixture
def run(server: ServerProcess) -> Run:
    """Return ``run("topic", "list")``, which runs a command in this process and expects ``code`` (None: any)."""

    def run(*arguments: object, input: str | bytes | None = None, code: int | None = 0) -> Result:
        runner = CliRunner(env={"LOGSTORE_URL": server.url})
        result = runner.invoke(app, [str(argument) for argument in arguments], input=input, prog_name="logstore")
        assert code in (None, result.exit_code), result.output
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """Return ``run`` with --json, which decodes the output."""

    def run_json(*arguments: object, **options: Any) -> Any:
        return json.loads(run(*arguments, "--json", **options).stdout)

    return run_json


@pytest.fixture
def topic(run: Run) -> str:
    """Create a topic with two partitions, and return its name."""
    name = f"t-{uuid4().hex[:12]}"
    run("topic", "create", name, "--partitions", 2)
    return name


@pytest.fixture
def start(server: ServerProcess) -> Callable[..., subprocess.Popen[bytes]]:
    """Return a function that starts the command in its own process."""

    def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "logstore.cli", "--url", server.url, *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=ROOT, **{**pipes, **options})

    return start
