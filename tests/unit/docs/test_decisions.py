"""Each decision has a number, a date and a status, and the index has all of them."""

import re

from tests.support.server_process import ROOT

DIRECTORY = ROOT / "docs" / "decisions"
RECORDS = sorted(DIRECTORY.glob("[0-9]*.md"))
_HEAD = re.compile(
    r"# (?P<number>\d+)\. (?P<title>.+)\n\n"
    r"\*\*Date\.\*\* (?P<date>\d{4}-\d\d-\d\d) \*\*Status\.\*\* (?P<status>.+)\.\n"
)


def test_every_decision_is_in_the_index_with_its_title_date_and_status():
    rows = []
    for record in RECORDS:
        number = int(record.name[:4])
        head = _HEAD.match(record.read_text("utf-8"))
        assert head, f"{record.name}: begins with '# N. Title', then '**Date.** yyyy-mm-dd **Status.** ...'"
        assert int(head["number"]) == number, record.name
        rows.append(f"| {number} | [{head['title']}]({record.name}) | {head['date']} | {head['status']} |")
    assert len(rows) == len({record.name[:4] for record in RECORDS}), "a number is one record's"
    index = (DIRECTORY / "README.md").read_text("utf-8")
    assert re.findall(r"^\| \d.*$", index, re.MULTILINE) == rows


def test_a_status_is_one_of_those_that_the_index_explains():
    link = r"\[\d+\]\(\d{4}-[a-z0-9-]+\.md\)"
    status = re.compile(rf"accepted(, amended by {link}(( and|,) {link})*)?|superseded by {link}")
    for record in RECORDS:
        head = _HEAD.match(record.read_text("utf-8"))
        assert head
        assert status.fullmatch(head["status"]), record.name
