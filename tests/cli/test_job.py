"""``logstore job``: its arguments, output and exit codes. No store runs, and no Spark."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from logstore.cli.app import app
from logstore.client.admin import Admin
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.server_process import ServerProcess

DAY_MS = 86_400_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Create topics ``web-a`` and ``web-b`` with two segments each, of which retention keeps one, and compacted
    ``users``.
    """
    for name in ("web-a", "web-b"):
        topic = KeyedTopic.create(tmp_path / "data", name, retention_bytes=1)
        topic.roll({0: [Record(b"k", bytes(50), 0)] * 5})
        topic.roll({0: [Record(b"k", bytes(50), 0)] * 5})
    KeyedTopic.create(tmp_path / "data", "users", cleanup_policy="compact")
    return tmp_path / "data"


@pytest.fixture
def job(data: Path) -> Callable[..., Result]:
    def job(*arguments: str, code: int = 0, data: Path = data) -> Result:
        runner = CliRunner(env={"LOGSTORE_URL": ""})
        result = runner.invoke(app, ["job", *arguments, "--data", str(data)], prog_name="logstore")
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return job


def test_the_summary_is_a_table(job):
    result = job("retention")
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        "topic",
        "web-a",
        "web-b",
        "retention",
        "users:",
    ]
    assert "2 → 1" in result.stdout
    assert "nothing to do in 1 of 3 topics" in result.stdout
    assert "web-a: removing 1 segments" in result.stderr
    assert "nothing to do in 3 of 3 topics" in job("retention").stdout


def test_the_summary_as_json(job):
    result = job("retention", "--topic", "web-*", "--json")
    report = json.loads(result.stdout)
    assert (report["job"], report["dry_run"]) == ("retention", False)
    assert [topic["topic"] for topic in report["topics"]] == ["web-a", "web-b"]
    for topic in report["topics"]:
        assert (topic["before"]["segments"], topic["after"]["segments"]) == (2, 1)
        assert (topic["before"]["records"], topic["after"]["records"]) == (10, 5)
        assert topic["before"]["bytes"] > topic["after"]["bytes"] > 0
        assert topic["partitions"] == [0]
        assert topic["versions"] == [3]
        assert topic["seconds"] >= 0
        assert topic["error"] is None


def test_a_dry_run_changes_nothing(job):
    assert "would be done" in job("retention", "--dry-run").stdout
    assert "2 → 1" in job("retention", "--dry-run").stdout
    assert "nothing to do in 3 of 3 topics" in job("compact", "--dry-run").stdout
    assert "nothing to do in 3 of 3 topics" in job("vacuum", "--dry-run").stdout


def test_the_reasons_why_nothing_was_done(job, data):
    job("retention")
    why = job("retention").stdout.splitlines()
    assert why[1].startswith("users: cleanup.policy is compact")
    assert why[2].startswith(
        "web-a, web-b: the oldest segment (offsets 5 to 9) stays: retention.bytes=1 keeps it until"
    )
    assert job("compact").stdout.splitlines()[1:] == [
        "users: it has no segments with records; only what is rolled can be compacted",
        "web-a, web-b: cleanup.policy is delete: keys are not compacted",
    ]
    users, web_a, _ = json.loads(job("retention", "--json").stdout)["topics"]
    assert [w["reason"] for w in users["waiting"]] == ["policy"]
    (waiting,) = web_a["waiting"]
    assert (data / "topics/web-a" / waiting["segment"]).is_file()
    assert (waiting["partition"], waiting["due_ms"], waiting["unrolled_records"]) == (0, None, None)


def test_vacuum_reports_the_files_that_wait(job):
    job("retention", "-t", "web-a")
    why = job("vacuum", "-t", "web-*").stdout.splitlines()
    assert re.match(
        r"web-a: 1 file of [\d,]+ bytes left the table; file.delete.delay.ms=604800000 lets them go", why[1]
    )
    assert why[2] == "web-b: every file on disk is in the table"
    (waiting,) = json.loads(job("vacuum", "-t", "web-a", "--json").stdout)["topics"][0]["waiting"]
    assert 6.9 * DAY_MS < waiting["due_ms"] - time.time() * 1000 < 7.1 * DAY_MS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["retention", "--topic", "nothing"], "There is no topic 'nothing' in {data}"),
        (["vacuum", "-t", "web-a", "-t", "nix-*"], "There is no topic that matches 'nix-*' in {data}"),
        (["compact", "--topic", "web-a"], "Topic 'web-a' is not compacted: its cleanup.policy is delete"),
    ],
)
def test_bad_input_is_one_line_and_does_nothing(job, data, arguments, message):
    result = job(*arguments, code=2)
    assert result.stderr == f"logstore: {message.format(data=data)}\n"
    assert result.stdout == ""


def test_a_directory_without_topics_is_no_data_directory(job, tmp_path):
    result = job("retention", code=2, data=tmp_path)
    assert result.stderr == f"logstore: {tmp_path} is not a store's data directory: there is no {tmp_path / 'topics'}\n"


def test_a_glob_passes_over_what_is_not_compacted(job):
    assert "nothing to do in 3 of 3 topics" in job("compact", "--topic", "*").stdout


def test_a_topic_that_fails_is_named_and_ends_it_with_1(job, data):
    (data / "topics" / "web-a" / "_delta_log" / f"{1:020d}.json").write_text("{")
    result = job("retention", code=1)
    assert any(line.startswith("web-a: ") for line in result.stdout.splitlines())
    assert "web-b" in result.stdout


def test_a_store_that_does_not_answer_is_only_mentioned(job):
    result = job("retention", "--url", "http://127.0.0.1:9")
    assert "the store was not notified" in " ".join(result.stderr.split())


@pytest.mark.system
def test_the_store_on_the_directory_shows_what_was_done_at_once(job, data):
    """Run the job without --url: it finds the store, which without the job would look seconds later."""
    with ServerProcess(data) as store, Admin(store.url) as admin, httpx.Client(base_url=store.url) as http:

        def status_of_first_record() -> int:
            query = "offset=0&max_bytes=1000&max_wait_ms=0"
            headers = {"Accept": "application/vnd.kafka.binary.v2+json"}
            return http.get(f"/topics/web-a/partitions/0/records?{query}", headers=headers).status_code

        assert status_of_first_record() == 200
        assert http.post("/topics/users", json={"records": [{"key": "k", "value": 1}]}).status_code == 200
        job("retention")
        assert status_of_first_record() == 416
        assert [admin.offsets(name, 0).beginning_offset for name in ("web-a", "web-b")] == [5, 5]
        assert "; 1 record of the topic is not rolled yet" in job("compact", "-t", "users").stdout
