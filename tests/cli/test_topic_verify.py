"""``topic verify``, ``segment verify`` and ``journal verify`` on damaged data directories."""

import json
import random
import re
import shutil
import socket
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from logstore.cli.app import app
from logstore.cli.checks import Status
from logstore.cli.cluster_adopt import _tails
from logstore.cli.data_directory import require_no_journal
from logstore.cli.doctor import check_data, check_journals
from logstore.cluster import checked_file
from logstore.cluster.log_directory import LogDirectory, OneNodeDirectory
from logstore.cluster.log_directory_record import record_log_directory
from logstore.errors import LogStoreError
from logstore.filesystem import FileSystem, local_filesystem
from logstore.journal.errors import JournalDiffersError
from logstore.lock_file import LockFile
from tests.support.damage import cut, damage_at_random, flip_bit, swap
from tests.support.small_store import TOPIC, Records, small_store, stored


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Records]:
    data = tmp_path_factory.mktemp("whole") / "data"
    return data, small_store(data)


@pytest.fixture
def data(whole: tuple[Path, Records], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "data"))


def logstore(*arguments: object, code: int | None = None) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="logstore")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert code in (None, result.exit_code), result.output
    return result


def checks(data: Path, *arguments: object) -> set[tuple[str, int | None]]:
    """Return the failed checks, with their partitions."""
    result = logstore("topic", "verify", "--data", data, *arguments, "--json")
    problems = [found for topic in json.loads(result.stdout)["topics"] for found in topic["problems"]]
    assert result.exit_code == (1 if problems else 0)
    return {(found["check"], found["partition"]) for found in problems}


def segments(data: Path, partition: int = 0) -> list[Path]:
    return sorted((data / "topics" / TOPIC / f"partition={partition}").iterdir())


def entries(data: Path) -> list[Path]:
    return sorted((data / "topics" / TOPIC / "_delta_log").glob("*.json"))


def journal_files(data: Path) -> list[Path]:
    return sorted(data.glob("brokers/0/journal/0/*.log"))


def test_a_whole_store_is_good(data, whole):
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert checks(data) == checks(data, "--quick") == set()
    assert "good" in logstore("topic", "verify", TOPIC, "--data", data, code=0).stdout
    assert "good" in logstore("segment", "verify", "--topic", TOPIC, "--data", data, code=0).stdout
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert stored(data) == whole[1]


def test_a_flipped_bit_in_a_segment(data):
    file = segments(data)[1]
    flip_bit(file, 200)
    assert checks(data) == {("file-damaged", 0)}
    assert file.name in logstore("topic", "verify", "--data", data, code=1).stderr
    found = json.loads(logstore("segment", "verify", file, "--json", code=1).stdout)
    assert file.name in found[0]["problems"][0]
    good = [path for path in segments(data) if path != file]
    assert all(
        row["problems"] == [] for row in json.loads(logstore("segment", "verify", *good, "--json", code=0).stdout)
    )


def test_quick_reads_the_ends_of_files(data):
    flip_bit(segments(data)[1], 200)
    assert checks(data, "--quick") == set()
    flip_bit(segments(data)[0], -20)
    assert checks(data, "--quick") == {("file-damaged", 0)}


def test_a_segment_that_is_cut_or_gone(data):
    cut(segments(data, 0)[0], 500)
    segments(data, 1)[2].unlink()
    assert checks(data) == {("file-damaged", 0), ("file-missing", 1)}
    found = json.loads(logstore("segment", "verify", "--topic", TOPIC, "--data", data, "--json", code=1).stdout)
    assert [len(row["problems"]) for row in found] == [1, 0, 0, 0, 0, 1]


def test_segments_under_each_others_names(data):
    swap(*segments(data)[:2])
    assert checks(data) == {("file-damaged", 0)}


def test_a_segment_of_another_partition(data):
    ours, other = segments(data, 0)[0], segments(data, 1)[0]
    shutil.copyfile(other, ours)
    assert checks(data) == {("file-damaged", 0)}


def test_damage_to_the_delta_log(data):
    content = entries(data)[1].read_bytes()
    entries(data)[1].write_bytes(content.replace(b'"size":2', b'"size":3'))
    assert entries(data)[1].read_bytes() != content
    assert ("delta-log", None) in checks(data)
    assert entries(data)[1].name in logstore("topic", "verify", "--data", data, code=1).stderr


def test_an_entry_that_is_missing_or_a_copy_of_another(data):
    shutil.copyfile(entries(data)[1], entries(data)[2])
    assert checks(data) == {("delta-log", None)}
    entries(data)[2].unlink()
    assert ("delta-log", None) in checks(data)
    assert "is missing" in logstore("topic", "verify", "--data", data, code=1).stderr


def test_no_delta_log(data):
    shutil.rmtree(data / "topics" / TOPIC / "_delta_log")
    for names in ([TOPIC], []):
        assert "_delta_log is not there" in logstore("topic", "verify", *names, "--data", data, code=1).stderr
    assert "records of topic id" in logstore("topic", "verify", "--data", data, code=1).stderr


