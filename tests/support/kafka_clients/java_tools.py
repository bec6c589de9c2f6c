"""Kafka's own command-line tools and test clients, from Maven's jars, each in its own JVM."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kafka import Kafka

_OPTIONS = ["-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
SECONDS = 120


@dataclass(frozen=True)
class JavaTools:
    kafka: Kafka
    bootstrap: str
    directory: Path

    def run(self, main_class: str, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        """Run a tool that ends by itself and return its stdout, followed by stderr if it has to fail."""
        done = subprocess.run(
            self._command(main_class, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=self.directory,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"{main_class} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if fails else "")

    def admin(self, main_class: str, *arguments: str, fails: bool = False) -> str:
        return self.run(main_class, "--bootstrap-server", self.bootstrap, *arguments, fails=fails)

    def _command(self, main_class: str, *arguments: str) -> list[str]:
        return self.kafka.command(_OPTIONS, main_class, *arguments)

    @contextmanager
    def running(self, name: str, main_class: str, *arguments: str) -> Iterator["RunningTool"]:
        """Run a tool until the end of the block, which sends SIGTERM; its lines go to the file ``name``."""
        output = self.directory / name
        with output.open("wb") as file:
            process = subprocess.Popen(
                self._command(main_class, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        try:
            yield RunningTool(process, output)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@dataclass(frozen=True)
class RunningTool:
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of a Verifiable tool, without one that is only half written."""
        return json_lines(self.text.rpartition("\n")[0])

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def table(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of the table whose head has these columns, by column."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    head = next(number for number, line in enumerate(lines) if line[: len(columns)] == list(columns))
    return [dict(zip(columns, line, strict=False)) for line in lines[head + 1 :]]
