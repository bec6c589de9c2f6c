"""The identity of a log directory is durable, and belongs to one broker of one cluster."""

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from logstore.cluster import checked_file
from logstore.cluster.log_directory import (
    LogDirectory,
    OneNodeDirectory,
    accept_journal,
    give_up_journal,
    journal_check,
    read_directory,
)
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalDiffersError
from logstore.journal.identity import FoundJournal, JournalIdentity


def test_an_identity_is_kept_and_its_incarnation_rises(tmp_path: Path):
    path = tmp_path / "broker"
    assert LogDirectory.read(path, FileSystem()) is None
    new = LogDirectory.open(path, FileSystem(), "c", 1)
    first = new.begun(path, FileSystem(), 0)
    assert LogDirectory.open(path, FileSystem(), "c", 1) == first
    assert (first.directory_id, first.incarnation) == (new.directory_id, 1)
    assert first.begun(path, FileSystem(), 7).incarnation == 8
    assert LogDirectory.read(path, FileSystem()).incarnation == 8


def test_c19_another_brokers_or_clusters_directory_is_refused(tmp_path: Path):
    LogDirectory.open(tmp_path, FileSystem(), "c", 1).begun(tmp_path, FileSystem(), 0)
    with pytest.raises(DataDirectoryError, match=r"directory of broker 1, not of 2: set broker\.id to 1"):
        LogDirectory.open(tmp_path, FileSystem(), "c", 2)
    with pytest.raises(DataDirectoryError, match=r"of the cluster c, and ZooKeeper's is d: correct zookeeper\.connect"):
        LogDirectory.open(tmp_path, FileSystem(), "d", 1)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", checked_file.encode({"cluster_id": "c"})])
def test_a_damaged_identity_is_refused(tmp_path: Path, content):
    (tmp_path / "meta.json").write_bytes(content)
    with pytest.raises(DataDirectoryError, match=r"meta\.json is damaged: .*leaves its ISRs"):
        LogDirectory.open(tmp_path, FileSystem(), "c", 1)


# ---- the journal -----------------------------------------------------------------------------------------------------


#: The id of the file that was durable up to 700. A reader of JSON that takes all numbers for doubles would round it.
FILE_ID = 2**64 - 1


def found_journal(
    end: int, identity: JournalIdentity | None, *, later: bool = False, changed: bool = False
) -> FoundJournal:
    """Return a journal of two files: without its oldest one if ``later``, with another newest one if ``changed``."""
    files = () if identity is None else ((100, 1), (600, 2 if changed else FILE_ID))[1 if later else 0 :]
    return FoundJournal(Path("journal"), end, identity, is_empty=identity is None, files=files)


def begun(kind: str, path: Path) -> LogDirectory | OneNodeDirectory:
    """Return the identity of a directory whose journal was durable up to 700."""
    directory = (
        LogDirectory.open(path, FileSystem(), "c", 1)
        if kind == "cluster"
        else OneNodeDirectory.open(path, FileSystem())
    )
    directory.write(path, FileSystem())
    assert read_directory(path) == directory, "a start that ended before its first journal file"
    directory.record(path, FileSystem()).record(700, FILE_ID, 100)
    return replace(directory, durable_end=700, file_id=FILE_ID, begin=100)


@pytest.mark.parametrize("kind", ["cluster", "one node"])
def test_the_position_is_kept_and_the_journal_is_compared_with_it(tmp_path: Path, kind: str):
    directory = begun(kind, tmp_path)
    assert read_directory(tmp_path) == directory
    identity = directory.record(tmp_path, FileSystem()).identity
    assert identity.directory_id == directory.directory_id
    check = journal_check(tmp_path)
    check(found_journal(700, identity))
    check(found_journal(700, JournalIdentity(uuid4(), 1)))  # a repair or a start has recorded this file as it is
    for found, message in (
        (found_journal(699, identity), "it is an older copy"),
        (found_journal(0, None), "it has no files"),
        (found_journal(700, JournalIdentity(uuid4(), 1), changed=True), "it is that of the directory id"),
        (found_journal(900, identity, changed=True), "a time before the directory was restored"),
        (found_journal(900, identity, later=True), "it begins at position 600, .*its oldest files are missing"),
    ):
        with pytest.raises(JournalDiffersError, match=f"not the one that was here before: .*{message}"):
            check(found)


def test_a_tool_does_not_miss_files_that_a_running_broker_frees_meanwhile(tmp_path: Path):
    directory = begun("one node", tmp_path)
    record = directory.record(tmp_path, FileSystem())
    check = journal_check(tmp_path)
    record.record(900, 3, 600)
    check(found_journal(900, record.identity, later=True))


def test_the_next_start_of_a_broker_keeps_the_position(tmp_path: Path):
    directory = begun("cluster", tmp_path)
    directory.begun(tmp_path, FileSystem(), 0)
    assert read_directory(tmp_path) == replace(directory, incarnation=directory.incarnation + 1)


@pytest.mark.parametrize("kinds", [["cluster"], ["one node"], ["cluster", "one node"]])
def test_a_journal_that_is_given_up_is_another_directorys(tmp_path: Path, kinds: list[str]):
    before = begun(kinds[0], tmp_path).directory_id
    if len(kinds) > 1:
        OneNodeDirectory(uuid4(), 700, 3).write(tmp_path, FileSystem())
    give_up_journal(tmp_path, FileSystem())
    given_up = [LogDirectory.read(tmp_path, FileSystem()), OneNodeDirectory.open(tmp_path, FileSystem())]
    assert all(one is None or (one.durable_end is None and one.directory_id != before) for one in given_up)
    whole = found_journal(650, JournalIdentity(before, 1))
    journal_check(tmp_path)(whole)
    accept_journal(tmp_path, FileSystem(), whole)
    journal_check(tmp_path)(whole)
    for lost in (found_journal(0, None), found_journal(640, whole.identity)):
        with pytest.raises(JournalDiffersError, match="not the one that was here before"):
            journal_check(tmp_path)(lost)
