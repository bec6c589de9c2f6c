"""Read a topic from its beginning to its end as Arrow, a connection and a thread for each partition, again and again.

Responses are opened as Arrow columns (without a copy) and counted; no record becomes an object.
"""

import socket
import threading
import time
from typing import Any

import pyarrow as pa

from benchmarks.load.result import print_result, read_specification


class Reader:
    def __init__(self, spec: dict[str, Any], partition: int) -> None:
        self._socket = socket.create_connection((spec["host"], spec["port"]))
        self._host = f"{spec['host']}:{spec['port']}"
        query = f"max_bytes={spec['max_bytes']}&max_wait_ms=0&offset="
        self._path = f"/topics/{spec['topic']}/partitions/{partition}/records?{query}"
        self.records = 0

    def read_all(self) -> None:
        """Read once from offset 0 to the high watermark."""
        offset, end = 0, 1
        while offset < end:
            line = f"GET {self._path}{offset} HTTP/1.1\r\nHost: {self._host}\r\n"
            self._socket.sendall(f"{line}Accept: application/vnd.apache.arrow.stream\r\n\r\n".encode())
            fields, body = self._receive()
            for batch in pa.ipc.open_stream(body):
                self.records += batch.num_rows
            offset, end = int(fields[b"logstore-next-offset"]), int(fields[b"logstore-high-watermark"])

    def _receive(self) -> tuple[dict[bytes, bytes], pa.Buffer]:
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            part = self._socket.recv(16_384)
            if not part:
                raise ConnectionError("the server closed a connection before its answer")
            received += part
        lines = received[:end].lower().split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines[1:])
        if not lines[0].startswith(b"http/1.1 200"):
            raise ConnectionError(f"the server answered {received[:600].decode(errors='replace')}")
        body = pa.allocate_buffer(int(fields[b"content-length"]))
        view = memoryview(body).cast("B")
        first = received[end + 4 :]
        view[: len(first)] = first
        if len(first) < len(view):
            self._socket.recv_into(view[len(first) :], flags=socket.MSG_WAITALL)
        return fields, body


def run(spec: dict[str, Any]) -> None:
    """Run the load.

    ``spec`` has host, port, topic, partitions, max_bytes (of a response), seconds (no pass begins after them).
    """
    readers = [Reader(spec, partition) for partition in range(spec["partitions"])]
    failures: list[BaseException] = []

    def guarded(reader: Reader) -> None:
        try:
            reader.read_all()
        except BaseException as error:
            failures.append(error)
            raise

    began = time.monotonic()
    passes = 0
    while not passes or time.monotonic() < began + spec["seconds"]:
        threads = [threading.Thread(target=guarded, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        passes += 1
    print_result(sum(reader.records for reader in readers), time.monotonic() - began, passes=passes)


if __name__ == "__main__":
    run(read_specification())
