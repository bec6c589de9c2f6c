import json
import socket
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from logstore.cli.app import app
from logstore.cli.checks import Status
from logstore.cli.doctor import check_java, check_port
from logstore.cli.store_checks import checks_of
from logstore.protocol.messages.status import InFlightStatus, JournalStatus, StoreStatus, TopicProblem
from tests.support.certificates import Certificates

pytestmark = pytest.mark.system


def checks(*arguments: object, code: int = 0) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(app, ["doctor", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return {check["name"]: check for check in json.loads(result.stdout)}


def test_a_machine_that_is_ready(tmp_path):
    found = checks("--data", tmp_path / "data", "--port", 0)
    assert found["Python"]["status"] == "ok"
    assert "does not exist yet" in found["data directory"]["found"]
    assert not (tmp_path / "data").exists()
    table = CliRunner().invoke(app, ["doctor", "--data", str(tmp_path / "data"), "--port", "0"])
    assert table.stdout.splitlines()[0].split()[:2] == ["check", "status"]


def test_a_store_that_runs_is_no_failure(server):
    port = server.url.rpartition(":")[2]
    found = checks("--data", server.data, "--port", port)
    assert found[f"port {port}"]["found"] == f"in use by this store, at {server.url}"
    count = found["topics"]["found"].partition(",")[0]  # without the store's internal topics, in both
    assert f": {count}, a store runs on it at {server.url}" in found["data directory"]["found"]
    assert found["store"]["found"].startswith(f"{server.url} is ready, version ")


def test_the_store_that_is_named_is_asked(server, run_json, topic, monkeypatch):
    found = checks("--url", server.url)
    assert found["store"]["found"].startswith(f"{server.url} is ready, version ")
    assert "topic" in found["topics"]["found"]
    assert "not yet in Delta" in found["journal of the store"]["found"]
    assert found["open files"]["status"] in ("ok", "warn")
    assert "data directory" not in found
    assert {check["name"] for check in run_json("doctor")} == set(found)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"127.0.0.1:{nobody.getsockname()[1]}"
    unreachable = checks("--url", url, code=1)["store"]
    assert unreachable["status"] == "fail"
    assert url in unreachable["found"]


def test_problems_of_a_store_are_reported():
    problem = TopicProblem("orders", 1, "quarantined", "two files overlap", "logstore topic delete orders")
    store = StoreStatus(
        "0.0",
        "cluster",
        0,
        0,
        0,
        "the disk is full",
        (),
        (problem,),
        JournalStatus(9, 10, 10),
        InFlightStatus(0, 0, 1),
        10_000,
        768,
        1024,
    )
    found = {check.name: check for check in checks_of(store, "here")}
    assert {name: check.status.value for name, check in found.items()} == {
        "store": "fail",
        "version": "warn",
        "topic orders-1": "fail",
        "journal of the store": "warn",
        "open files": "warn",
    }
    assert found["store"].found == "here is not ready: the disk is full"
    assert found["topic orders-1"].found == "quarantined: two files overlap"
    assert found["topic orders-1"].advice == "logstore topic delete orders"
    assert found["open files"].advice == "Raise it with ulimit -n 13334, or lower max.connections."


def test_a_port_that_somebody_else_has_fails(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = checks("--data", tmp_path, "--port", port, code=1)[f"port {port}"]
    assert found["status"] == "fail"
    assert "--port" in found["advice"]


def test_an_address_that_is_not_this_machines_fails():
    assert check_port("192.0.2.1", 0, None).status is Status.fail


def test_a_data_directory_that_is_a_file_fails(tmp_path):
    (tmp_path / "data").write_text("")
    assert checks("--data", tmp_path / "data", "--port", 0, code=1)["data directory"]["status"] == "fail"


@pytest.mark.parametrize(("days", "status"), [(90, "ok"), (3, "warn"), (-1, "fail")])
def test_the_certificate_of_the_settings_is_checked(tmp_path, monkeypatch, days, status):
    now = datetime.now(UTC)
    expires = now + timedelta(days=days)
    keystore = Certificates(tmp_path).keystore(not_before=now - timedelta(days=2), not_after=expires)
    monkeypatch.setenv("LOGSTORE_HTTP_TLS", "true")
    monkeypatch.setenv("LOGSTORE_SSL_KEYSTORE_LOCATION", str(keystore))
    found = checks("--data", tmp_path / "data", "--port", 0, code=int(status == "fail"))["certificate"]
    assert found["status"] == status
    assert f"{expires:%Y-%m-%d}" in found["found"]


def test_settings_that_do_not_fit_fail(tmp_path):
    runner = CliRunner(env={"LOGSTORE_LOG_SEGMENT_BYTES": "1", "LOGSTORE_JOURNAL_MAX_BYTES": "plenty"})
    result = runner.invoke(app, ["doctor", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "journal.max.bytes" in result.stdout


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("echo 'openjdk version \"17.0.15\" 2025-04-15' >&2", Status.ok),
        ("echo 'openjdk version \"21\" 2023-09-19' >&2", Status.ok),
        ("echo 'java version \"1.8.0_412\"' >&2", Status.fail),
        ("exit 1", Status.fail),
        (None, Status.fail),
    ],
)
def test_java_versions(tmp_path, monkeypatch, script, status):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if script is not None:
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = check_java()
    assert check.status is status
    assert bool(check.advice) == (status is not Status.ok)
