"""Parts of uvicorn that we rely on, most of them not promised: these tests fail by name when a version changes one.

Then read ``ingest_api/protocol.py`` and ``server.py`` against the new version, and raise the bound in pyproject.toml.
"""

import ast
import asyncio
import inspect
import tomllib
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ingest_api import protocol

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
#: Attributes of a connection, and the methods that our protocol passes calls on to.
ATTRIBUTES = {
    *("client", "connections", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scope", "server_state"),
    *("transport", "url", "expect_100_continue", "_start_asgi_task"),
}
METHODS = {
    "__init__": ("config", "server_state", "app_state", "_loop"),
    "connection_made": ("transport",),
    "connection_lost": ("exc",),
    "pause_writing": (),
    "resume_writing": (),
    "on_message_begin": (),
    "on_headers_complete": (),
    "on_body": ("body",),
    "on_message_complete": (),
}
#: Methods that uvicorn or its parser calls, and that our protocol answers without uvicorn.
REPLACED = {
    "data_received": ("data",),
    "eof_received": (),
    "on_header": ("name", "value"),
    "on_response_complete": (),
}


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.written = []
        self.closing = False

    def write(self, data):
        self.written.append(bytes(data))

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


def connection(transport: Transport, kind: type[HttpToolsProtocol] = HttpToolsProtocol) -> HttpToolsProtocol:
    config = uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_config=None)
    config.load()
    made = kind(config=config, server_state=ServerState(), app_state={})
    made.connection_made(transport)
    return made


def test_uvicorn_is_of_the_range_that_was_tested():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (uvicorns,) = [found for found in map(Requirement, extras["server"]) if found.name == "uvicorn"]
    assert uvicorn.__version__ in uvicorns.specifier
    assert any(bound.operator == "<" for bound in uvicorns.specifier), "an upper bound"


def test_these_lists_are_what_the_protocol_uses():
    tree = ast.parse(Path(protocol.__file__).read_text())
    (ours,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "HttpProtocol"]
    own = {node.name for node in ours.body if isinstance(node, ast.FunctionDef)} - set(METHODS)
    own |= {node.target.id for node in ours.body if isinstance(node, ast.AnnAssign)}
    own |= {target.id for node in ours.body if isinstance(node, ast.Assign) for target in node.targets}
    used, continued = set(), set()
    for node in ast.walk(ours):
        if not isinstance(node, ast.Attribute):
            continue
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super":
            continued.add(node.attr)
        elif isinstance(node.value, ast.Name) and node.value.id == "self":
            own |= {node.attr} if isinstance(node.ctx, ast.Store) and node.attr not in ATTRIBUTES else set()
            used.add(node.attr)
    assert used - own == ATTRIBUTES
    assert continued == set(METHODS)


@pytest.mark.parametrize(("name", "parameters"), (METHODS | REPLACED).items())
def test_uvicorns_connection_has_the_method(name, parameters):
    found = inspect.signature(getattr(HttpToolsProtocol, name)).parameters
    assert tuple(found)[1:] == parameters


def test_uvicorns_connection_has_no_callback_that_ours_does_not_know():
    callbacks = {name for name in vars(HttpToolsProtocol) if name.startswith("on_") or name.endswith("_received")}
    known = {name for name in (*METHODS, *REPLACED) if name.startswith("on_") or name.endswith("_received")}
    assert callbacks == known | {"on_url"}


async def test_uvicorns_connection_has_the_attributes_that_ours_uses():
    found = connection(Transport())
    found.on_message_begin()
    assert {name for name in ATTRIBUTES if not hasattr(found, name)} == set()
    assert (found.url, found.headers, found.cycle, list(found.pipeline)) == (b"", [], None, [])
    assert found.scope["headers"] is found.headers, "filled later"
    found.on_header(b"Expect", b"100-Continue")
    assert (found.headers, found.expect_100_continue) == ([(b"expect", b"100-Continue")], True)
    assert found in found.connections
    assert tuple(inspect.signature(found._start_asgi_task).parameters) == ("cycle", "app")
    assert {
        name for name in ("write_paused", "pause_reading", "resume_reading") if not hasattr(found.flow, name)
    } == set()
    assert isinstance(found.server_state.default_headers, list)
    assert found.server_state.total_requests == 0


async def test_uvicorns_cycle_is_begun_and_queued_as_ours_expects():
    """Check what our protocol does with cycles: it takes them out of the pipeline, marks them, and writes in place of
    their transport.
    """
    transport = Transport()
    found = connection(transport)
    found.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    ((second, waiting_app),) = found.pipeline
    assert second is found.cycle
    assert waiting_app is found.app
    assert isinstance(second, RequestResponseCycle)
    attributes = ("transport", "disconnected", "message_event", "keep_alive", "response_started", "response_complete")
    assert {name for name in attributes if not hasattr(second, name)} == set()
    await asyncio.gather(*found.tasks)
    await asyncio.gather(*found.tasks)
    assert found.server_state.total_requests == 2


async def test_uvicorns_cycle_writes_a_head_in_one_piece_and_then_the_body():
    transport = Transport()
    found = connection(transport)
    found.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.gather(*found.tasks)
    assert transport.written == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"ok"]
    assert found.cycle.response_complete


async def test_uvicorns_cycle_asks_no_more_of_a_transport_than_what_stands_in_its_place():
    source = inspect.getsource(RequestResponseCycle)
    asked = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "transport"
    }
    assert asked <= {"write", "close", "is_closing"}
    assert {"write", "close", "is_closing"} <= set(dir(protocol._ResponseWriter))


async def test_uvicorn_asks_no_more_of_a_cycle_than_what_stands_in_its_place():
    asked = {
        node.attr
        for name in ("connection_lost", "on_headers_complete", "shutdown")
        for node in ast.walk(ast.parse(inspect.getsource(getattr(HttpToolsProtocol, name)).strip()))
        if isinstance(node, ast.Attribute)
        and (getattr(node.value, "attr", "") == "cycle" or getattr(node.value, "id", "") == "existing_cycle")
    }
    assert asked <= set(dir(protocol._ShortCycle))


def test_uvicorns_status_lines_are_bytes_by_status():
    for status in (200, 202, 400, 403, 408, 421, 429, 431, 503, 504):
        assert STATUS_LINE[status].startswith(b"HTTP/1.1 %d " % status)
        assert STATUS_LINE[status].endswith(b"\r\n")


def test_uvicorns_server_has_what_ours_uses():
    assert tuple(inspect.signature(uvicorn.Server.serve).parameters) == ("self", "sockets")
    assert tuple(inspect.signature(uvicorn.Server.shutdown).parameters) == ("self", "sockets")
    assert tuple(inspect.signature(uvicorn.Server.capture_signals).parameters) == ("self",)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    assert (server.should_exit, server.force_exit) == (False, False)
    options = ("ws", "lifespan", "log_config", "access_log", "server_header", "proxy_headers", "backlog")
    options += ("timeout_graceful_shutdown", "http")
    assert set(options) <= set(inspect.signature(uvicorn.Config).parameters)
