"""POST bodies made beforehand over kept connections, each as fast as its responses come: one thread and epoll.

It shares two cores with the server, so it does as little as it can: nothing is encoded, copied or parsed beyond a
response's status and length. After a 429 it waits for the ``Retry-After``, as a client should, and counts it.
"""

import select
import time
from array import array
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.load.connection import Target, connections_to
from benchmarks.load.result import print_result, read_specification

_RECEIVE_BYTES = 256 * 1024


def run(spec: dict[str, Any]) -> None:
    """Run the load. ``spec`` has servers (each host, port, paths), content_type, bodies (files), connections, records
    (of a body), seconds, limit (records in all; 0: none).
    """
    bodies = cycle([Path(name).read_bytes() for name in spec["bodies"]])
    targets = [Target(server, spec["content_type"]) for server in spec["servers"]]
    connections = {
        connection.socket.fileno(): (target, connection)
        for target, connection in connections_to(targets, spec["connections"])
    }
    poll = select.epoll()
    buffer = bytearray(_RECEIVE_BYTES)
    latencies = array("d")
    throttled = begun = 0
    waiting: list[tuple[float, int]] = []
    limit = spec["limit"] or float("inf")

    def send(number: int) -> None:
        nonlocal begun
        body = next(bodies)
        target, connection = connections[number]
        whole = connection.send(target.head(body), body)
        poll.modify(number, select.EPOLLIN if whole else select.EPOLLIN | select.EPOLLOUT)
        begun += spec["records"]

    began = time.monotonic()
    stop = began + spec["seconds"]
    for number in connections:
        poll.register(number, select.EPOLLIN)
        send(number)
    open_requests = len(connections)
    while open_requests or waiting:
        for number, events in poll.poll(0.05 if waiting else 10):
            _, connection = connections[number]
            if events & select.EPOLLOUT and connection.send_more():
                poll.modify(number, select.EPOLLIN)
            if not (events & select.EPOLLIN and connection.receive(buffer)):
                continue
            now = time.monotonic()
            open_requests -= 1
            if connection.status == 429:
                throttled += 1
                begun -= spec["records"]
                waiting.append((now + connection.retry_after_s, number))
                continue
            latencies.append(now - connection.began)
            if now < stop and begun < limit:
                send(number)
                open_requests += 1
        now = time.monotonic()
        for due, number in [entry for entry in waiting if entry[0] <= now or now >= stop]:
            waiting.remove((due, number))
            if now < stop:
                send(number)
                open_requests += 1
        if now > stop + 60:
            raise TimeoutError("no answer for a minute")
    print_result(len(latencies) * spec["records"], time.monotonic() - began, latencies, throttled=throttled)


if __name__ == "__main__":
    run(read_specification())
