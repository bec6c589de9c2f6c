"""The docs say what the code does."""

from pathlib import Path

from logstore import configuration_page

REPOSITORY = Path(__file__).parents[2]


def test_the_configuration_page_is_the_one_made_from_the_code():
    page = (REPOSITORY / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == configuration_page.render(), "run `make docs`"
