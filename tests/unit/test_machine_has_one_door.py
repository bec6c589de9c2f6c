"""The server uses the machine's time, chance, files, threads and sockets only in the modules named here.

A simulation that replaces these has replaced the machine.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = ("logstore", "ingest_api", "consumer_offsets")
#: These programs run beside the server.
NOT_SERVER = (
    "logstore/client/",
    "logstore/cli/",
    "logstore/command_line/",
    "logstore/spark/",
    "logstore/cluster_processes/",
)

MEASURES = "perf_counter: how long a request took, for metrics and the log"
HOST_NAME = "the name of the machine, which is the same on every run"
BEFORE = "runs before the store starts"
#: The modules that may use the machine, for each kind and with the reason.
DOORS: dict[str, dict[str, str]] = {
    "time": {
        "logstore/clock.py": "the door: a Clock is given to running_store",
        "logstore/kafka_listener/connection.py": MEASURES,
        "logstore/cluster/zookeeper_server.py": "a ZooKeeper process for trying a cluster",
        "ingest_api/request_log.py": MEASURES,
        "ingest_api/short_requests.py": MEASURES,
    },
    "chance": {"logstore/entropy.py": "the door: a block puts a source with a seed in its place"},
    "files": {
        "logstore/filesystem.py": "the door: a FileSystem is given to running_store",
        "logstore/settings.py": f"the location of the data as a URI for jobs; {BEFORE}",
        "logstore/settings_sources.py": f"the file with the settings; {BEFORE}",
        "logstore/endpoint_file.py": "tools read where a process listens",
        "logstore/node.py": "announces the process, for tools, and explains why a process could not start",
        "logstore/threads.py": "priorities of threads, which are no files",
        "logstore/tls/contexts.py": "when the files of TLS have changed, of which no simulation has any",
        "logstore/tls/pem_files.py": "the files of TLS, of which no simulation has any",
        "logstore/listening_sockets.py": f"sockets that systemd hands over are descriptors; {BEFORE}",
        "logstore/kafka_protocol/definitions.py": "a file of the package: the messages",
        "logstore/native_library.py": "files of the package: the sources of the libraries",
        "ingest_api/routers/description.py": "a file of the package: the page of the interface",
        "logstore/cluster/zookeeper_server.py": "a ZooKeeper process for trying a cluster",
        "logstore/background_jobs.py": "jobs are a process, which is killed",
    },
    "threads": {
        "logstore/threads.py": "the door: a block puts workers of its own in its place",
        "logstore/disk_thread.py": "made by logstore.threads",
        "logstore/background_jobs.py": "jobs are a process",
        "logstore/cluster/zookeeper_server.py": "a ZooKeeper process for trying a cluster",
    },
    "sockets": {
        "logstore/listening_sockets.py": "the door: makes the sockets that listeners are given",
        "logstore/node.py": "gives the listeners their sockets",
        "ingest_api/http_listener.py": "answers HTTP on a socket that it is given",
        "logstore/kafka_listener/listener.py": "answers Kafka's protocol on a socket that it is given",
        "logstore/tls_server.py": "accepts connections on a socket that it is given",
        "logstore/tls/contexts.py": "makes TLS contexts, for connections that others accept",
        "logstore/tls/options.py": "names the versions of TLS",
        "logstore/replication/peer_network.py": "connects brokers to each other",
        "logstore/replication/peer_listener.py": "looks up the address that it listens on",
        "logstore/cluster/kazoo_client.py": "kazoo connects to ZooKeeper",
        "logstore/cluster/zookeeper.py": "knows kazoo's errors and types",
        "logstore/cluster/zookeeper_server.py": "a ZooKeeper process for trying a cluster",
        "logstore/settings.py": HOST_NAME,
        "logstore/lock_file.py": HOST_NAME,
        "logstore/cluster/log_directory_record.py": HOST_NAME,
        "logstore/cluster/zookeeper_cluster_state.py": HOST_NAME,
        "ingest_api/allowed_hosts.py": HOST_NAME,
    },
}

MODULES = {
    "time": {"time"},
    "chance": {"random", "secrets"},
    "files": {"shutil", "tempfile", "glob", "fcntl", "mmap", "pyarrow.fs"},
    "threads": {"multiprocessing", "subprocess", "_thread", "sched"},
    "sockets": {"socket", "ssl", "select", "selectors", "http.client", "urllib.request", "kazoo", "httpx"},
}
#: These names mean this kind wherever they come from.
NAMES = {
    "time": {"utcnow", "today"},
    "chance": {"uuid1", "uuid4", "urandom"},
    "files": {"OSFile", "memory_map", "LocalFileSystem", "input_stream", "output_stream"},
    "threads": {
        "Thread",
        "Timer",
        "ThreadPoolExecutor",
        "ProcessPoolExecutor",
        "create_subprocess_exec",
        "create_subprocess_shell",
        "run_coroutine_threadsafe",
    },
    "sockets": {"create_server", "create_connection", "open_connection", "start_server", "create_unix_server"},
}
#: These names of ``os`` are no files, and are the same on every run. Chance and processes are found by name.
OF_OS = {"environ", "fspath", "PathLike", "cpu_count", "getpid", "stat_result", "strerror"}
#: Methods of a ``Path`` that look at the disk, with any arguments.
OF_PATHS = {
    "chmod",
    "glob",
    "hardlink_to",
    "is_dir",
    "is_file",
    "is_symlink",
    "iterdir",
    "lstat",
    "mkdir",
    "read_bytes",
    "read_text",
    "resolve",
    "rglob",
    "rmdir",
    "samefile",
    "symlink_to",
    "write_bytes",
    "write_text",
}
#: Methods that have this number of arguments in ``Path``, and one more in ``FileSystem``.
WITH_ARGUMENTS = {"exists": 0, "stat": 0, "unlink": 0, "rename": 1}


def kinds(source: str) -> Iterator[tuple[str, str]]:
    """Yield each use of the machine in a module: (kind, line and name)."""
    for node in ast.walk(ast.parse(source)):
        for name in _imported(node):
            for kind, modules in MODULES.items():
                if any(name == one or name.startswith(f"{one}.") for one in modules):
                    yield kind, f"{node.lineno}: import {name}"
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                yield from ((kind, f"{node.lineno}: {name}") for kind, names in NAMES.items() if name in names)
        match node:
            case ast.Attribute(value=ast.Name(id="datetime" | "dt"), attr="now"):
                yield "time", f"{node.lineno}: now"
            case ast.Attribute(value=ast.Attribute(attr="datetime"), attr="now"):
                yield "time", f"{node.lineno}: now"
            case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="random"):
                yield "chance", f"{node.lineno}: numpy.random"
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name not in OF_OS | NAMES["chance"]:
                yield "files", f"{node.lineno}: os.{name}"
            case ast.ImportFrom(module="os", names=names) if {one.name for one in names} - OF_OS:
                yield "files", f"{node.lineno}: from os"
            case ast.Call(func=ast.Name(id="open")):
                yield "files", f"{node.lineno}: open()"
            case ast.Call(func=ast.Attribute(value=receiver, attr=name), args=args):
                if name in OF_PATHS or (WITH_ARGUMENTS.get(name) == len(args) and not _of_table(receiver)):
                    yield "files", f"{node.lineno}: .{name}()"


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [one.name for one in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [module, *(f"{module}.{one.name}" for one in names)]
    return []


def _of_table(receiver: ast.expr) -> bool:
    """Return whether the receiver is ``TableFiles``, as in ``files.exists()`` and ``root.open(name).exists()``."""
    match receiver:
        case ast.Name(id="files") | ast.Call(func=ast.Attribute(attr="open")):
            return True
    return False


@cache
def found() -> dict[str, list[tuple[str, str]]]:
    return {
        name: list(kinds(path.read_text()))
        for package in SERVER
        for path in sorted((ROOT / package).rglob("*.py"))
        if not (name := path.relative_to(ROOT).as_posix()).startswith(NOT_SERVER)
    }


@pytest.mark.parametrize("kind", DOORS)
def test_only_the_modules_named_here_take_it_from_the_machine(kind: str) -> None:
    assert len(found()) > 300
    others = {
        name: places
        for name, all_kinds in found().items()
        if name not in DOORS[kind] and (places := [place for one, place in all_kinds if one == kind])
    }
    assert not others


@pytest.mark.parametrize("kind", DOORS)
def test_no_module_is_named_without_need(kind: str) -> None:
    assert [name for name in DOORS[kind] if not any(one == kind for one, _ in found()[name])] == []


def test_measures_take_only_measures() -> None:
    for name in (name for name, why in DOORS["time"].items() if why is MEASURES):
        tree = ast.parse((ROOT / name).read_text())
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time"
        }
        assert used == {"perf_counter"}, name


def test_modules_that_name_the_machine_open_no_socket() -> None:
    for name in (name for name, why in DOORS["sockets"].items() if why is HOST_NAME):
        tree = ast.parse((ROOT / name).read_text())
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "socket"
        }
        assert used == {"gethostname"}, name


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import time", "time"),
        ("from time import monotonic", "time"),
        ("datetime.now()", "time"),
        ("dt.datetime.now(dt.UTC)", "time"),
        ("date.today()", "time"),
        ("import random", "chance"),
        ("from secrets import token_bytes", "chance"),
        ("uuid.uuid4()", "chance"),
        ("from uuid import uuid4", "chance"),
        ("os.urandom(8)", "chance"),
        ("np.random.default_rng()", "chance"),
        ("open('x')", "files"),
        ("os.stat('x')", "files"),
        ("from os import listdir", "files"),
        ("path.read_bytes()", "files"),
        ("path.exists()", "files"),
        ("path.unlink(missing_ok=True)", "files"),
        ("path.rename(other)", "files"),
        ("import shutil", "files"),
        ("from pyarrow import fs", "files"),
        ("threading.Thread(target=f)", "threads"),
        ("from concurrent.futures import ThreadPoolExecutor", "threads"),
        ("asyncio.create_subprocess_exec('x')", "threads"),
        ("import socket", "sockets"),
        ("loop.create_server(make, sock=s)", "sockets"),
        ("from kazoo.client import KazooClient", "sockets"),
    ],
)
def test_it_is_found(source: str, kind: str) -> None:
    assert {one for one, _ in kinds(source)} == {kind}


@pytest.mark.parametrize(
    "source",
    [
        "filesystem.exists(path)",
        "filesystem.stat(path)",
        "filesystem.unlink(path)",
        "filesystem.rename(path, other)",
        "files.exists()",
        "root.open(name).exists()",
        "loop.time()",
        "self._clock.monotonic()",
        "from uuid import UUID",
        "os.environ['x']",
        "threading.Lock()",
        "from concurrent.futures import Executor",
        "text.replace('a', 'b')",
    ],
)
def test_other_code_is_no_offence(source: str) -> None:
    assert not list(kinds(source))
