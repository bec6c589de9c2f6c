"""The newest release is the version of the program. Each release has a date, a tag and entries of one line."""

import re

from logstore import __version__
from tests.support.server_process import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text("utf-8")
RELEASES = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", TEXT, re.MULTILINE)


def test_the_newest_release_is_the_one_that_the_program_says():
    assert RELEASES[0][0] == __version__
    assert re.search(r"^## \[Unreleased\]$", TEXT, re.MULTILINE)


def test_releases_are_in_order_and_have_a_tag():
    numbers = [tuple(map(int, version.split("."))) for version, _ in RELEASES]
    assert numbers == sorted(numbers, reverse=True)
    assert [date for _, date in RELEASES] == sorted((date for _, date in RELEASES), reverse=True)
    tags = re.findall(r"^\| `v([0-9.]+)` \| (\S+) \|", TEXT, re.MULTILINE)
    assert tags == RELEASES


def test_an_entry_of_a_release_is_one_line():
    newest = TEXT.index(f"## [{RELEASES[0][0]}]")
    for line in TEXT[newest : TEXT.index("## Tags")].splitlines():
        assert not line.startswith(" "), f"goes on in a second line: {line}"
        # Readers see the text of a link, not its target.
        assert len(re.sub(r"\]\([^)]*\)", "", line)) <= 180, line
