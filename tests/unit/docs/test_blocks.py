"""Every code block of a page has a language and correct syntax, and runs in a test or says why it does not."""

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.pages import PAGES, PLANS, READ, RUN, Block, blocks, commands
from tests.support.server_process import ROOT

ALL = [block for page in PAGES for block in blocks(page)]
CODE = [block for block in ALL if block.language]


def ids(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", CODE, ids=ids)
def test_a_block_is_right_in_its_language(block: Block):
    match block.language:
        case "python":
            # A part of a program may use await at its top level.
            compile(block.code, ids(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "json":
            json.loads(block.code)
        case "toml":
            tomllib.loads(block.code)
        case "yaml":
            list(yaml.safe_load_all(block.code))
        case "console":
            assert commands(block.code).strip(), "no line begins with '$ '"
        case _:
            assert block.language in RUN | READ, f"{block.language} is not checked by any test"


def test_every_page_with_blocks_has_a_plan_and_every_reason_has_its_block():
    pages = {block.page for block in CODE if block.language in RUN}
    assert pages <= PLANS.keys()
    for name, plan in PLANS.items():
        found = [block for block in ALL if block.page == name]
        for start, reason in plan.left_out.items():
            assert [block for block in found if block.code.startswith(start)], f"{name} has no block {start!r}"
            assert len(reason.split()) > 3, f"{name}: {start!r} is left out for no reason"
        for text in plan.instead:
            assert any(text in block.code for block in found), f"{name} has no {text!r}"


def test_the_tests_that_run_a_block_elsewhere_are_there():
    for name, plan in PLANS.items():
        for reason in plan.left_out.values():
            for path in re.findall(r"\btests/[\w/.]+\w", reason):
                assert (ROOT / path).exists(), f"{name}: no {path}"


def test_targets_of_make_in_blocks_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for block in CODE:
        for target in re.findall(r"^(?:\$ )?make ([a-z-]+)", block.code, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{ids(block)}: make {target}"


def test_commands_of_a_console_have_the_lines_that_continue_them():
    text = "$ one \\\n    two\nprinted\n$ three '\nfour'\n$ five\nsix\n"
    assert commands(text) == "one \\\n    two\nthree '\nfour'\nfive\n"


def test_a_block_that_is_wrong_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```python\nprint(\n```\n\n- item\n\n  ```json\n  {'a': 1}\n  ```\n")
    wrong, also = blocks(page)
    assert (wrong.line, also.line, also.code) == (3, 9, "{'a': 1}\n")
    for block in (wrong, also):
        with pytest.raises(ValueError if block.language == "json" else SyntaxError):
            test_a_block_is_right_in_its_language(block)
