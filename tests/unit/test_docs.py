"""The docs say what the code does."""

import re
from pathlib import Path

from conf import configuration_page

REPOSITORY = Path(__file__).parents[2]


def test_the_configuration_page_is_the_one_made_from_the_code():
    page = (REPOSITORY / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == configuration_page.render(), "run `make docs`"


def test_a_setting_of_a_few_words_names_them():
    page = configuration_page.render()
    (line,) = [line for line in page.splitlines() if line.startswith("| `log.level` |")]
    assert line.endswith(" One of `debug`, `info`, `warning`, `error`. |")


def test_every_test_that_the_page_of_fault_tests_names_exists():
    """Check the forms ``file::test``, ``…::test`` in the same file, ``…end_of_a_name`` there, and files alone."""
    page = (REPOSITORY / "docs/fault-tests.md").read_text(encoding="utf-8")
    source, tests = "", 0
    for name in re.findall(r"`([^` ]+)`", page):
        file, _, test = name.rpartition("::")
        if test.endswith(".py"):
            file, test = test, ""
        if file.endswith(".py"):
            found = sorted(REPOSITORY.glob(f"tests/**/{file.removeprefix('tests/')}"))
            assert found, f"no such file: {name}"
            source = found[0].read_text(encoding="utf-8")
        if test.startswith(("test_", "…_")):
            tests += 1
            assert re.search(test.replace("…", r"def test\w*") + r"\(", source), f"no such test: {name}"
    assert tests > 30
