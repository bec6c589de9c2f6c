"""Single-record requests at a fixed rate: an open loop, so that a slow response does not slow down the next requests.

A request's latency counts from the time it was due, even if it had to wait for a connection. The times can be kept in a
file: pairs of doubles, due time (CLOCK_MONOTONIC) and latency, in seconds.
"""

import select
import time
from array import array
from collections import deque
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.load.connection import Connection, Target, connections_to
from benchmarks.load.result import precise_timers, print_result, read_specification


def run(spec: dict[str, Any]) -> None:
    """Run the load. ``spec`` has servers (each host, port, paths), content_type, bodies (taken in turn), connections,
    rate (requests per second), seconds, keep (a file or nothing).
    """
    precise_timers()
    bodies = cycle([Path(name).read_bytes() for name in spec["bodies"]])
    targets = [Target(server, spec["content_type"]) for server in spec["servers"]]
    turns = cycle([target for target in targets for _ in range(target.share)])
    idle: dict[Target, deque[Connection]] = {target: deque() for target in targets}
    for target, connection in connections_to(targets, spec["connections"]):
        idle[target].append(connection)
    busy: dict[Connection, tuple[Target, float]] = {}
    buffer = bytearray(65_536)
    done = array("d")

    def take_answers(timeout: float) -> None:
        readable, _, _ = select.select(list(busy), (), (), timeout)
        for connection in readable:
            if not connection.receive(buffer):
                continue
            if connection.status != 200:
                raise ConnectionError(f"the server refuses {spec['rate']:,} requests a second (429)")
            target, due = busy.pop(connection)
            done.extend((due, time.monotonic() - due))
            idle[target].append(connection)

    began = time.monotonic() + 0.05
    count = int(spec["rate"] * spec["seconds"])
    for index in range(count):
        due = began + index / spec["rate"]
        while (wait := due - time.monotonic()) > 0:
            take_answers(wait)
        target, body = next(turns), next(bodies)
        while not idle[target]:
            take_answers(30)
        connection = idle[target].popleft()
        connection.send(target.head(body), body)
        busy[connection] = target, due
    while busy:
        take_answers(30)
    if spec["keep"]:
        Path(spec["keep"]).write_bytes(done.tobytes())
    print_result(count, time.monotonic() - began, done[1::2])


if __name__ == "__main__":
    run(read_specification())
