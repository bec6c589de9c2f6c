"""``journal repair`` on the journals of small data directories: a later start lacks exactly what it reports as lost."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from logstore.cli.app import app
from logstore.cluster.log_directory import LogDirectory, OneNodeDirectory
from logstore.cluster.registration import write_cluster_file
from logstore.filesystem import FileSystem
from logstore.inspection.journal import dump
from logstore.journal.frame import HEADER_BYTES
from tests.support.small_store import TOPIC, Records, small_store, stored


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Records]:
    """Create three rolls of 10 records in each of two partitions, and then 10 that only the journal has."""
    data = tmp_path_factory.mktemp("whole") / "data"
    return data, small_store(data)


@pytest.fixture
def data(whole: tuple[Path, Records], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "data"))


def journal_of(data: Path) -> Path:
    return data / "brokers" / "0" / "journal" / "0"


def damage(data: Path, partition: int, offset: int) -> None:
    """Flip a byte in the payload of the first frame that has the offset."""
    journal = journal_of(data)
    row = next(
        row
        for row in dump(journal)
        if row.type == "DATA"
        and row.partition == partition
        and row.base_offset <= offset < row.base_offset + row.record_count
    )
    path = journal / row.file
    content = bytearray(path.read_bytes())
    content[row.position - int(path.stem) + HEADER_BYTES + 5] ^= 1
    path.write_bytes(content)


def repair(data: Path, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["journal", "repair", str(journal_of(data)), *arguments], prog_name="logstore")
    assert result.exit_code == code, result.output
    return result


def test_losses_are_listed_by_topic_before_the_question_and_are_what_a_start_lacks(data, whole):
    damage(data, 0, 32)
    asked = repair(data, code=2)
    row = next(line for line in asked.stdout.splitlines() if re.match(rf"{TOPIC} +0 ", line))
    assert "offsets 30 to 39" in row.split("sealed at 30")[1]
    answer = json.loads(repair(data, "--yes", "--json").stdout)
    lost = {one["partition"]: (one["topic"], one["first_offset"], one["end_offset"]) for one in answer["lost"]}
    assert lost == {0: (TOPIC, 30, 40), 1: (TOPIC, 30, 40)}
    assert stored(data) == {partition: found[:30] for partition, found in whole[1].items()}


def test_records_that_are_rolled_are_no_loss(tmp_path):
    """Damage frames of rolled records, which are still in the file."""
    records = small_store(data := tmp_path / "data", tail=False)
    damage(data, 0, 12)
    told = repair(data, "--yes").stdout
    assert "all, sealed at 30" in told
    assert "Nothing is lost" in told
    assert "Lost:" not in told
    assert stored(data) == records


def test_frames_before_the_damage_are_no_loss(data, whole):
    damage(data, 1, 35)
    answer = json.loads(repair(data, "--yes", "--json").stdout)
    lost = [(one["partition"], one["first_offset"], one["end_offset"]) for one in answer["lost"]]
    assert lost == [(1, 35, 40)]
    assert stored(data) == {0: whole[1][0], 1: whole[1][1][:35]}


def test_a_journal_without_its_tables_shows_ids_and_reports_everything_as_lost(data):
    damage(data, 0, 32)
    shutil.rmtree(data / "topics" / TOPIC)
    told = repair(data, "--yes").stdout
    assert "no table that can be read has this id" in told
    assert "Lost:" in told


@pytest.mark.parametrize("is_older", [True, False])
def test_a_damaged_journal_that_is_another_one_is_named_before_the_question(data, is_older):
    damage(data, 0, 32)
    home = data / "brokers" / "0"
    assert "was here before" not in repair(data, code=2).stderr
    known = OneNodeDirectory.open(home, FileSystem())
    other = replace(known, durable_end=10**9) if is_older else replace(known, directory_id=uuid4(), file_id=1)
    other.write(home, FileSystem())
    asked = repair(data, code=2).stderr
    assert "also not the one that was here before: it" in asked
    assert ("it ends at position" in asked) is is_older


def test_a_journal_whose_only_header_is_damaged_is_not_called_another_one(data):
    (path,) = journal_of(data).glob("*.log")
    content = bytearray(path.read_bytes())
    content[40] ^= 1  # the directory id
    path.write_bytes(content)
    asked = repair(data, code=2)
    assert "its header is damaged" in asked.stdout
    assert "was here before" not in asked.stderr


@pytest.mark.parametrize("in_cluster", [True, False])
def test_the_log_directory_is_only_to_be_removed_in_a_cluster(data, in_cluster):
    """Leave ``meta.json`` in a store of one node, as an unfinished migration does."""
    damage(data, 0, 32)
    home = data / "brokers" / "0"
    known = OneNodeDirectory.open(home, FileSystem())
    LogDirectory(known.directory_id, known.durable_end, "c", 0, 1).write(home, FileSystem())
    if in_cluster:
        write_cluster_file(FileSystem(), data, "c")
    assert ("Remove the log directory" in repair(data, code=2).stderr) is in_cluster
