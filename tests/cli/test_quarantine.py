"""Each command's report of a topic and a partition that a store does not serve."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pytest
from typer.testing import CliRunner

from logstore.broker.context import INTERNAL
from logstore.cli.app import app
from tests.support.running_broker import produce, running_broker
from tests.support.server_process import ServerProcess
from tests.support.virtual_time import run

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve ``good``, ``part`` with a foreign file in partition 0, and ``bad`` with a property that is no number."""
    data = tmp_path_factory.mktemp("quarantine") / "data"

    async def fill() -> None:
        async with running_broker(data) as broker:
            for name in ("good", "part", "bad"):
                topic = await broker.topics.changes.create(INTERNAL, name, partitions=2)
                for partition in (0, 1):
                    await produce(broker, topic, [b"a", b"b"], partition=partition)
                await broker.topics.tables.roll(INTERNAL, topic)

    run(fill())
    _append_again(data / "topics" / "part")
    deltalake.DeltaTable(data / "topics" / "bad").alter.set_table_properties(
        {"logstore.partitions": "abc"}, raise_if_not_exists=False
    )
    with ServerProcess(data) as server:
        yield server.url


def _append_again(path: Path) -> None:
    table = deltalake.DeltaTable(path)
    rows = table.to_pyarrow_table(filters=[("partition", "=", 0)])
    deltalake.write_deltalake(table, rows, mode="append")


def logstore(url: str, *arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"LOGSTORE_URL": url}).invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stdout + result.stderr


@pytest.mark.long
def test_the_list_and_the_status_name_them_with_reason_and_remedy(url):
    listed = {entry["topic"]: entry for entry in json.loads(logstore(url, "topic", "list", "--json"))}
    assert (listed["good"]["records"], listed["good"]["problems"]) == (4, [])
    (problem,) = listed["part"]["problems"]
    assert (problem["partition"], problem["state"]) == (0, "foreign_file")
    assert listed["part"]["records"] == 4
    assert set(listed["bad"]) == {"topic", "problems"}
    rows = {line.split()[0]: line.split() for line in logstore(url, "topic", "list").splitlines() if line}
    assert rows["good"][-1] == "ago"
    assert rows["part"][-2:] == ["foreign", "file"]
    assert rows["bad"][-1] == "quarantined"
    for command in (["topic", "list"], ["status"], ["topic", "describe", "part"]):
        (line,) = [line for line in logstore(url, *command).splitlines() if line.startswith("part-0: ")]
        assert problem["remedy"] in line
        assert "is not served" in line


def test_doctor_fails_and_says_what_to_do(url):
    found = {check["name"]: check for check in json.loads(logstore(url, "doctor", "--json", code=1))}
    assert found["store"]["status"] == "ok"
    for name in ("topic bad", "topic part-0"):
        assert found[name]["status"] == "fail"
        assert found[name]["advice"]


def test_consume_reads_around_a_foreign_file_and_never_takes_a_refused_topic_for_an_empty_one(url):
    assert sorted(logstore(url, "consume", "part").split()) == ["a", "a", "b", "b"]
    assert logstore(url, "consume", "part", "-p", "0") == "a\nb\n"
    assert "Topic 'bad' is quarantined" in logstore(url, "consume", "bad", code=1)
    assert sorted(logstore(url, "consume", "good").split()) == ["a", "a", "b", "b"]


def test_a_topic_is_no_problem_any_more_once_the_foreign_files_are_out_of_its_table(url):
    def problems() -> list[str]:
        with urllib.request.urlopen(f"{url}/health/ready") as answer:  # 200, as others are served
            return [problem["topic"] for problem in json.load(answer)["problems"]]

    assert "part" in problems()
    (dropped,) = json.loads(logstore(url, "topic", "drop-foreign-files", "part", "--json"))["files"]
    assert dropped.startswith("partition=0/")
    assert "part" not in problems()
    assert sorted(logstore(url, "consume", "part").split()) == ["a", "a", "b", "b"]
    assert "no files of other writers" in logstore(url, "topic", "drop-foreign-files", "part")
    assert "Topic 'bad' is quarantined" in logstore(url, "topic", "drop-foreign-files", "bad", code=1)
