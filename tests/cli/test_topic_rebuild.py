"""``topic rebuild`` repairs data directories whose Delta log is damaged or lost, so that a store serves them again."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from logstore.cli.app import app
from logstore.delta.topic_table import TopicTable
from logstore.filesystem import FileSystem
from logstore.table_root import open_root
from tests.support.data_directory import lose_journal
from tests.support.small_store import TOPIC, Records, small_store, stored


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Records]:
    data = tmp_path_factory.mktemp("whole") / "data"
    return data, small_store(data, **{"retention.ms": "777000000"})


@pytest.fixture
def data(whole: tuple[Path, Records], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "data"))


def logstore(*arguments: object, code: int = 0, input: str | None = None) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="logstore", input=input)
    assert result.exit_code == code, result.output
    return result


def rebuild(data: Path, *arguments: object, code: int = 0) -> Result:
    return logstore("topic", "rebuild", TOPIC, "--data", data, *arguments, code=code)


def log_directory(data: Path) -> Path:
    return data / "topics" / TOPIC / "_delta_log"


def damage_log(data: Path) -> None:
    entry = sorted(log_directory(data).glob("*.json"))[1]
    entry.write_bytes(entry.read_bytes().replace(b'"size":', b'"size":1'))


def topic_id_of(data: Path) -> str:
    return str(TopicTable.open(open_root(data).open(TOPIC)).snapshot().topic_id)


def test_a_damaged_log(data, whole):
    damage_log(data)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "lock"}
    planned = rebuild(data, "--dry-run").stdout
    assert "2 partitions" in planned
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "lock"} == before
    done = rebuild(data, "--yes").stdout
    assert "_delta_log.set-aside" in done
    logstore("topic", "verify", TOPIC, "--data", data)
    assert stored(data) == whole[1]
    assert TopicTable.open(open_root(data).open(TOPIC)).snapshot().config_overrides == {"retention.ms": "777000000"}


def test_a_lost_log(data, whole):
    """Take the id from the journal, which has records of one topic without a table."""
    topic_id = topic_id_of(data)
    shutil.rmtree(log_directory(data))
    planned = rebuild(data, "--dry-run").stdout
    assert planned == rebuild(data, "--dry-run").stdout
    assert f"Topic {TOPIC}, id {topic_id}" in planned
    assert "new id" not in planned
    answer = json.loads(rebuild(data, "--yes", "--json").stdout)
    assert (answer["rebuilt"], answer["old_log"], answer["problems"]) == (True, None, [])
    assert [part["sealed"] for part in answer["plan"]["partitions"]] == [30, 30]
    assert stored(data) == whole[1]


def test_the_id_is_asked_for_where_it_may_be_another_topics(data, whole):
    """Copy the table, so that the id is ambiguous: the refusal has the whole command to use."""
    topic_id = topic_id_of(data)
    shutil.copytree(data / "topics" / TOPIC, data / "topics" / "other")
    shutil.rmtree(data / "topics" / "other" / "_delta_log")
    shutil.rmtree(log_directory(data))
    refused = rebuild(data, "--config", "retention.ms=777000000", code=1)
    assert "id not known" in refused.stdout
    assert "new id" not in refused.stdout
    (command,) = (line for line in refused.stderr.splitlines() if line.startswith("  logstore "))
    assert topic_id in command
    assert not log_directory(data).exists()
    logstore(*shlex.split(command)[1:], "--yes")
    assert stored(data) == whole[1]


def test_a_topic_whose_offsets_do_not_agree_is_not_taken_for_it(data, tmp_path):
    """Use a journal whose topic ends before the files do."""
    shutil.rmtree(log_directory(data))
    small_store(other := tmp_path / "other", rolls=1)
    shutil.rmtree(data / "brokers")
    shutil.copytree(other / "brokers", data / "brokers")
    refused = rebuild(data, code=1)
    assert "--topic-id" in refused.stderr


def test_the_id_of_another_topic_is_refused(data):
    shutil.copytree(data / "topics" / TOPIC, data / "topics" / "other")
    topic_id = topic_id_of(data)
    shutil.rmtree(log_directory(data))
    assert "is the id of topic other" in rebuild(data, "--yes", "--topic-id", topic_id, code=1).stderr


def test_a_new_id_leaves_the_tail_behind(data, whole):
    shutil.rmtree(log_directory(data))
    rebuild(data, "--yes", "--topic-id", "new")
    assert stored(data) == {partition: found[:30] for partition, found in whole[1].items()}


def test_a_segment_of_which_the_journal_has_the_records_is_rolled_again(data, whole):
    damage_log(data)
    max((data / "topics" / TOPIC / "partition=0").iterdir()).unlink()
    answer = json.loads(rebuild(data, "--yes", "--json").stdout)
    assert [part["sealed"] for part in answer["plan"]["partitions"]] == [20, 30]
    assert stored(data) == whole[1]


def test_records_that_nothing_has_are_asked_for(data, whole):
    damage_log(data)
    lose_journal(data)
    sorted((data / "topics" / TOPIC / "partition=0").iterdir())[1].unlink()
    refused = rebuild(data, "--yes", code=1).stderr
    assert "partition 0: no readable file stands for offsets 10 to 19" in refused
    rebuild(data, "--yes", "--give-up-missing")
    expected = {0: whole[1][0][:10] + whole[1][0][20:30], 1: whole[1][1][:30]}
    assert stored(data) == expected


def test_a_rebuild_that_was_cut_short_is_taken_up(data, whole):
    damage_log(data)
    log_directory(data).rename(log_directory(data).with_name("_delta_log.set-aside"))
    assert "cut short" in rebuild(data, "--dry-run", code=1).stderr
    rebuild(data, "--yes")
    assert stored(data) == whole[1]


def test_it_is_refused_where_there_is_nothing_to_rebuild(data):
    assert "nothing to rebuild" in rebuild(data, "--yes", code=1).stderr
    damage_log(data)
    assert "--yes" in rebuild(data, code=2).stderr
    assert "There is no topic 'x'" in logstore("topic", "rebuild", "x", "--data", data, code=1).stderr


def test_a_store_that_runs_is_in_the_way(data):
    from logstore.lock_file import LockFile

    damage_log(data)
    lock = LockFile.acquire(data, FileSystem())
    assert "A store is running" in rebuild(data, "--yes", code=1).stderr
    lock.release()


def test_the_journal_must_be_whole(data):
    damage_log(data)
    (file,) = data.glob("brokers/0/journal/0/*.log")
    content = bytearray(file.read_bytes())
    content[300] ^= 1
    file.write_bytes(content)
    assert "logstore journal repair" in rebuild(data, "--yes", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--topic-id", "me"], "no id"),
        (["--log-start", "0"], "PARTITION=OFFSET"),
        (["--log-start", "0=1", "--log-start", "0=2"], "given twice"),
        (["--config", "x"], "KEY=VALUE"),
        (["--partitions", 0], "--partitions"),
    ],
)
def test_bad_arguments_are_reported(data, arguments, reason):
    assert reason in rebuild(data, *arguments, code=2).stderr


def test_a_configuration_that_there_is_not(data):
    damage_log(data)
    assert "did you mean" in rebuild(data, "--config", "retention.m=1", code=1).stderr
