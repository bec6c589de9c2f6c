"""Single-record requests at a fixed rate: an open loop, so that a slow answer does not slow down what follows it.

A request's latency counts from the time it was due, whether it could go out then or all connections were taken. The
answers' times can be kept in a file: pairs of doubles, due time (CLOCK_MONOTONIC) and latency, in seconds.
"""

import select
import time
from array import array
from collections import deque
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.load.connection import Connection
from benchmarks.load.result import precise_timers, print_result, read_specification


def run(spec: dict[str, Any]) -> None:
    """``spec``: host, port, paths (taken in turn, as bodies are), content_type, bodies, connections, rate (requests a
    second), seconds, keep (a file or nothing).
    """
    precise_timers()
    rest = (
        f" HTTP/1.1\r\nHost: {spec['host']}:{spec['port']}\r\nContent-Type: {spec['content_type']}\r\nContent-Length: "
    )
    bodies = [Path(name).read_bytes() for name in spec["bodies"]]
    pairs = [(path, body) for path in spec["paths"] for body in bodies]
    requests = cycle([(f"POST {path}{rest}{len(body)}\r\n\r\n".encode(), body) for path, body in pairs])
    idle = deque(Connection(spec["host"], spec["port"]) for _ in range(spec["connections"]))
    busy: dict[Connection, float] = {}
    buffer = bytearray(65_536)
    done = array("d")

    def take_answers(timeout: float) -> None:
        readable, _, _ = select.select(list(busy), (), (), timeout)
        for connection in readable:
            if not connection.receive(buffer):
                continue
            if connection.status != 200:
                raise ConnectionError(f"the server refuses {spec['rate']:,} requests a second (429)")
            due = busy.pop(connection)
            done.extend((due, time.monotonic() - due))
            idle.append(connection)

    began = time.monotonic() + 0.05
    count = int(spec["rate"] * spec["seconds"])
    for index in range(count):
        due = began + index / spec["rate"]
        while (wait := due - time.monotonic()) > 0:
            take_answers(wait)
        while not idle:
            take_answers(30)
        connection = idle.popleft()
        connection.send(*next(requests))
        busy[connection] = due
    while busy:
        take_answers(30)
    if spec["keep"]:
        Path(spec["keep"]).write_bytes(done.tobytes())
    print_result(count, time.monotonic() - began, done[1::2])


if __name__ == "__main__":
    run(read_specification())
