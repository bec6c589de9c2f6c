"""Times in a table's log come from the clock that the store was given, and commits wait by that clock."""

import json

import pytest

from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitConflictError
from logstore.filesystem import FileSystem
from logstore.limits import COMMIT_ATTEMPTS_MAX
from logstore.table_files import LOG_DIRECTORY
from logstore.table_root import TableRoot
from tests.support.manual_clock import ManualClock


class _Waits(ManualClock):
    """A clock whose sleepers wake at once, at the later time."""

    def sleep(self, seconds: float) -> None:
        self.advance(1000 * seconds)


@pytest.fixture
def clock():
    return _Waits()


@pytest.fixture
def table(tmp_path, clock):
    root = TableRoot(tmp_path, FileSystem(), clock=clock)
    root.prepare()
    return TopicTable.create(root, "t", num_partitions=1, config_overrides={})


def test_commits_have_the_time_of_the_clock(table, clock):
    created_ms = clock.now_ms()
    clock.advance(5_000)
    version = table.alter_config({"retention.ms": "1000"})
    entries = [table.files.read(entry.name).splitlines() for entry in table.files.list(LOG_DIRECTORY)]
    times = [json.loads(entry[0])["commitInfo"]["timestamp"] for entry in entries]
    assert (version, times) == (1, [created_ms, created_ms + 5_000])
    (metadata,) = (action["metaData"] for line in entries[0] if "metaData" in (action := json.loads(line)))
    assert metadata["createdTime"] == created_ms


def test_a_commit_that_loses_waits_by_the_clock(table, clock, monkeypatch):
    files = table.files
    put_if_absent, began_s = files.put_if_absent, clock.monotonic()

    def lose(name: str, _: bytes) -> bool:
        put_if_absent(name, b'{"commitInfo":{"timestamp":1,"operation":"WRITE","operationParameters":{}}}')
        return False

    monkeypatch.setattr(files, "put_if_absent", lose)
    with pytest.raises(CommitConflictError):
        table.alter_config({"retention.ms": "1000"})
    assert 0 < clock.monotonic() - began_s < 0.13 * COMMIT_ATTEMPTS_MAX


def test_a_directory_that_changed_a_moment_ago_has_no_mark(table, clock):
    clock.wall_ms = table.files.now_ms()
    assert table.log_mark() is None
    clock.advance(3_000)
    assert table.log_mark() is not None