def test_a_topic_whose_directory_is_gone(data):
    shutil.rmtree(data / "topics" / TOPIC)
    result = logstore("topic", "verify", "--data", data, "--json", code=1)
    assert list(json.loads(result.stdout)["journal"]["without_table"].values()) == [80]


def test_the_newest_entry_is_gone_and_the_journal_has_its_records(data, whole):
    """Remove an entry whose records are in the journal: they are rolled again."""
    entries(data)[-1].unlink()
    assert checks(data) == set()
    assert stored(data) == whole[1]


def test_the_journal_is_damaged(data):
    (file,) = journal_files(data)
    flip_bit(file, 300)
    result = logstore("topic", "verify", "--data", data, code=1)
    assert "logstore journal repair" in result.stderr
    assert logstore("journal", "verify", "--data", data, code=1).stderr == result.stderr.replace(
        " The tables were not compared with it.", ""
    )


def test_the_journal_is_gone(data, whole):
    shutil.rmtree(data / "brokers")
    result = logstore("topic", "verify", "--data", data, code=0)
    assert "there is no journal" in result.stdout
    assert stored(data) == {partition: found[:30] for partition, found in whole[1].items()}


def test_a_table_that_is_behind_the_journal(data, tmp_path):
    """Put an old table beside the newer journal."""
    shutil.copytree(data / "topics", tmp_path / "old")
    assert stored(data)  # its stop rolls everything
    assert stored(data)  # its start begins a new journal file, and frees the old one
    shutil.rmtree(data / "topics")
    shutil.copytree(tmp_path / "old", data / "topics")
    assert checks(data) == {("journal", 0), ("journal", 1)}


def test_topics_that_are_not_there(data):
    assert "no topic 'none'" in logstore("topic", "verify", "none", "--data", data, code=1).stderr
    assert "no topic '../x'" in logstore("topic", "verify", "../x", "--data", data, code=1).stderr
    assert "no data directory" in logstore("topic", "verify", "--data", data / "nowhere", code=1).stderr


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(12, 60))])
def test_damage_never_passes_and_never_crashes_a_check(data, whole, seed):
    """Serve what the checks accept: all records must be there. Only damage at the journal's end may pass, as a crash's
    tail.
    """
    rng = random.Random(seed)
    done = damage_at_random(data, rng)
    for command in (["journal", "verify"], ["segment", "verify", "--topic", TOPIC]):
        logstore(*command, "--data", data)
    result = logstore("topic", "verify", TOPIC, "--data", data)
    if result.exit_code:
        assert result.stderr.startswith("logstore: "), done
        return
    try:
        found = stored(data)
    except LogStoreError as error:
        pytest.fail(f"{done}: called good, and refused: {error}")
    for partition, records in whole[1].items():
        if " brokers/" in done:
            assert found[partition] == records[: len(found[partition])], done
            assert len(found[partition]) >= 30, done
        else:
            assert found[partition] == records, done


# ---- journals of several brokers -------------------------------------------------------------------------------------


