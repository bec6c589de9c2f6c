"""kazoo's client, adapted to a broker's needs: only this module wraps its private methods.

kazoo is pinned, and tests check what this module relies on.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

#: The pauses between two attempts to connect. With kazoo's own pauses, which double, a session can be lost although
#: ZooKeeper is back.
_RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.2, "max_jitter": 0.2}
#: Attempts to connect that fit into a session timeout. With more servers than that kazoo itself waits less.
_TRIES: Final = 3

# Without a server kazoo warns five times a second.
_log = logging.getLogger("logstore.kazoo")
_log.setLevel(logging.ERROR)

#: Makes a client of the servers, and asks for a session timeout in seconds. The client calls the first function with
#: the timeout that ZooKeeper grants, in seconds, and the second one when its thread has ended by itself; both in its
#: own thread.
MakeClient = Callable[[str, float, Callable[[float], None], Callable[[], None]], Any]


def kazoo_client(
    servers: str, session_timeout_s: float, granted: Callable[[float], None], ended: Callable[[], None]
) -> KazooClient:
    """Make a client that is not started; see ``MakeClient``."""
    client = KazooClient(
        hosts=servers, timeout=session_timeout_s, connection_retry=KazooRetry(**_RECONNECT), logger=_log
    )
    _note_granted_timeout(client, granted)
    _try_again_within(client, session_timeout_s / _TRIES)
    _report_end(client, ended)
    return client


def _note_granted_timeout(client: Any, granted: Callable[[float], None]) -> None:
    """Report the granted session timeout, which kazoo does not expose: its read timeout is two thirds of it."""
    connection = client._connection  # noqa: SLF001 - see the module
    connect = connection._connect  # noqa: SLF001

    def connect_and_note(*args: Any) -> Any:
        read_timeout_ms, connect_timeout_ms = connect(*args)
        granted(read_timeout_ms * 1.5 / 1000)
        return read_timeout_ms, connect_timeout_ms

    connection._connect = connect_and_note  # noqa: SLF001


def _try_again_within(client: Any, seconds: float) -> None:
    """Give up a connection that does not come, or whose handshake gets no response, after ``seconds``.

    kazoo waits a whole session timeout for a machine that has gone, or for a ZooKeeper that never answers a connection
    made during its start. The session ends in the meantime.
    """
    connection = client._connection  # noqa: SLF001 - see the module
    handler, invoke = client.handler, connection._invoke  # noqa: SLF001 - asks only within a handshake
    create_connection = handler.create_connection

    def create_soon(*args: Any, timeout: float, **kwargs: Any) -> Any:
        return create_connection(*args, timeout=min(timeout, seconds), **kwargs)

    def invoke_soon(timeout: float, *args: Any, **kwargs: Any) -> Any:
        return invoke(min(timeout, seconds), *args, **kwargs)

    handler.create_connection, connection._invoke = create_soon, invoke_soon  # noqa: SLF001


def _report_end(client: Any, ended: Callable[[], None]) -> None:
    """Call ``ended`` whenever kazoo's thread ends.

    A response that kazoo does not expect ends it, for example (python-zk/kazoo#641). A listener of its states cannot
    notice: kazoo calls it only if the state changes, and between two sessions the state is already "lost".
    """
    connection = client._connection  # noqa: SLF001 - see the module
    run = connection.zk_loop

    def run_and_tell() -> None:
        try:
            run()
        finally:
            ended()

    connection.zk_loop = run_and_tell
