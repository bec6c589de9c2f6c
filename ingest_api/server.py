"""The process: one uvicorn server around the application, from the socket to the last answer.

Owns the process's life: the socket is bound before anything is opened (a busy port touches no data) and answers from
then on, while the store starts with no more than that the process lives; ``listening on`` is printed when the store is
ready. SIGTERM and SIGINT let requests in flight finish, long polls answer with what there is, and the broker seals what
it holds before the process ends with 0.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI

from ingest_api.allowed_hosts import is_loopback
from ingest_api.app import create_app
from ingest_api.protocol import ConnectionLimits, http_protocol
from logstore.errors import LogStoreError
from logstore.filesystem import local_filesystem
from logstore.observability import configure_logging
from logstore.open_files import connections_within, open_files_limit, open_files_shortage
from logstore.settings import Settings

log = structlog.stdlib.get_logger(__name__)

# After this, requests in flight are cut: their outcome is unknown to the client, as after any lost connection.
GRACEFUL_SHUTDOWN_SECONDS = 10
_BACKLOG = 2048
_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code of the process.

    1 with one line on stderr if the port is taken or the data directory cannot be used.
    """
    configure_logging(settings.log_level, settings.log_format)
    if settings.log_level != "debug":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        listener = _bind(settings.host, settings.port)
    except OSError as error:
        reason = error.strerror or str(error)
        return _fail(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another port (make run PORT=8083, or "
            "logstore serve --port 8083; 0 takes a free one)"
        )
    try:
        with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings, listener))
    except LogStoreError as error:
        return _fail(f"cannot start: {error.message}")
    except OSError as error:
        return _fail(f"cannot use {settings.data}: {error.strerror or error}")
    return 0


def _fail(line: str) -> int:
    sys.stderr.write(f"{line}\n")
    return 1


async def _run(settings: Settings, listener: socket.socket) -> None:
    app = create_app(settings)
    files = open_files_limit()
    if (shortage := open_files_shortage(files, settings.max_connections)) is not None:
        log.warning("server.few_open_files", reason=shortage)
    if not is_loopback(settings.host):
        log.warning(
            "server.open_to_others",
            reason=f"whoever reaches {settings.host} may read, write and delete everything: there is no authentication",
        )
    config = uvicorn.Config(
        app,
        http=http_protocol(
            ConnectionLimits.of(settings, max_connections=connections_within(settings.max_connections, files)),
            app.short_requests,
        ),
        ws="none",
        # The lifespan is entered below: its errors are ours to report, and it ends after the last answer.
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
    )
    server = _Server(config, app, settings, listener)
    with _signals(server):
        serving = asyncio.create_task(server.serve([listener]))
        # The start makes what stays: the collector need not look at it while it grows, nor under every request.
        gc.disable()
        try:
            async with app.router.lifespan_context(app):
                gc.collect()
                gc.freeze()
                gc.enable()
                server.announce()
                await serving
        finally:  # the store could not start
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """uvicorn's server, which also tells the world when it is ready and the application when it begins to stop."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, settings: Settings, listener: socket.socket) -> None:
        super().__init__(config)
        self._app = app
        self._url = _url(settings.host, listener.getsockname()[1])
        self._endpoint = settings.data / "brokers" / str(settings.broker_id) / "endpoint.json"
        self._announced = False

    def announce(self) -> None:
        """The store is ready; nobody is told of one that was told to stop while it started."""
        if self.should_exit:
            return
        self._announced = True
        _write_endpoint(self._endpoint, self._url)
        log.info("server.listening", url=self._url)
        sys.stdout.write(f"listening on {self._url}\n")
        sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announced:
            self._endpoint.unlink(missing_ok=True)
        if self._app.state.api is not None:
            self._app.state.api.stopping.set()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise the signal again at the end, and the process would die of it instead of exiting with 0.
        yield


@contextlib.contextmanager
def _signals(server: uvicorn.Server) -> Iterator[None]:
    """Stop the server on SIGTERM or SIGINT, from the moment that recovery begins."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # The second time: do not wait for requests in flight either.
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in _HANDLED_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _HANDLED_SIGNALS:
            loop.remove_signal_handler(number)


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Now, not when the server starts: else a second server could bind the port as well and fail only later.
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _write_endpoint(path: Path, url: str) -> None:
    """Where local tools find the server of a data directory."""
    local_filesystem().write_atomically(path, json.dumps({"url": url, "pid": os.getpid()}).encode())
