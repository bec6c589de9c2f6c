"""The abilities of an installation without extras, and with each; ``make test-wheel`` tries the wheel itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.support.extras import distributions
from tests.support.server_process import ROOT, ServerProcess

pytestmark = pytest.mark.long

COMMANDS = """
import json, sys
from tests.support.extras import hide_all_but
hide_all_but()
import logstore
from logstore import Admin, Consumer, Producer, TopicPartition
from typer.testing import CliRunner
from logstore.cli.app import app
for arguments, given in json.load(sys.stdin):
    result = CliRunner().invoke(app, arguments, input=given, prog_name="logstore")
    print(json.dumps([arguments, result.exit_code, result.stdout, result.stderr]))
"""


def run_without_extras(url: str, commands: list[tuple[list[str], str]], directory: Path) -> list[tuple[int, str, str]]:
    """Return exit code, stdout and stderr of each command with its input, in a process with only the dependencies."""
    ran = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(commands),
        env={"PYTHONPATH": str(ROOT), "LOGSTORE_URL": url},
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [arguments for arguments, *_ in found] == [arguments for arguments, _ in commands]
    return [(code, out, err) for _, code, out, err in found]


def test_the_client_and_its_commands_need_no_extra(server: ServerProcess, topic: str, tmp_path: Path):
    (tmp_path / "records.csv").write_text("key,value\nk,from csv\n")
    commands = [
        (["--help"], ""),
        *(
            ([command, "--help"], "")
            for command in ("serve", "topic", "produce", "consume", "group", "job", "doctor", "status")
        ),
        (["topic", "create", f"{topic}-2"], ""),
        (["produce", topic, "--key-field", "user"], '{"user": "ada"}\n'),
        (["produce", topic, "records.csv", "--key-field", "key", "--compression", "zstd"], ""),
        (["topic", "roll", topic], ""),
        *(
            (["consume", topic, "--from-beginning", "--group", f"{topic}-{suffix}", "--output", f"out.{suffix}"], "")
            for suffix in ("ndjson", "csv", "parquet")
        ),
        (["group", "describe", f"{topic}-csv"], ""),
        (["topic", "describe", topic], ""),
        (["status"], ""),
        (["doctor", "--url", server.url], ""),
        (["profile", "list"], ""),
        (["topic", "delete", f"{topic}-2", "--yes"], ""),
    ]
    for (arguments, _), (code, _, err) in zip(
        commands, run_without_extras(server.url, commands, tmp_path), strict=True
    ):
        assert code == 0, (arguments, err)
    assert len((tmp_path / "out.ndjson").read_text().splitlines()) == 2


def test_a_command_that_needs_an_extra_says_so_in_one_line(tmp_path: Path):
    (tmp_path / "segment.parquet").touch()
    server = "logstore: this command needs the server: pip install 'delta-logstore[server]'\n"
    tables = "logstore: this command needs the packages for tables: pip install 'delta-logstore[delta]'\n"
    expected = {
        ("serve",): server,
        ("journal", "verify", "."): server,
        ("segment", "dump", "segment.parquet"): server,
        ("job", "retention", "--data", "."): tables,
    }
    ran = run_without_extras("http://127.0.0.1:1", [(list(command), "") for command in expected], tmp_path)
    assert ran == [(1, "", line) for line in expected.values()]


def test_doctor_reports_what_a_client_lacks(tmp_path: Path):
    ((code, out, err),) = run_without_extras(
        "http://127.0.0.1:1", [(["doctor", "--data", ".", "--json"], "")], tmp_path
    )
    assert (code, err) == (0, "")
    checks = {check["name"]: check for check in json.loads(out)}
    assert (checks["server"]["status"], checks["server"]["found"]) == ("warn", "not installed")
    assert "pip install 'delta-logstore[server]'" in checks["server"]["advice"]


@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        ("server", ["ingest_api", "consumer_offsets.group_coordinator", "logstore.inspection.journal"]),
        ("cluster", ["logstore.cluster.zookeeper_cluster_state", "logstore.cluster.zookeeper_server", "ingest_api"]),
        ("spark", ["compaction_jobs.applications", "logstore.spark.jars", "logstore.settings"]),
        ("delta", ["compaction_jobs.jobs", "logstore.spark", "logstore.delta.topic_table", "logstore.settings"]),
    ],
)
def test_an_extra_brings_what_its_packages_import(extra: str, modules: list[str]):
    code = f"from tests.support.extras import hide_all_but\nhide_all_but({extra!r})\nimport {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_the_locked_packages_of_the_server_are_those_of_the_lock(lock_files: tuple[set[str], set[str]]):
    of_server, of_all = lock_files
    assert of_server <= of_all
    named = {canonicalize_name(pin.partition("==")[0]) for pin in of_server}
    assert named >= distributions("cluster"), "run `make lock`"
    assert not named & {"pyspark", "pandas", "pytest"}


@pytest.fixture
def lock_files() -> tuple[set[str], set[str]]:
    """Return ``name==version`` of each package, without the rest of the line."""

    def pins(name: str) -> set[str]:
        return {line.split()[0] for line in (ROOT / name).read_text().splitlines() if "==" in line[:80]}

    return pins("conf/server.lock"), pins("requirements.lock")
