"""Commands that the pages tell people to type are there, with their options."""

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
    """The mistake in the command or its options; None for a right command, or one that is only named in passing."""
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


def test_a_command_that_is_not_there_is_found():
    root = typer.main.get_command(app)
    assert problem("logstore topic create t --config a=b", root) is None
    assert problem("logstore topic make t", root) == "no command make"
    assert problem("logstore topic create t --parts 4", root) == "no option --parts"
