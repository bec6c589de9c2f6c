import errno
import os
import random
import shutil
import threading
import time
import uuid
from pathlib import Path

import pytest

from logstore.errors import CorruptionError
from logstore.table_files import OutcomeUnknownError, TableFiles, find_file, open_table
from logstore.table_root import TableRoot, open_root
from tests.support.faulty_filesystem import SHORT, FaultyFileSystem

LOG = "_delta_log"
ENTRY = f"{LOG}/{0:020d}.json"
TABLE_ID = uuid.UUID(int=7)


@pytest.fixture
def disk(tmp_path: Path) -> FaultyFileSystem:
    (tmp_path / "data").mkdir()
    return FaultyFileSystem(tmp_path / "data")


@pytest.fixture
def root(tmp_path: Path, disk: FaultyFileSystem) -> TableRoot:
    root = TableRoot(tmp_path / "data", disk)
    root.prepare()
    return root


@pytest.fixture
def files(root: TableRoot) -> TableFiles:
    return root.create("events", b"{}")


def put(files: TableFiles, name: str, content: bytes = b"x") -> None:
    with files.create(name) as upload:
        upload.write(content)
        upload.finish()


def after_a_power_cut(disk: FaultyFileSystem) -> None:
    disk.power_cut(random.Random(1), strict=True)


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "partition=0/../../x", "/etc/passwd", "", "a//b", "./a", "a/", "..", "a\0b"])
def test_a_name_that_leads_out_of_the_table_is_refused_by_everything(files: TableFiles, name: str) -> None:
    calls = (
        files.head,
        files.read,
        files.create,
        files.set_aside,
        lambda name: files.read_ranges(name, []),
        lambda name: files.put_if_absent(name, b""),
        lambda name: files.remove([name]),
        lambda name: files.list(name) if name else files.head(name),
    )
    for call in calls:
        with pytest.raises(CorruptionError, match="not the name of a file within the table"):
            call(name)


def test_names_with_dots_and_odd_characters_are_names(files: TableFiles) -> None:
    for name in ("a..b", "...", ".x.crc", "partition=0/ü %20.parquet"):
        put(files, name)
        assert files.read(name) == b"x"


# ---- listing --------------------------------------------------------------------------------------------------------


def test_a_listing_is_of_all_depths_by_rising_name(files: TableFiles) -> None:
    names = ["a-b", "a/c", "a/d/e", "a0", "b", "partition=0/x", "partition=1/y"]
    for name in reversed(names):
        put(files, name)
    assert [entry.name for entry in files.list("")] == sorted([ENTRY, *names])
    assert [entry.name for entry in files.list("a")] == ["a/c", "a/d/e"]
    assert files.list("not/there") == []
    shutil.rmtree(files.where(LOG))
    with pytest.raises(FileNotFoundError):
        files.list(LOG)
    shutil.rmtree(files.uri)
    for under in ("", "not/there"):
        with pytest.raises(FileNotFoundError):
            files.list(under)


def test_a_listing_begins_after_a_name(files: TableFiles) -> None:
    for name in ("a-b", "a/c", "a/d/e", "a0", "b", "partition=0/x"):
        put(files, name)
    everything = [entry.name for entry in files.list("")]
    for after in (*everything, "a", "a/", "a/d", "a-", "zzz", LOG):
        assert [entry.name for entry in files.list("", after)] == [name for name in everything if name > after]


def test_a_listing_looks_only_at_what_comes_after(files: TableFiles, disk: FaultyFileSystem) -> None:
    for number in range(1, 30):
        put(files, f"{LOG}/{number:020d}.json")
    before = disk.hits["delta.stat"]
    assert len(files.list(LOG, f"{LOG}/{27:020d}")) == 3
    assert disk.hits["delta.stat"] - before == 3


def test_names_are_those_of_one_directory(files: TableFiles, disk: FaultyFileSystem) -> None:
    for name in ("b", "a", "c", "d/e"):
        put(files, f"{LOG}/x/{name}")
    before = disk.hits["stat"]
    assert files.names(f"{LOG}/x") == [f"{LOG}/x/{name}" for name in "abcd"]
    assert files.names(f"{LOG}/x", f"{LOG}/x/b") == [f"{LOG}/x/c", f"{LOG}/x/d"]
    assert disk.hits["stat"] == before
    with pytest.raises(FileNotFoundError):
        files.names("nowhere")


