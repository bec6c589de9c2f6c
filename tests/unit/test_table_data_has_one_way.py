"""The import contract of that name in pyproject.toml cannot cover calls and names taken from ``os``; this test does."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACT = "Table data goes through logstore.table_files"
#: The tools of a stopped store that work on tables; the other tools work on journals.
_INSPECTION = ("feature_removal", "rebuild_plan", "table_check", "table_rebuild")
#: These use Spark's files, which belong to no table.
NO_TABLES = {f"logstore/spark/{name}.py" for name in ("jars", "session", "shipping", "spark_conf")}
#: These are no file calls, or calls on the descriptors of a process.
OF_OS = {"environ", "cpu_count", "fspath", "PathLike", "setpriority", "getpriority", "PRIO_PROCESS", "nice", "_exit"}
OF_OS |= {"dup", "dup2", "fdopen", "fstat"}
#: A task of Spark that needs nothing else of this package reads through pyarrow's storages.
THROUGH_PYARROW = {"logstore/spark/history_check.py"}
FILE_CALLS = {
    "glob",
    "hardlink_to",
    "is_dir",
    "is_file",
    "iterdir",
    "lstat",
    "mkdir",
    "open",
    "read_bytes",
    "read_text",
    "rglob",
    "rmdir",
    "rmtree",
    "stat",
    "symlink_to",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}
#: These ways of pyarrow to a file bypass ``TableFiles``.
OF_PYARROW = {"OSFile", "memory_map", "LocalFileSystem", "input_stream", "output_stream"}


def packages() -> list[str]:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (c for c in document["tool"]["importlinter"]["contracts"] if c["name"] == CONTRACT)
    return list(contract["source_modules"])


def modules() -> Iterator[Path]:
    for package in packages():
        place = ROOT / package.replace(".", "/")
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
            if path.relative_to(ROOT).as_posix() not in NO_TABLES and path.name != "__main__.py":
                yield path


def offences(source: str, *, pyarrow_storages: bool = False) -> list[str]:
    """Return the lines that reach a file without ``TableFiles``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                found.append(f"{node.lineno}: open()")
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name not in OF_OS:
                found.append(f"{node.lineno}: os.{name}")
            case ast.ImportFrom(module="os", names=names) if {n.name for n in names} - OF_OS:
                found.append(f"{node.lineno}: from os")
            case ast.Call(func=ast.Attribute(value=receiver, attr=name)) if name in FILE_CALLS and not _of_tables(
                receiver, name
            ):
                found.append(f"{node.lineno}: .{name}()")
            case ast.Attribute(attr=name) if name in OF_PYARROW:
                found.append(f"{node.lineno}: {name} of pyarrow")
            case ast.Import(names=names) if not pyarrow_storages and any(n.name == "pyarrow.fs" for n in names):
                found.append(f"{node.lineno}: pyarrow.fs")
            case ast.Call(func=ast.Name(id="DeltaTable"), args=[first, *_]) if not _is_uri(first):
                found.append(f"{node.lineno}: a DeltaTable of something else than a uri")
            case _:
                pass
    return found


def _of_tables(receiver: ast.expr, name: str) -> bool:
    """Return whether this is no file call: ``TopicTable.open``, ``root.open``, ``self._committer.open``."""
    last = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return (name == "open" and last in {"TopicTable", "cls", "root", "self", "_committer", "open_root"}) or (
        name == "open" and isinstance(receiver, ast.Call) and getattr(receiver.func, "id", "") == "open_root"
    )


def _is_uri(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Attribute) and argument.attr == "uri"


def test_the_packages_are_those_that_work_on_tables() -> None:
    inspection = [f"logstore.inspection.{name}" for name in _INSPECTION]
    rooms = ["logstore.delta", "logstore.segments", "logstore.log", *inspection, "logstore.spark", "compaction_jobs"]
    assert packages() == rooms
    assert len(list(modules())) > 40


def test_no_module_reaches_a_file_by_itself() -> None:
    for path in modules():
        name = path.relative_to(ROOT).as_posix()
        assert not offences(path.read_text(), pyarrow_storages=name in THROUGH_PYARROW), name


@pytest.mark.parametrize(
    "source",
    [
        "open('x')",
        "import os; os.stat('x')",
        "from os import listdir",
        "path.read_bytes()",
        "table.path.open('rb')",
        "pa.OSFile('x')",
        "import pyarrow.fs",
        "DeltaTable(str(path))",
    ],
)
def test_a_file_call_is_found(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize(
    "source",
    ["os.environ['x']", "TopicTable.open(files)", "open_root(x).open('t')", "files.read('x')", "DeltaTable(f.uri)"],
)
def test_other_calls_are_no_offence(source: str) -> None:
    assert not offences(source)
