"""The journal of a store of one node is gone, older, cut, another store's, or disappears while the store runs.

A start on such a journal is refused by name and changes nothing: with the journal back all records are served.
"""

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.broker.quotas import Quotas
from logstore.cli.app import app
from logstore.cli.checks import Status
from logstore.cli.doctor import check_journal
from logstore.errors import DataDirectoryError, JournalFileLostError, QuarantinedError, UnknownGroupError
from logstore.journal import journal as journal_module
from logstore.journal.errors import JournalDiffersError
from logstore.node import Store, running_store
from logstore.settings import Settings
from tests.support import lost_journals
from tests.support.data_directory import copy_of_one_moment
from tests.support.eventually import eventually_async
from tests.support.lost_journals import content_of, durable_end, journal_of
from tests.support.running_broker import produce, read_all
from tests.support.served_topic import create_topic, read_records
from tests.support.server_process import NotStartedError, ServerProcess
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}
IN_TABLE, IN_IMAGE, ACKNOWLEDGED = 10, 20, 30
_NO_FILES = "is not the one that was here before: it has no files"
#: The folder of the image, below the data directory.
IMAGE = "image"


def values(begin: int, end: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(begin, end)]


def store_on(data: Path, *, new_journal: bool = False) -> Any:
    return running_store(
        Settings(data=data, offsets_topic_num_partitions=1), Authorizer(), Quotas(), new_journal=new_journal
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a killed store: ten records are in the table, twenty and a group's commit in its journal.

    It also has an image of the journal from before the last ten.
    """
    live, data = (tmp_path_factory.mktemp("killed") / name for name in ("live", "data"))

    async def fill() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal_module, "RECORDING_S", 0.01)
            async with store_on(live) as store:
                topic = await store.broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
                await produce(store.broker, topic, values(0, IN_TABLE))
                await store.broker.topics.tables.roll(INTERNAL, topic)
                await produce(store.broker, topic, values(IN_TABLE, IN_IMAGE))
                image = live.with_name(IMAGE)
                copy_of_one_moment(journal_of(live / "brokers/0"), image)
                await produce(store.broker, topic, values(IN_IMAGE, ACKNOWLEDGED))
                await store.groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 7)])
                end = store.broker.journal.end_position
                await eventually_async(lambda: durable_end(live / "brokers/0") >= end, "not written down")
                copy_of_one_moment(live, data)
                image.rename(data / IMAGE)

    run(fill())
    return data


@pytest.fixture
def data(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "data"))


def unmount_the_inner(home: Path) -> None:
    lost_journals.leave_empty(home)


def unmount_the_outer(home: Path) -> None:
    lost_journals.lose(home)
    (home / "journal").mkdir()


def put_an_older_one_there(home: Path) -> None:
    lost_journals.put_in_place(home, home.parents[1] / IMAGE)


HOW = [
    pytest.param(lost_journals.lose, "it has no files, and it was durable up to position", id="gone"),
    pytest.param(unmount_the_inner, "it has no files", id="journal-0-not-mounted"),
    pytest.param(unmount_the_outer, "it has no files", id="journal-not-mounted"),
    pytest.param(put_an_older_one_there, "it is an older copy, or it lost its end", id="older"),
    pytest.param(lost_journals.cut, "it is an older copy, or it lost its end", id="cut"),
    pytest.param(lost_journals.replace_with_a_strangers, "it is that of the directory id", id="replaced"),
]


async def found_in(store: Store) -> tuple[list[bytes | None], int | None]:
    """Return the values of all records, whose offsets have no gap, and the offset that the group has committed."""
    topic = store.broker.topics.served.topic(INTERNAL, "t")
    rows = await read_all(store.broker, topic)
    assert [offset for offset, _ in rows] == list(range(len(rows)))
    committed = None
    with contextlib.suppress(UnknownGroupError):
        (committed,) = [row.offset for row in store.groups.committed(INTERNAL, "g")]
    return [value for _, value in rows], committed


async def refused(data: Path, message: str) -> None:
    with pytest.raises(
        JournalDiffersError, match=rf"(?s)is not the one that was here before: .*{message}.*--new-journal"
    ):
        async with store_on(data):
            pass


@pytest.mark.parametrize(("lose", "message"), HOW)
def test_a_start_without_its_journal_is_refused_and_with_it_all_is_there(
    data: Path, tmp_path: Path, lose: Callable[[Path], None], message: str
) -> None:
    home = data / "brokers/0"
    shutil.copytree(home / "journal", tmp_path / "aside")
    assert check_journal(home).status is Status.ok
    lose(home)
    # A whole copy has the size of the file: only a look at its frames shows the difference.
    told = Status.ok if lose is put_an_older_one_there else Status.fail
    assert check_journal(home).status is told
    before = content_of(data)
    for _ in range(2):
        run(refused(data, message))
        assert content_of(data) == before

    async def whole() -> None:
        async with store_on(data) as store:
            assert await found_in(store) == (values(0, ACKNOWLEDGED), 7)
            topic = store.broker.topics.served.topic(INTERNAL, "t")
            assert await produce(store.broker, topic, values(ACKNOWLEDGED, ACKNOWLEDGED + 1)) == ACKNOWLEDGED

    shutil.rmtree(home / "journal")
    (tmp_path / "aside").rename(home / "journal")
    run(whole())


@pytest.mark.parametrize(
    ("lose", "left"), [(lost_journals.lose, IN_TABLE), (put_an_older_one_there, IN_IMAGE)], ids=["gone", "older"]
)
def test_a_store_may_continue_with_the_journal_that_exists(data: Path, lose: Callable[[Path], None], left: int) -> None:
    async def start_with_what_is_there() -> None:
        with pytest.raises(DataDirectoryError, match="start without --new-journal"):
            async with store_on(data, new_journal=True):
                pass
        lose(data / "brokers/0")
        async with store_on(data, new_journal=True) as store:
            assert (await found_in(store))[0] == values(0, left)
            assert await produce(store.broker, store.broker.topics.served.topic(INTERNAL, "t"), [b"next"]) == left
        async with store_on(data) as store:
            assert (await found_in(store))[0] == [*values(0, left), b"next"]

    run(start_with_what_is_there())


def test_a_journal_of_the_time_before_a_restore_is_refused(data: Path, tmp_path: Path) -> None:
    """Restore a whole image after more records were stored; then put the journal of before the restore back."""
    home = data / "brokers/0"

    async def append(*appended: bytes) -> None:
        async with store_on(data) as store:
            topic = store.broker.topics.served.topic(INTERNAL, "t")
            await produce(store.broker, topic, list(appended))

    shutil.copytree(data, tmp_path / "image")
    run(append(*(b"given up" for _ in range(40))))
    (home / "journal").rename(tmp_path / "before")
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "image", data)
    run(append(b"b1", b"b2"))
    (home / "journal").rename(tmp_path / "since")
    shutil.copytree(tmp_path / "before", home / "journal")
    before = content_of(data)
    run(refused(data, "a time before the directory was restored"))
    assert content_of(data) == before

    async def whole() -> None:
        async with store_on(data) as store:
            assert (await found_in(store))[0] == [*values(0, ACKNOWLEDGED), b"b1", b"b2"]

    shutil.rmtree(home / "journal")
    (tmp_path / "since").rename(home / "journal")
    run(whole())


def test_a_repaired_journal_that_is_lost_is_missed(data: Path) -> None:
    home = data / "brokers/0"
    newest = max(journal_of(home).glob("*.log"))
    lost_journals.damage(home, random.Random(7))
    ran = CliRunner().invoke(app, ["journal", "repair", str(journal_of(home)), "--yes"])
    assert "now ends at position" in ran.stdout, ran.output
    (home / "journal").rename(data / "aside")
    run(refused(data, "it has no files, and it was durable up to position"))
    shutil.rmtree(home / "journal")
    (data / "aside").rename(home / "journal")

    async def served() -> None:
        async with store_on(data) as store:
            assert (await found_in(store))[0][:IN_TABLE] == values(0, IN_TABLE)

    run(served())
    assert max(journal_of(home).glob("*.log")) != newest


def test_an_oldest_file_that_is_missing_is_missed_and_served_once_it_is_back(data: Path, tmp_path: Path) -> None:
    home = data / "brokers/0"
    oldest = min(journal_of(home).glob("*.log"))

    async def served(killed: Path | None = None) -> None:
        async with store_on(data) as store:
            assert (await found_in(store))[0] == values(0, ACKNOWLEDGED)
            if killed is not None:
                copy_of_one_moment(data, killed)

    run(served(tmp_path / "killed"))  # it begins a second file
    shutil.rmtree(data)
    (tmp_path / "killed").rename(data)
    assert len(list(journal_of(home).glob("*.log"))) == 2
    oldest.rename(tmp_path / oldest.name)
    before = content_of(data)
    for _ in range(2):
        run(refused(data, "its oldest files are missing"))
    assert content_of(data) == before
    (tmp_path / oldest.name).rename(oldest)
    run(served())


def test_an_oldest_file_that_comes_back_after_starts_without_it_is_served(data: Path, tmp_path: Path) -> None:
    """Check that no start writes down that the records in it are sealed (a later one would free the file), or frees a
    file behind it (the journal would have a gap).
    """
    oldest = min(journal_of(data / "brokers/0").glob("*.log"))

    async def begin_a_second_file() -> None:
        async with store_on(data):
            copy_of_one_moment(data, tmp_path / "killed")

    async def quarantined(*, new_journal: bool) -> None:
        async with store_on(data, new_journal=new_journal) as store:
            with pytest.raises(QuarantinedError, match=r"had sealed offsets 10 to 30.* file of the journal is missing"):
                await found_in(store)

    async def served() -> None:
        async with store_on(data) as store:
            assert await found_in(store) == (values(0, ACKNOWLEDGED), 7)

    run(begin_a_second_file())
    shutil.rmtree(data)
    (tmp_path / "killed").rename(data)
    oldest.rename(tmp_path / oldest.name)
    run(quarantined(new_journal=True))
    run(quarantined(new_journal=False))
    (tmp_path / oldest.name).rename(oldest)
    run(served())


def test_records_that_were_acknowledged_before_the_files_were_removed_are_in_the_tables_after_a_stop(
    data: Path, tmp_path: Path
) -> None:
    home = data / "brokers/0"

    async def scenario() -> None:
        async with store_on(data) as store:
            topic = store.broker.topics.served.topic(INTERNAL, "t")
            await produce(store.broker, topic, values(ACKNOWLEDGED, ACKNOWLEDGED + 5))
            assert store.broker.not_ready_reason is None
            lost_journals.move_away(home, tmp_path / "aside")
            shutil.rmtree(tmp_path / "aside")
            assert "was removed or replaced" in (store.broker.not_ready_reason or ""), "also while nobody appends"
            for _ in range(2):
                with pytest.raises(JournalFileLostError):
                    await produce(store.broker, topic, [b"refused"])
            assert (await found_in(store))[0] == values(0, ACKNOWLEDGED + 5), "readers are served"
        await refused(data, "it has no files")
        async with store_on(data, new_journal=True) as store:
            assert await found_in(store) == (values(0, ACKNOWLEDGED + 5), 7)

    run(scenario())


# ---- a process -------------------------------------------------------------------------------------------------------


def append(url: str, value: str) -> httpx.Response:
    return httpx.post(f"{url}/topics/t/partitions/0", json={"records": [{"value": value}]}, timeout=30)


def told_by(*arguments: object) -> str:
    """Return the output of a tool that fails."""
    ran = CliRunner().invoke(app, [*map(str, arguments)])
    assert ran.exit_code == 1, ran.output
    return " ".join(ran.output.split())


ALONE = {"LOGSTORE_KAFKA_LISTENERS": ""}
_ACKNOWLEDGED = ["v0", "v1", "v2"]


def fill(url: str) -> None:
    create_topic(url, partitions=1, segment_ms="100000000")
    for value in _ACKNOWLEDGED:
        assert append(url, value).is_success


def require_refused(server: ServerProcess) -> None:
    with pytest.raises(NotStartedError) as error:
        server.start()
    assert error.value.code == 1
    assert "cannot start: The journal in" in error.value.lines[-1]
    assert _NO_FILES in error.value.lines[-1]


@pytest.mark.system
def test_files_that_are_removed_under_a_running_store_are_reported_everywhere(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, environment=ALONE) as server:
        fill(server.url)
        assert httpx.get(f"{server.url}/health/ready", timeout=30).is_success
        lost_journals.move_away(data / "brokers/0", tmp_path / "aside")
        ready = httpx.get(f"{server.url}/health/ready", timeout=30)
        assert ready.status_code == 503
        assert "was removed or replaced while this process wrote to it" in ready.text
        assert append(server.url, "refused").status_code >= 500
        assert "was removed or replaced" in told_by("doctor", "--url", server.url, "--json")
        for tool in (("journal", "verify"), ("topic", "verify"), ("doctor", "--json")):
            assert _NO_FILES in told_by(*tool, "--data", data), tool
        server.kill()
        require_refused(server)
        lost_journals.put_back(data / "brokers/0", tmp_path / "aside")
        server.start()
        # The test leaves open whether the refused record exists.
        assert [row["value"] for row in read_records(server.url, 0)][:3] == _ACKNOWLEDGED


@pytest.mark.system
@pytest.mark.long
def test_a_process_whose_files_were_removed_puts_its_records_into_the_tables_at_sigterm(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, environment=ALONE) as server:
        fill(server.url)
        lost_journals.move_away(data / "brokers/0", tmp_path / "aside")
        assert append(server.url, "refused").status_code >= 500
        assert server.stop() == 0
        require_refused(server)
        server.start("--new-journal")
        assert [row["value"] for row in read_records(server.url, 0)] == _ACKNOWLEDGED
        assert append(server.url, "more").is_success
