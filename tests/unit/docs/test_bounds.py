"""The limits that pages name are those of the code."""

import pytest

from logstore.limits import HEADERS_PER_RECORD_MAX, TIMESTAMP_MS_MAX
from tests.support.server_process import ROOT


@pytest.mark.parametrize("page", ["http-api", "kafka", "python-client", "pyspark", "cli"])
def test_the_bound_of_headers_is_where_users_look(page: str) -> None:
    assert f"{HEADERS_PER_RECORD_MAX:,} headers" in (ROOT / "docs" / f"{page}.md").read_text()


@pytest.mark.parametrize("page", ["http-api", "kafka"])
def test_the_times_of_records_are_those_that_are_taken(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert f"to {TIMESTAMP_MS_MAX}, the end of the year 9999" in text
    assert "years 1 to 9999" not in text
