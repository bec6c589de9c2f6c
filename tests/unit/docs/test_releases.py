"""The changelog's newest release is the version of the program, and each release has a date and a tag."""

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
