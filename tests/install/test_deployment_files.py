"""The Dockerfile, compose file and unit fit the store and each other, and their commands run a store."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.free_port import free_port
from ingest_api.http_listener import GRACEFUL_SHUTDOWN_SECONDS
from logstore.broker.roll_schedule import ROLL_AT_STOP_S
from logstore.listening_sockets import BACKLOG
from logstore.open_files import open_files_shortage
from logstore.settings import Settings, load_settings
from tests.support import deployment
from tests.support.server_process import ROOT

BUILD, RUNTIME = deployment.stages()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# The factor 2 leaves room for work that cannot be cut short: a roll's last commit, a slow disk's fsync.
STOP_SECONDS = 2 * (GRACEFUL_SHUTDOWN_SECONDS + ROLL_AT_STOP_S)
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def tool(name: str) -> str:
    found = shutil.which(name, path=TOOLS)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def seconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(s|m|min)", text).groups()
    return int(number) * (1 if unit == "s" else 60)


@pytest.mark.long
@pytest.mark.parametrize("file", ["Dockerfile", "logstore.service"])
def test_its_command_starts_a_store_whose_health_check_holds(file: str, tmp_path: Path):
    port, kafka_port = str(free_port()), str(free_port())
    places = {
        "/opt/logstore": str(Path(sys.executable).parents[1]),
        "0.0.0.0": "127.0.0.1",
        deployment.PORT: port,
        "/var/lib/logstore": str(tmp_path / "data"),
    }
    if file == "Dockerfile":
        command = deployment.placed(deployment.container_command(), places | {"/data": str(tmp_path / "data")})
        environment = {
            name: value.replace("0.0.0.0:9092", f"127.0.0.1:{kafka_port}").replace("9092", kafka_port)
            for name, value in deployment.container_environment().items()
        }
    else:
        command, environment = deployment.placed(deployment.unit_command(), places), {"LOGSTORE_PORT": port}
    check = deployment.placed(deployment.health_check(), places)
    assert subprocess.run(check, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 1
    with deployment.started(command, tmp_path, environment) as url:
        assert url == f"http://127.0.0.1:{port}"
        assert subprocess.run(check, timeout=60, check=False).returncode == 0
        endpoint = json.loads((tmp_path / "data/brokers/0/endpoint.json").read_text())
        assert endpoint.get("kafka") == (f"localhost:{kafka_port}" if file == "Dockerfile" else None)
        if file == "Dockerfile":
            (broker,) = AdminClient({"bootstrap.servers": endpoint["kafka"]}).list_topics(timeout=30).brokers.values()
            assert f"{broker.host}:{broker.port}" == endpoint["kafka"]
    assert (tmp_path / "data/cluster.json").exists()


def test_the_build_copies_what_it_needs_and_the_context_lets_it_through():
    allowed = {line[1:] for line in Path(f"{deployment.DOCKERFILE}.dockerignore").read_text().split() if line[0] == "!"}
    copied = {source for text in BUILD.all("COPY") for source in text.split()[:-1]}
    assert copied == allowed
    assert copied >= set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert copied >= {PROJECT["project"]["readme"], "pyproject.toml"}
    # A third-party licence is in the package that it is about.
    assert all(copied & {name, name.partition("/")[0]} for name in PROJECT["project"]["license-files"])
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"] in copied
    assert all((ROOT / source).exists() for source in copied)


def test_a_container_runs_as_nobody_special_with_its_data_in_the_volume():
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", RUNTIME.one("USER"))
    command = deployment.container_command()
    assert command[command.index("--data") + 1] == RUNTIME.one("VOLUME") == RUNTIME.one("WORKDIR")
    assert command[command.index("--port") + 1] == deployment.PORT
    assert RUNTIME.one("EXPOSE").split() == [deployment.PORT, deployment.KAFKA_PORT]
    settings = load_settings(
        **{name.removeprefix("LOGSTORE_").lower(): value for name, value in deployment.container_environment().items()}
    )
    assert settings.kafka_address == ("0.0.0.0", int(deployment.KAFKA_PORT))
    # The command on the page publishes it there.
    assert settings.kafka_advertised(0) == ("localhost", int(deployment.KAFKA_PORT))
    page = (ROOT / "docs/install.md").read_text()
    for text in (page, deployment.DOCKERFILE.read_text()):
        assert f"--publish 127.0.0.1:{deployment.KAFKA_PORT}:{deployment.KAFKA_PORT}" in text
    build, _, _ = BUILD.one("FROM").partition(" AS ")
    assert build == RUNTIME.one("FROM").replace("-slim", ""), "the environment is of that Python"
    assert RUNTIME.all("COPY") == ["--from=build /opt/logstore /opt/logstore"]


def test_the_compose_file_fits_the_dockerfile(monkeypatch: pytest.MonkeyPatch):
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load(deployment.COMPOSE_FILE.read_text())
    (service,) = compose["services"].values()
    context = (deployment.COMPOSE_FILE.parent / service["build"]["context"]).resolve()
    assert (context, context / service["build"]["dockerfile"]) == (ROOT, deployment.DOCKERFILE)
    assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in (deployment.PORT, deployment.KAFKA_PORT)]
    assert service["environment"].items() >= {
        ("LOGSTORE_KAFKA_ADVERTISED_LISTENERS", f"localhost:{deployment.KAFKA_PORT}")
    }
    (volume,) = service["volumes"]
    assert volume.split(":") == [*compose["volumes"], RUNTIME.one("VOLUME")]
    assert seconds(service["stop_grace_period"]) >= STOP_SECONDS
    assert open_files_shortage(service["ulimits"]["nofile"], Settings().max_connections) is None
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
        setting = getattr(load_settings(), name.removeprefix("LOGSTORE_").lower())
        assert (",".join(setting) if isinstance(setting, tuple) else str(setting)) == value
    assert service["environment"]["LOGSTORE_ALLOWED_HOSTS"] in compose["services"], "other services call it so"


def test_the_unit_fits_the_store():
    unit = {key: values[-1] for key, values in deployment.unit().items()}
    command = deployment.unit_command()
    state = f"/var/lib/{unit['StateDirectory']}"
    assert command[command.index("--data") + 1] == state == unit["WorkingDirectory"]
    assert seconds(unit["TimeoutStopSec"]) >= STOP_SECONDS
    assert open_files_shortage(int(unit["LimitNOFILE"]), Settings().max_connections) is None
    assert unit["User"] != "root"
    # A roll's thread lowers its priority when it starts: if that is forbidden, every roll fails.
    assert not [value for value in deployment.unit()["SystemCallFilter"] if "@resources" in value]


def test_the_socket_is_where_the_store_would_listen():
    held = deployment.sections(deployment.SOCKET_UNIT)["Socket"]
    assert held == {"ListenStream": [f"{Settings().host}:{Settings().port}"], "Backlog": [str(BACKLOG)]}
    assert deployment.SOCKET_UNIT.stem == deployment.UNIT.stem, "systemd joins them by their name"


@pytest.mark.system
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path):
    analyze = tool("systemd-analyze")
    copy = tmp_path / deployment.UNIT.name
    copy.write_text(deployment.UNIT.read_text().replace("/opt/logstore/bin/logstore", sys.executable))
    ran = subprocess.run([analyze, "verify", copy], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    socket_unit = tmp_path / deployment.SOCKET_UNIT.name
    socket_unit.write_text(deployment.SOCKET_UNIT.read_text())
    ran = subprocess.run([analyze, "verify", socket_unit], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    # 10.0 is a service without any protection.
    command = [analyze, "security", "--offline=true", "--threshold=20", copy]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout[-500:]


@pytest.mark.system
def test_hadolint_finds_nothing_wrong_with_the_dockerfile():
    ran = subprocess.run(
        [tool("hadolint"), "--no-color", deployment.DOCKERFILE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "")