def test_a_version_changes_with_the_content(files: TableFiles) -> None:
    put(files, "x", b"one")
    first = files.head("x")
    assert files.list("", "w") == [first]
    replaced = files.replace("x", b"two", first)
    assert replaced == files.head("x")
    assert replaced is not None
    assert replaced.version != first.version
    assert (first.size, abs(first.modified_ms - time.time_ns() // 10**6) < 60_000) == (3, True)


def test_a_name_that_goes_meanwhile_is_passed_over(files: TableFiles, disk: FaultyFileSystem) -> None:
    put(files, "p/a")
    put(files, "p/b")
    disk.at("stat", lambda _: Path(files.where("p/b")).unlink())
    assert [entry.name for entry in files.list("p")] == ["p/a"]


# ---- reading --------------------------------------------------------------------------------------------------------


def test_ranges_are_filled_or_an_error_is_raised(files: TableFiles) -> None:
    content = bytes(range(256)) * 10
    put(files, "x", content)
    low, high = bytearray(100), bytearray(30)
    files.read_ranges("x", [(5, memoryview(low)), (2_530, memoryview(high))])
    assert (bytes(low), bytes(high)) == (content[5:105], content[2_530:])
    with pytest.raises(EOFError, match="ends before byte 2561"):
        files.read_ranges("x", [(2_531, memoryview(high))])
    with pytest.raises(FileNotFoundError):
        files.read_ranges("y", [])


@pytest.mark.parametrize("times", [1, 2, 5, 100])
def test_a_short_read_is_read_on(files: TableFiles, disk: FaultyFileSystem, times: int) -> None:
    content = os.urandom(5_000)
    put(files, "partition=0/x", content)
    buffer = bytearray(5_000)
    disk.fail("segment.read_into", SHORT, times=times)
    files.read_ranges("partition=0/x", [(0, memoryview(buffer))])
    assert bytes(buffer) == content
    assert disk.injected
    disk.fail("segment.read_into", SHORT, times=times)
    assert files.read("partition=0/x") == content


@pytest.mark.parametrize("call", ["open_read", "read_into"])
def test_a_read_that_fails_is_an_error_of_that_read_only(files: TableFiles, disk: FaultyFileSystem, call: str) -> None:
    put(files, "x", b"content")
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    for read in (files.read, lambda name: files.read_ranges(name, [(0, memoryview(bytearray(1)))])):
        disk.fail(call, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            read("x")
        read("x")
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_a_listing_and_a_lookup_fail_as_the_disk_does(files: TableFiles, disk: FaultyFileSystem) -> None:
    for call, look in (("names", lambda: files.list("")), ("stat", lambda: files.head(ENTRY)), ("stat", files.exists)):
        disk.fail(call, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            look()
        look()


# ---- uploads --------------------------------------------------------------------------------------------------------


def test_a_finished_upload_survives_a_power_cut(files: TableFiles, disk: FaultyFileSystem) -> None:
    put(files, "partition=0/x", b"content")
    after_a_power_cut(disk)
    assert open_table(files.uri).read("partition=0/x") == b"content"


def test_an_upload_that_is_left_stores_nothing(files: TableFiles) -> None:
    with files.create("partition=0/x") as upload:
        upload.write(b"content")
    assert files.list("partition=0") == []


@pytest.mark.parametrize("call", ["segment.fdatasync", "segment.sync_directory", "segment.write_at"])
def test_an_upload_that_fails_leaves_nothing(files: TableFiles, disk: FaultyFileSystem, call: str) -> None:
    put(files, "partition=0/w")
    disk.fail(call, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        put(files, "partition=0/x")
    assert [entry.name for entry in files.list("partition=0")] == ["partition=0/w"]


def test_an_upload_does_not_bring_a_removed_table_back(files: TableFiles, root: TableRoot) -> None:
    root.remove("events", TABLE_ID)
    for write in (lambda: put(files, "partition=0/x"), lambda: files.put_if_absent(f"{LOG}/y", b"")):
        with pytest.raises(FileNotFoundError):
            write()
    assert root.tables() == root.strays() == []


def test_an_upload_takes_no_name_that_is_taken(files: TableFiles) -> None:
    put(files, "x", b"old")
    with pytest.raises(FileExistsError):
        files.create("x")
    assert files.read("x") == b"old"


# ---- put if absent, replace -----------------------------------------------------------------------------------------


def test_one_of_many_writers_of_a_name_wins(files: TableFiles) -> None:
    won: list[bytes] = []

    def write(content: bytes) -> None:
        if files.put_if_absent(f"{LOG}/x", content):
            won.append(content)

    writers = [threading.Thread(target=write, args=(b"%d" % n * 5_000,)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [files.read(f"{LOG}/x")] == won
    assert [entry.name for entry in files.list(LOG)] == [ENTRY, f"{LOG}/x"]


def test_a_put_file_survives_a_power_cut(files: TableFiles, disk: FaultyFileSystem) -> None:
    assert files.put_if_absent(f"{LOG}/x", b"one")
    after_a_power_cut(disk)
    assert open_table(files.uri).read(f"{LOG}/x") == b"one"


@pytest.mark.parametrize("call", ["create", "write_at", "fdatasync", "link"])
def test_an_error_of_a_put_means_that_nothing_is_there(files: TableFiles, disk: FaultyFileSystem, call: str) -> None:
    disk.fail(f"delta.{call}", errno.EIO)
    with pytest.raises(OSError, match="Input/output") as failed:
        files.put_if_absent(f"{LOG}/x", b"one")
    assert not isinstance(failed.value, OutcomeUnknownError)
    assert [entry.name for entry in files.list(LOG)] == [ENTRY]


def test_an_outcome_that_is_unknown_is_called_so(files: TableFiles, disk: FaultyFileSystem) -> None:
    put(files, f"{LOG}/old")
    disk.fail("delta.sync_directory", errno.EIO)
    with pytest.raises(OutcomeUnknownError):
        files.put_if_absent(f"{LOG}/x", b"one")
    disk.fail("delta.sync_directory", errno.EIO)
    with pytest.raises(OutcomeUnknownError):
        files.replace(f"{LOG}/old", b"new", files.head(f"{LOG}/old"))


def test_only_the_expected_content_is_replaced(files: TableFiles, disk: FaultyFileSystem) -> None:
    put(files, "x", b"one")
    first = files.head("x")
    assert files.replace("x", b"two", first)
    assert files.replace("x", b"three", first) is None
    assert files.replace("y", b"three", first) is None
    assert files.read("x") == b"two"
    assert [entry.name for entry in files.list("", "w")] == ["x"]
    after_a_power_cut(disk)
    assert open_table(files.uri).read("x") == b"two"


def test_a_replacement_that_fails_leaves_the_old_content(files: TableFiles, disk: FaultyFileSystem) -> None:
    put(files, "x", b"one")
    for call in ("create", "write_at", "fdatasync", "rename"):
        disk.fail(call, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            files.replace("x", b"two", files.head("x"))
        assert files.read("x") == b"one"
    assert [entry.name for entry in files.list("", "w")] == ["x"]


# ---- set aside, remove, sync ----------------------------------------------------------------------------------------


def test_a_file_that_is_set_aside_keeps_its_content_and_may_be_put_back(files: TableFiles) -> None:
    names = []
    for content in (b"one", b"two", b"three"):
        put(files, f"{LOG}/x.json", content)
        names.append(files.set_aside(f"{LOG}/x.json"))
    assert names == [f"{LOG}/x.json.set-aside{n}" for n in ("", 1, 2)]
    files.put_back(names[1])
    assert files.read(f"{LOG}/x.json") == b"two"


def test_removed_records_stay_away(files: TableFiles, disk: FaultyFileSystem) -> None:
    put(files, f"{LOG}/x")
    files.remove([f"{LOG}/x"])
    after_a_power_cut(disk)
    assert [entry.name for entry in open_table(files.uri).list(LOG)] == [ENTRY]


def test_files_of_others_are_durable_once_they_are_synced(files: TableFiles, disk: FaultyFileSystem) -> None:
    for number in (1, 2):
        Path(files.where(f"{LOG}/{number}")).write_bytes(b"theirs")
    files.sync([f"{LOG}/1"])
    Path(files.where(f"{LOG}/3")).write_bytes(b"theirs")
    after_a_power_cut(disk)
    left = open_table(files.uri)
    assert left.read(f"{LOG}/1") == b"theirs"
    assert f"{LOG}/3" not in [entry.name for entry in left.list(LOG)]


def test_a_mark_changes_with_the_names(files: TableFiles) -> None:
    assert files.mark(LOG) is None, "a change in the same tick of the clock would not show"
    os.utime(files.where(LOG), ns=(0, 0))
    assert files.mark(LOG) == 0
    put(files, f"{LOG}/x")
    assert files.mark(LOG) != 0
    assert files.mark("nowhere") is None


def test_the_time_of_the_storage(files: TableFiles, root: TableRoot) -> None:
    for storage in (files, root):
        assert abs(storage.now_ms() - time.time_ns() // 10**6) < 60_000
    assert root.tables() == ["events"]


# ---- for others -----------------------------------------------------------------------------------------------------


def test_a_table_is_opened_by_what_it_says_of_itself(files: TableFiles) -> None:
    assert files.exists()
    for location in (files.uri, files.spark_uri, Path(files.uri)):
        assert open_table(location).read(ENTRY) == b"{}"
    assert (files.name, files.storage_options) == ("events", None)


def test_a_file_is_found_by_its_path(files: TableFiles) -> None:
    put(files, "partition=0/x.parquet")
    found, name = find_file(Path(files.where("partition=0/x.parquet")))
    assert (found.uri, name) == (files.uri, "partition=0/x.parquet")
    put(files, "y.parquet")
    assert find_file(Path(files.where("y.parquet")))[1] == "y.parquet"


# ---- the root -------------------------------------------------------------------------------------------------------


def test_a_table_appears_whole_and_survives_a_power_cut(
    files: TableFiles, root: TableRoot, disk: FaultyFileSystem, tmp_path: Path
) -> None:
    assert (root.tables(), root.strays(), root.exists()) == (["events"], [], True)
    after_a_power_cut(disk)
    assert open_root(tmp_path / "data").open("events").read(ENTRY) == b"{}"


def test_a_name_is_given_to_one_table(files: TableFiles, root: TableRoot) -> None:
    with pytest.raises(FileExistsError):
        root.create("events", b"other")
    assert files.read(ENTRY) == b"{}"


@pytest.mark.parametrize("call", ["make_directory", "create", "write_at", "fdatasync", "rename"])
def test_a_creation_that_fails_leaves_nothing(root: TableRoot, disk: FaultyFileSystem, call: str) -> None:
    disk.fail(call, errno.ENOSPC)
    with pytest.raises(OSError, match="No space") as failed:
        root.create("events", b"{}")
    assert not isinstance(failed.value, OutcomeUnknownError)
    assert root.tables() == root.strays() == []
    root.create("events", b"{}")


def test_a_creation_that_may_not_last_is_taken_back(root: TableRoot, disk: FaultyFileSystem) -> None:
    disk.at("topic.created", lambda _: disk.fail("catalog.sync_directory", errno.EIO))
    with pytest.raises(OutcomeUnknownError):
        root.create("events", b"{}")
    assert root.tables() == root.strays() == []


@pytest.mark.parametrize("point", ["delta.staged", "topic.created", "topic.purge_half"])
def test_a_crash_leaves_a_table_whole_or_absent(
    root: TableRoot, disk: FaultyFileSystem, tmp_path: Path, point: str
) -> None:
    root.create("kept", b"{}")
    disk.crash_at(point)

    def create_and_remove() -> None:
        root.create("events", b"{}")
        root.remove("events", TABLE_ID)
        root.purge()

    with pytest.raises(OSError, match="the process"):
        create_and_remove()
    again = open_root(tmp_path / "data")
    again.recover()
    assert again.strays() == []
    assert all(again.open(name).read(ENTRY) == b"{}" for name in again.tables())
    assert not list((tmp_path / "data" / "staging").glob("*"))
    assert not list((tmp_path / "data" / "deleted").glob("*/*"))
    assert again.removed() == ({TABLE_ID} if point == "topic.purge_half" else set())


def test_a_removed_table_is_known_until_it_is_forgotten(
    files: TableFiles, root: TableRoot, disk: FaultyFileSystem, tmp_path: Path
) -> None:
    root.remove("events", TABLE_ID)
    assert (root.tables(), root.removed(), files.exists()) == ([], {TABLE_ID}, False)
    root.sync_removals()
    after_a_power_cut(disk)
    again = open_root(tmp_path / "data")
    assert (again.tables(), again.removed()) == ([], {TABLE_ID})
    again.purge()
    assert again.removed() == {TABLE_ID}
    again.forget(TABLE_ID)
    assert again.removed() == set()


def test_directories_without_a_table_are_distinguished(root: TableRoot, files: TableFiles, tmp_path: Path) -> None:
    topics = tmp_path / "data" / "topics"
    (topics / "file").write_bytes(b"")
    (topics / "empty").mkdir()
    (topics / "linked").symlink_to(topics / "events")
    (tmp_path / "elsewhere" / LOG).mkdir(parents=True)
    (topics / "mounted").symlink_to(tmp_path / "elsewhere")
    assert root.tables() == ["events", "linked", "mounted"]
    assert root.strays() == ["empty", "file"]
    assert [root.link_target(name) for name in root.tables()] == [None, "events", None]
