"""Commands that pages, messages and help texts recommend exist, with their options."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from logstore.cli.app import app
from tests.support.server_process import ROOT

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
_CODE = re.compile(r"`(logstore [^`\n]+)`|^(?:\$ +| *)(logstore [^\n]+)$|\| (logstore [^\n`]+)$", re.MULTILINE)


def commands(page: Path) -> Iterator[str]:
    for match in _CODE.finditer(page.read_text("utf-8")):
        yield next(filter(None, match.groups())).split(" #")[0].split(" | ")[0].rstrip(" &\\")


def problem(line: str, root: Any) -> str | None:
    """Return the mistake in the command or its options; None if it is right, or only named in passing."""
    words = shlex.split(re.sub(r"[\[\]|]|\.\.\.", " ", line).replace("'", ""))[1:]
    context = root.make_context("logstore", ["topic"], resilient_parsing=True)
    command = root
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return f"no command {name}"
        command = found
    options = {option for found in (root, command) for parameter in found.params for option in parameter.opts}
    options |= {option for parameter in command.params for option in parameter.secondary_opts} | {"--help"}
    unknown = [word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word.split("=")[0]) and word not in options]
    return f"no option {', '.join(unknown)}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_there(page: Path):
    root = typer.main.get_command(app)
    lines = [line for line in commands(page) if not line.startswith("logstore COMMAND")]
    found = {line: problem(line, root) for line in lines}
    assert not {line: wrong for line, wrong in found.items() if wrong}


def texts(source: str) -> Iterator[str]:
    """Yield the texts of a module except its docstrings, each as a whole; `X` is what a message fills in."""
    tree = ast.parse(source)
    with_docs = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    passed_over = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, with_docs) and _has_doc(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            passed_over.update(map(id, node.values))
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed_over:
            yield node.value


def _has_doc(node: Any) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)


def commands_in(text: str) -> Iterator[str]:
    """Yield the commands in a message or help text, up to where the sentence continues."""
    for match in re.finditer(r"\blogstore (?!where )[a-z-][^\n`;|()\[\]\\,]*", text):
        words = re.split(r"[.:] | {3,}|\.$|: ?$", match[0])[0].split(" ")
        # The sentence may continue after the command and its options.
        yield " ".join(word for at, word in enumerate(words) if at < 4 or word.startswith("--"))


PACKAGES = ("logstore", "ingest_api", "consumer_offsets", "compaction_jobs", "airflow_dags")


def test_every_command_of_a_message_is_there():
    root = typer.main.get_command(app)
    found: dict[str, str] = {}
    count = 0
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for command in (command for text in texts(path.read_text("utf-8")) for command in commands_in(text)):
            count += 1
            if (wrong := problem(command.replace("'", "").replace('"', ""), root)) is not None:
                found[f"{path.relative_to(ROOT)}: {command}"] = wrong
    assert not found
    assert count > 80


def test_a_message_with_a_command_that_is_not_there_is_found():
    root = typer.main.get_command(app)
    source = (
        'def f(name):\n    """logstore nothing"""\n    fail(f"it is torn: logstore topic mend {name} --hard, then")\n'
    )
    (command,) = (command for text in texts(source) for command in commands_in(text))
    assert problem(command, root) == "no command mend"
    (command,) = commands_in("give them up: logstore topic delete-records t --partition 0 --before 7")
    assert problem(command, root) == "no option --before"


def test_a_command_that_is_not_there_is_found():
    root = typer.main.get_command(app)
    assert problem("logstore topic create t --config a=b", root) is None
    assert problem("logstore topic make t", root) == "no command make"
    assert problem("logstore topic create t --parts 4", root) == "no option --parts"
