import re
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from logstore import __version__
from logstore.cli.app import app
from tests.support.server_process import ROOT

COMMANDS = [
    ["serve"],
    ["topic", "create"],
    ["topic", "list"],
    ["topic", "describe"],
    ["topic", "alter"],
    ["topic", "delete"],
    ["topic", "roll"],
    ["topic", "delete-records"],
    ["produce"],
    ["consume"],
    ["journal", "dump"],
    ["journal", "verify"],
    ["journal", "repair"],
    ["segment", "dump"],
    ["doctor"],
    ["status"],
    ["group", "list"],
    ["group", "describe"],
    ["group", "reset"],
    ["group", "delete"],
    ["profile", "list"],
    ["profile", "set"],
    ["profile", "use"],
    ["profile", "show"],
    ["profile", "delete"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"  logstore {' '.join(command)}" in result.output
    for line in re.findall(r"^  (?:-\S+, )?--\S+.*", result.output, re.MULTILINE):
        assert len(line.split()) > 1


def test_version():
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith(f"logstore {__version__} (")


@pytest.mark.system
def test_help_imports_nothing_heavy():
    heavy = {"pyarrow", "httpx", "fastapi", "pyspark", "deltalake", "pydantic_settings", "rich.table", "numpy"}
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom logstore.cli.app import app\n"
        "CliRunner().invoke(app, ['topic', '--help'])\n"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic", "create"],
        ["topic", "create", "t", "--partitions", "many"],
        ["topic", "create", "t", "--config", "retention.ms"],
        ["topic", "create", "t", "-c", "a=1", "-c", "a=2"],
        ["topic", "alter", "t"],
        ["topic", "alter", "t", "-c", "a=1", "-d", "a"],
        ["topic", "delete-records", "t"],
        ["produce", "t", "--key-raw"],
        ["produce", "t", "--acks", "2"],
        ["produce", "t", "--compression", "rar"],
        ["produce", "t", "."],
        ["produce", "t", "--format", "parquet"],
        ["produce", "t", "--value-field", "v"],
        ["produce", "t", "--format", "csv", "--partition", "0", "--partition-field", "p"],
        ["produce", "t", "--rate", "0"],
        ["consume", "t", "--from-beginning", "--offset", "1"],
        ["consume", "t", "--format", "xml"],
        ["consume", "t", "--tail", "-1"],
        ["consume", "t", "--tail", "1", "--offset", "1"],
        ["consume", "t", "--from-timestamp", "soon"],
        ["consume", "t", "--to-timestamp", "2026-13-01"],
        ["consume", "t", "--to-timestamp", "now", "--to-offset", "1"],
        ["consume", "t", "--follow", "--to-offset", "1"],
        ["consume", "t", "--json", "--pretty"],
        ["consume", "t", "-f", "%z"],
        ["consume", "t", "-f", "%s\\q"],
        ["consume", "t", "-f", "100%"],
        ["profile", "use"],
        ["profile", "use", "a", "--none"],
        ["profile", "set", "a", "url"],
        ["serve", "--log-level", "loud"],
        ["journal", "verify", "a", "--data", "b"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_says_why(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    "arguments", [["topic", "list"], ["produce", "t"], ["consume", "t"], ["topic", "roll", "t"]], ids=" ".join
)
def test_no_store_is_one_line_that_says_how_to_start_one(arguments):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner(env={"LOGSTORE_URL": url}).invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"logstore: No store answers at {url} ")
    told = "; start one with: logstore serve, or name another one with --url or LOGSTORE_URL\n"
    assert result.stderr.endswith(told)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["topic", "list"], ["produce", "t"]], ids=" ".join)
def test_a_host_that_there_is_not_is_nothing_to_start(arguments):
    result = CliRunner(env={"LOGSTORE_URL": "no-such-host.invalid:8082"}).invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("logstore: There is no such host: http://no-such-host.invalid:8082 (")
    assert "start one" not in result.stderr


@pytest.mark.parametrize(
    ("before", "after", "variable", "used"),
    [
        (None, None, "127.0.0.1:1", "127.0.0.1:1"),
        ("127.0.0.1:2", None, "127.0.0.1:1", "127.0.0.1:2"),
        ("127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:1", "127.0.0.1:3"),
    ],
)
def test_the_nearest_url_wins(before, after, variable, used):
    arguments = [*(["--url", before] if before else []), "topic", "list", *(["--url", after] if after else [])]
    result = CliRunner(env={"LOGSTORE_URL": variable}).invoke(app, arguments)
    assert f"No store answers at http://{used} " in result.stderr


def test_a_url_that_is_none_is_an_error_of_one_line():
    result = CliRunner().invoke(app, ["topic", "list", "--url", "localhost"])
    assert result.exit_code == 1
    assert "has no port" in result.stderr


def test_the_page_names_every_command_and_option():
    page = (ROOT / "docs" / "cli.md").read_text()
    for command in COMMANDS:
        assert f"    logstore {' '.join(command)}" in page
        text = CliRunner().invoke(app, [*command, "--help"]).output
        options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)) - {"--help", "--url", "--json"}
        assert not [option for option in options if option not in page]
