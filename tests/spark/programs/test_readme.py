"""The README's blocks run as they stand, in its order: against a real store, with topics as the demo leaves them."""

import os
import re
import signal
import subprocess
import sys

import pytest

from logstore.client.admin import Admin
from tests.spark.store import Store
from tests.support.server_process import ROOT, ServerProcess

pytestmark = pytest.mark.long

FLIGHTS = 60_010
PARTITIONS = 4


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory like a checkout after the demo: ``.venv``, ``data`` with topics and group, a running store."""
    directory = tmp_path_factory.mktemp("readme")
    commands = directory / ".venv" / "bin"
    commands.mkdir(parents=True)
    (commands / "activate").write_text(f"PATH={commands}:$PATH\n")
    (commands / "logstore").write_text(f'#!/bin/sh\nexec {sys.executable} -m logstore.cli "$@"\n')
    (commands / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for command in commands.glob("[lp]*"):
        command.chmod(0o755)
    with ServerProcess(directory / "data") as server:
        store = Store(server)
        with Admin(server.url) as admin:
            admin.create_topic("flights", partitions=PARTITIONS)
            admin.create_topic("last-flight", configs={"cleanup.policy": "compact"})
            for partition in range(PARTITIONS):
                lines = "".join(f'{{"flight": {number}}}\n' for number in range(FLIGHTS))
                answer = store.http.post(
                    f"{server.url}/topics/flights/partitions/{partition}",
                    content=lines,
                    headers={"Content-Type": "application/x-ndjson"},
                )
                assert answer.is_success, answer.text
            admin.roll("flights")
            admin.commit_offsets("flights-report", {("flights", 0): FLIGHTS})
        yield directory, server.url
        store.http.close()


def blocks(language: str, url: str) -> list[str]:
    """Without the chapter of the cluster, which ``tests/cluster/test_readme.py`` runs."""
    text = re.sub(r"\n## A cluster\n.*?(?=\n## )", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return [block.replace("http://127.0.0.1:8082", url).replace("127.0.0.1:8082", url) for block in found]


def test_the_shell_blocks(directory):
    path, url = directory
    script = "\n".join(blocks("sh", url))
    environment = os.environ | {"LOGSTORE_URL": url, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["bash", "-euc", script], cwd=path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (
        'ada\t{"user": "ada", "action": "login"}\nada\t{"action": "search"}\nada\t{"action": "logout"}\n' in ran.stdout
    )
    assert re.search(r'\{"offsets":\[\{"partition":\d,"offset":\d,"error_code":null', ran.stdout)
    assert "flights-report" in ran.stdout
    assert '"instance_id":"me"' in ran.stdout
    assert '"key":"ada","value":{"action": "search"}' in ran.stdout
    assert re.search(r'\[\{"topic":"events","partition":\d,"consumed":2,"committed":3\}\]', ran.stdout)
    assert "60,010" in ran.stdout


def test_the_python_blocks(directory, spark, monkeypatch, capsys):
    path, url = directory
    monkeypatch.chdir(path)
    names: dict[str, object] = {}
    found = blocks("python", url)
    assert len(found) == 4
    printed = []
    for block in found:
        exec(
            compile(block.replace('"earliest"}', '"earliest", "consumer_timeout_ms": 30_000}'), "README.md", "exec"),
            names,
        )
        printed.append(capsys.readouterr().out)
    assert "logout" in printed[0]
    assert '{"flight": ' in printed[1]
    assert "| 60000|" in printed[2]
    assert '{"flight": 60000}' in printed[2]
    duck, polars = printed[3].split("shape: ")
    assert duck.count('{"flight": 6000') == 5
    assert polars.startswith("(5, 6)")


def test_ctrl_c_ends_the_consumer_without_a_word(directory):
    path, url = directory
    block = blocks("python", url)[0].replace('"audit", ', '"quiet", ').replace('["events"]', '["flights"]')
    with subprocess.Popen(
        [sys.executable, "-uc", block],
        cwd=path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")


def test_the_commands_of_the_first_screen_are_targets():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^    make (\w+)", readme, re.MULTILINE))
    assert named == {"demo", "test", "torture", "run", "help"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)