@pytest.fixture
def cluster(data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return the log directories of broker 10, in the data directory, and of a third broker elsewhere; broker 0 also
    has one.
    """
    elsewhere = tmp_path / "elsewhere"
    for copy in (data / "brokers" / "10", elsewhere):
        shutil.copytree(data / "brokers" / "0", copy)
    return data / "brokers" / "10", elsewhere


def test_each_brokers_journal_is_compared_by_itself(data, cluster):
    _, elsewhere = cluster
    assert checks(data) == checks(data, "--log-directory", elsewhere) == set()
    (journal,) = (elsewhere / "journal").iterdir()
    flip_bit(max(journal.glob("*.log")), 200)
    assert checks(data) == set()
    found = logstore("topic", "verify", "--data", data, "--log-directory", elsewhere, code=1)
    assert str(journal) in found.stderr
    assert found.stderr.count("The tables were not compared with it") == 1


def test_journals_are_dumped_and_verified_one_after_the_other(data, cluster):
    follower, elsewhere = cluster
    journals = [data / "brokers" / "0" / "journal" / "0", follower / "journal" / "0"]
    told = json.loads(logstore("journal", "verify", "--data", data, "--json", code=0).stdout)
    assert [one["directory"] for one in told] == [str(journal) for journal in journals]
    lines = logstore("journal", "dump", data, code=0).stdout.splitlines()
    assert [line for line in lines if line.startswith("Journal ")] == [f"Journal {journal}" for journal in journals]
    rows = [json.loads(line) for line in logstore("journal", "dump", data, "--json", code=0).stdout.splitlines()]
    assert {row["journal"] for row in rows} == {str(journal) for journal in journals}
    refused = logstore("journal", "dump", data, "--records", code=1).stderr
    assert "There are journals of 2 brokers: name the one whose records are wanted" in refused
    of_one = logstore("journal", "dump", elsewhere, "--records", "--json", code=0).stdout
    assert of_one
    assert "There are journals of 2 brokers" in logstore("journal", "repair", data, "--yes", code=1).stderr
    assert "is good" in logstore("journal", "repair", elsewhere, "--yes", code=0).stdout


@pytest.fixture
def recorded(data: Path, tmp_path: Path) -> Path:
    """Return the log directory of broker 1, which is outside the data directory; broker 0 has a replica inside."""
    elsewhere = tmp_path / "disk" / "one" / "logs"
    shutil.copytree(data / "brokers" / "0", elsewhere)
    cluster_id = checked_file.read(FileSystem(), data / "cluster.json", "restore it")["cluster_id"]
    LogDirectory(uuid.uuid4(), None, str(cluster_id), 1, 0).begun(elsewhere, local_filesystem(), 0)
    record_log_directory(local_filesystem(), data, 1, elsewhere)
    return elsewhere


def test_journals_that_brokers_have_elsewhere_are_seen_without_being_named(data, recorded):
    journal = recorded / "journal" / "0"
    told = json.loads(logstore("journal", "verify", "--data", data, "--json", code=0).stdout)
    assert [one["directory"] for one in told] == [str(data / "brokers/0/journal/0"), str(journal)]
    assert TOPIC in logstore("journal", "dump", data, code=0).stdout.split(f"Journal {journal}")[1]
    sizes = {check.name: check.found for check in check_journals(data, data / "brokers" / "0")}
    assert sizes.keys() == {"journal of broker 0", "journal of broker 1"}
    assert len({*sizes.values()} - {"0 B"}) == 1
    flip_bit(max(journal.glob("*.log")), 200)
    assert str(journal) in logstore("topic", "verify", "--data", data, code=1).stderr
    assert str(journal) in logstore("journal", "verify", "--data", data, code=1).stderr


def test_a_repair_of_a_journal_elsewhere_knows_the_tables(data, recorded, monkeypatch):
    journal = recorded / "journal" / "0"
    flip_bit(max(journal.glob("*.log")), 200)
    monkeypatch.setenv("LOGSTORE_DATA", str(data))
    for arguments in ((journal, "--data", data), (recorded,)):
        shown = logstore("journal", "repair", *arguments, code=2).stdout
        assert re.search(rf"^{TOPIC} +0 .* sealed at 30 +offsets 30 to 39$", shown, re.MULTILINE), shown
    assert not list(recorded.parents[1].glob("lock"))
    lock = LockFile.acquire(journal, FileSystem())
    try:
        for arguments in (("journal", "repair", recorded), ("topic", "rebuild", TOPIC, "--data", data)):
            assert f"A store is running on {data}" in logstore(*arguments, code=1).stderr
        assert check_data(data).found.endswith("a store runs on it")
    finally:
        lock.release()


@pytest.mark.parametrize("is_mount", [True, False])
@pytest.mark.parametrize("in_cluster", [True, False])
def test_a_journal_that_is_not_there_is_missed(data, is_mount, in_cluster):
    home = data / "brokers" / "0"
    if in_cluster:
        cluster_id = str(checked_file.read(FileSystem(), data / "cluster.json", "restore it")["cluster_id"])
        known = OneNodeDirectory.open(home, FileSystem())
        LogDirectory(known.directory_id, known.durable_end, cluster_id, 0, 0).begun(home, local_filesystem(), 0)
        (home / "broker.json").unlink()
    shutil.rmtree(home / "journal")
    if is_mount:
        (home / "journal").mkdir()
    assert "it has no files" in logstore("topic", "verify", "--data", data, code=1).stderr
    shutil.rmtree(data / "topics" / TOPIC / "_delta_log")
    assert "it has no files" in logstore("topic", "rebuild", TOPIC, "--data", data, "--yes", code=1).stderr
    with pytest.raises(JournalDiffersError, match="it has no files"):
        _tails([home], cluster_id) if in_cluster else require_no_journal(home)
    record_log_directory(local_filesystem(), data, 0, data.parent)  # the broker has moved it to log.dirs
    require_no_journal(home)


def test_a_journal_that_is_out_of_reach_is_named(data, recorded, tmp_path):
    away = recorded.rename(tmp_path / "away")
    where = f"broker 1 has its log directory on {socket.gethostname()} ({recorded}): here it is not"
    for arguments in (("topic", "verify"), ("journal", "verify"), ("journal", "dump")):
        assert where in logstore(*arguments, "--data", data, code=0).stderr
    check = list(check_journals(data, data / "brokers" / "0"))[-1]
    assert (check.name, check.status, check.found) == ("journal of broker 1", Status.warn, where)
    assert logstore("topic", "verify", "--data", data, "--log-directory", away, code=0).stderr == ""
    shutil.rmtree(data / "topics" / TOPIC / "_delta_log")
    rebuild = ("topic", "rebuild", TOPIC, "--data", data, "--yes")
    refused = logstore(*rebuild, code=1).stderr
    assert where in refused
    assert "Name it with --log-directory" in refused
    assert not (data / "topics" / TOPIC / "_delta_log").exists()
    assert f"Rebuilt topic {TOPIC}" in logstore(*rebuild, "--log-directory", away, code=0).stdout
