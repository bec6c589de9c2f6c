import json
import os
import socket

import psutil
import pytest
from typer.testing import CliRunner

from logstore import __version__
from logstore.cli.app import app

pytestmark = pytest.mark.system


def test_the_status_of_a_running_store(run, run_json, server, topic):
    run("produce", topic, input="a\nb\n")
    found = run_json("status")
    assert (found["version"], found["broker_id"], found["not_ready_reason"]) == (__version__, 0, None)
    (listed,) = [entry for entry in found["topics"] if entry["name"] == topic]
    assert (listed["partitions"], listed["records"], listed["unsealed_records"]) == (2, 2, 2)
    lines = run("status").stdout.splitlines()
    assert lines[0] == f"Store at {server.url}: ready"
    rows = {line[:12].strip(): line[12:] for line in lines[2:]}
    assert rows["cluster id"] == found["cluster_id"]
    users = [entry for entry in found["topics"] if not entry["is_internal"]]
    assert rows["topics"].startswith(f"{len(users)} (")
    assert int(rows["records"].replace(",", "")) >= 2
    assert rows["journal"].endswith(" of 4.0 GiB")
    assert rows["problems"] == "none"


def test_the_server_has_no_pandas_in_memory(run, server, topic):
    run("produce", topic, input="a\n")
    mapped = [found.path for found in psutil.Process(server.process.pid).memory_maps()]
    assert [path for path in mapped if "pyarrow" in path]
    assert not [path for path in mapped if "pandas" in path]


@pytest.fixture
def complete(server):
    """Return the completions that a shell offers for the last of ``words``."""

    def complete(*words: str, **environment: str) -> list[str]:
        variables = {
            "LOGSTORE_URL": server.url,
            "_LOGSTORE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("logstore", *words)),
            "COMP_CWORD": str(len(words)),
            **environment,
        }
        return CliRunner(env=variables).invoke(app, prog_name="logstore").stdout.split()

    return complete


def test_names_come_from_the_running_store(complete, run, topic, monkeypatch):
    # A shell does not wait for a slow store; this test does.
    monkeypatch.setattr("logstore.command_line.options._COMPLETION_MS", 30_000)
    run("group", "reset", f"g-{topic}", "--topic", topic, "--to-latest")
    for command in (["topic", "describe"], ["consume"], ["produce"], ["group", "reset", "g", "--topic"]):
        assert complete(*command, topic[:-3]) == [topic]
    assert complete("group", "describe", f"g-{topic[:-3]}") == [f"g-{topic}"]
    assert complete("topic", "describe", "__") == []
    assert complete("topic", "descr") == ["describe"]
    assert complete("consume", topic, "--format", "key") == ["key-value"]
    run("group", "delete", f"g-{topic}", "--yes")


def test_profiles_are_completed(complete, run):
    run("profile", "set", "staging", "url=a:1")
    assert complete("profile", "use", "st") == ["staging"]
    assert complete("--profile", "st") == ["staging"]


def test_without_a_store_nothing_is_offered_and_nothing_is_said(complete):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # This server takes the connection and never answers.
        assert complete("consume", "t", LOGSTORE_URL=f"127.0.0.1:{silent.getsockname()[1]}") == []
    assert complete("consume", "t", LOGSTORE_URL="127.0.0.1:1") == []
    assert complete("consume", "t", LOGSTORE_PROFILE="absent", LOGSTORE_URL="") == []


def test_completion_can_be_installed():
    result = CliRunner().invoke(app, ["--help"])
    assert "--install-completion" in result.output


@pytest.mark.long
def test_the_log_level_is_an_option_of_serve(start, tmp_path):
    environment = {**os.environ, "LOGSTORE_LOG_LEVEL": "debug"}
    serve = start("serve", "--log-level", "error", "--data", tmp_path / "data", "--port", 0, env=environment)
    assert b"listening on" in serve.stdout.readline()
    serve.terminate()
    assert serve.communicate(timeout=60)[1] == b""


@pytest.mark.long
def test_the_settings_choose_the_form_of_log_lines(start, tmp_path):
    environment = {**os.environ, "LOGSTORE_LOG_FORMAT": "json"}
    serve = start("serve", "--data", tmp_path / "data", "--port", 0, env=environment)
    assert b"listening on" in serve.stdout.readline()
    serve.terminate()
    events = [json.loads(line)["event"] for line in serve.communicate(timeout=60)[1].splitlines()]
    assert "broker.stopped" in events
