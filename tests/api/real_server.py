"""A server in its own process, and raw sockets to it."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

ROOT = Path(__file__).parents[2]
_SERVE = """
import json, sys
from logstore.node import serve
from logstore.settings import load_settings
sys.exit(serve(load_settings(**json.loads(sys.argv[1]))))
"""


@dataclass
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/json"
        found = json.loads(self.body)
        assert set(found) == {"error_code", "message"}
        return found


class RealServer:
    """Used as ``with RealServer(data, port=0) as server``, with settings as keywords. The block ends with SIGTERM."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.data = data
        self.log_path = data.parent / f"{data.name}.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, json.dumps({"data": str(data), "port": 0, **settings})],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=data.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def wait_until_listening(self) -> str:
        """Wait for the line that the server prints, and return it; "" if the server ended without one."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 180)
        line = self.process.stdout.readline() if ready else ""
        self.url = line.removeprefix("listening on ").strip()
        self.port = int(self.url.rpartition(":")[2]) if self.url else 0
        return line

    def __enter__(self) -> Self:
        line = self.wait_until_listening()
        if not line:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(self.log_path.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def create_topic(self, name: str, partitions: int = 1) -> None:
        cluster = httpx.get(f"{self.url}/v3/clusters", timeout=30).json()["data"][0]["cluster_id"]
        body = {"topic_name": name, "partitions_count": partitions}
        answer = httpx.post(f"{self.url}/v3/clusters/{cluster}/topics", json=body, timeout=30)
        assert answer.status_code == 201, answer.text

    def end_offset(self, topic: str = "t", partition: int = 0) -> int:
        """Return the log end offset: it rises with anything that was stored."""
        found = httpx.get(f"{self.url}/topics/{topic}/partitions/{partition}", timeout=30).json()
        return found["log_end_offset"]

    @contextlib.contextmanager
    def connection(self) -> Iterator["RawConnection"]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as raw:
            yield RawConnection(raw)


class RawConnection:
    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self._buffer = b""

    def send(self, data: bytes) -> None:
        """Send ``data``. A server that takes no more bytes is no error here, because its answer counts."""
        with contextlib.suppress(ConnectionError):
            self.raw.sendall(data)

    def end(self) -> None:
        self.raw.shutdown(socket.SHUT_WR)

    def answer(self) -> RawAnswer | None:
        """Return the next answer; None if the server closed the connection."""
        head = self._until(b"\r\n\r\n")
        if head is None:
            return None
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value.strip()
        status = int(status_line.split(" ")[1])
        body = b"" if status < 200 or status == 204 else self._exactly(int(headers["content-length"]))
        return RawAnswer(status, headers, body)

    def _more(self) -> bool:
        try:
            data = self.raw.recv(65536)
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)

    def _until(self, mark: bytes) -> bytes | None:
        while mark not in self._buffer:
            if not self._more():
                assert not self._buffer, self._buffer
                return None
        found, self._buffer = self._buffer.split(mark, 1)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            assert self._more(), "the connection broke off inside a body"
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found
