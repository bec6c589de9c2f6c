"""The distribution that runs: ours is ``delta-logstore``, and PyPI's ``logstore`` belongs to another project."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logstore import __version__
from logstore.cli import distributions
from logstore.cli.app import app
from logstore.cli.checks import Status
from logstore.cli.distributions import installation
from logstore.cli.doctor import check_distribution
from tests.support.server_process import ROOT

#: These match `pip install` of the bare name, and a requirement with extras.
WRONG = re.compile(
    r"pip3? install(?: -[\w-]+)* +['\"]?logstore(?![\w/-])"
    r"|(?<![\w./-])logstore\[(?:\{|all|server|delta|cluster|spark|demo|dev)"
)
PAGES_AND_CODE = (
    *("*.md", "*.toml", "conf/*", "docs/**/*.md", "docs/**/*.ipynb", "docs/**/*.py", "airflow_dags/*"),
    *(f"{package}/**/*.py" for package in ("benchmarks", "logstore", "ingest_api", "consumer_offsets")),
    "compaction_jobs/**/*.py",
)
_TEXTS = (".md", ".py", ".toml", ".ipynb", ".sh", ".yaml", ".service", "")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the only directory in which packages are searched."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    distributions._installed.cache_clear()
    yield tmp_path
    distributions._installed.cache_clear()


def install(site: Path, name: str, version: str, *, files: tuple[str, ...] = (), script: bool = False) -> None:
    home = site / f"{name.replace('-', '_')}-{version}.dist-info"
    home.mkdir()
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (home / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if script:
        (home / "entry_points.txt").write_text("[console_scripts]\nlogstore = logstore.cli:main\n")


def test_ours_alone(site: Path):
    install(site, "delta-logstore", "1.2.3", files=("logstore/__init__.py",), script=True)
    found = installation()
    assert (found.own, found.warning) == ("delta-logstore 1.2.3", None)
    assert CliRunner().invoke(app, ["--version"]).stdout == f"logstore {__version__} (delta-logstore 1.2.3)\n"
    assert check_distribution().status is Status.ok


def test_another_projects_beside_ours(site: Path):
    install(site, "delta-logstore", "1.2.3", files=("logstore/__init__.py", "logstore/cli/__init__.py"), script=True)
    install(site, "logstore", "1.0.0", files=("logstore/__init__.py", "logstore/logger.py"))
    warning = "the distribution logstore 1.0.0, another project's, is installed beside delta-logstore"
    assert installation().warning == warning
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout == f"logstore {__version__} (delta-logstore 1.2.3)\n"
    assert f"logstore: warning: {warning}; mend it with pip uninstall --yes logstore delta-logstore" in result.stderr
    check = check_distribution()
    assert (check.status, check.found) == (Status.warn, f"delta-logstore 1.2.3; {warning}")
    assert "pip uninstall" in check.advice


def test_one_in_place_of_ours_and_an_earlier_release(site: Path):
    install(site, "logstore", "0.1.0", files=("_logstore.pth",), script=True)
    found = installation()
    assert found.own.startswith("no distribution, from the files in ")
    assert found.warning is not None
    assert "logstore 0.1.0, an earlier release of this one, is installed in place of delta-logstore" in found.warning


def test_any_distribution_with_our_import_name_is_found(site: Path):
    install(site, "log_Store.fork", "3", files=("logstore/x.py",))
    assert "log_Store.fork 3, another project's" in str(installation().warning)


@pytest.mark.system
def test_its_init_over_ours_is_an_error_of_one_line(tmp_path: Path):
    """Put a file there as pip does for PyPI's ``logstore`` 1.0.0: no module that asks for the version could load."""
    (tmp_path / "logstore").mkdir()
    (tmp_path / "logstore/__init__.py").write_text(f"__path__.append({str(ROOT / 'logstore')!r})\nclass Logger: pass\n")
    install(tmp_path, "logstore", "1.0.0", files=("logstore/__init__.py",))
    code = "import sys; from logstore.cli import main; sys.argv = ['logstore', '--version']; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    (line,) = ran.stderr.splitlines()
    assert f"{tmp_path}/logstore/__init__.py is not of" in line
    assert "logstore 1.0.0, another project's" in line
    assert "pip uninstall --yes logstore delta-logstore" in line


def test_no_message_and_no_page_names_the_other_distribution():
    """Check that commands that install name our distribution, a wheel or a checkout.

    ``pip uninstall`` may name the other one, and decisions may say what was wrong.
    """
    files = [file for pattern in PAGES_AND_CODE for file in sorted(ROOT.glob(pattern)) if file.suffix in _TEXTS]
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        if file.is_file() and file.parent.name != "decisions"
        for line in wrong_lines(file.read_text("utf-8"))
    ]
    assert wrong == []


def wrong_lines(text: str) -> list[int]:
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if WRONG.search(line) and "another project" not in line
    ]


def test_the_search_finds_what_it_is_for():
    text = """pip install logstore
pip install 'logstore[server]'
  pip install --upgrade logstore
all = ["logstore[server]"]
"logstore[spark] @ file:///x"
pip install 'delta-logstore[server]' and logstore serve
pip uninstall logstore
/opt/logstore/bin/pip install dist/x.whl
topics[0], logstore.records[1]
"""
    assert wrong_lines(text) == [1, 2, 3, 4, 5]
