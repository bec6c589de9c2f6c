"""The wheel, built and installed into a fresh environment by the Dockerfile's commands, and a store run from it outside
the checkout: ``make test-wheel``. It needs the package registry, or a pip cache that has the packages.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.free_port import free_port
from conf.build_hook import compiler
from tests.support import deployment
from tests.support.server_process import ROOT

pytestmark = pytest.mark.wheel

PACKAGES = {"logstore", "ingest_api", "consumer_offsets", "compaction_jobs"}
_BUILD_SECONDS = 900


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory as the build stage leaves it: ``opt`` (the environment) and ``src/dist`` (the wheel)."""
    image = tmp_path_factory.mktemp("image")
    source = image / "src"
    source.mkdir()
    # `python` and `pip` of the base image are those of this environment.
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    environment.pop("PYTHONPATH", None)
    # Most installed modules are never imported.
    environment["PIP_NO_COMPILE"] = "1"
    for name, arguments in deployment.stages()[0].instructions:
        if name == "COPY":
            *copied, _ = arguments.split()
            for each in copied:
                copy(ROOT / each, source / each)
        elif name == "RUN":
            (command,) = deployment.placed([arguments], {"/opt/logstore": str(image / "opt")})
            subprocess.run(["sh", "-euc", command], cwd=source, env=environment, check=True, timeout=_BUILD_SECONDS)
    return image


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


@pytest.fixture(scope="module")
def url(image: Path) -> Iterator[str]:
    places = {
        "/opt/logstore": str(image / "opt"),
        "/data": str(image / "data"),
        "0.0.0.0": "127.0.0.1",
        deployment.PORT: str(free_port()),
    }
    command = deployment.placed(deployment.container_command(), places)
    with deployment.started(command, image, {"PYTHONPATH": ""}) as url:
        yield url


def test_the_wheel_has_the_typed_packages_and_nothing_else(image: Path):
    (wheel,) = (image / "src/dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    # Kafka's definitions are shipped with their licence.
    assert {f"logstore/kafka_protocol/schemas/{name}" for name in ("schemas.json", "LICENSE", "NOTICE")} <= set(names)
    assert not [name for name in names if "demo" in name or "configuration_page" in name]


def test_a_record_goes_in_and_out_by_what_is_installed(image: Path, url: str, tmp_path: Path):
    def logstore(*arguments: str, given: str = "") -> str:
        ran = subprocess.run(
            [image / "opt/bin/logstore", "--url", url, *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},
            input=given,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    logstore("topic", "create", "events", "--partitions", "2")
    logstore("produce", "events", "--key-field", "user", given='{"user": "ada"}\n')
    logstore("topic", "roll", "events")
    assert logstore("consume", "events", "--from-beginning") == '{"user": "ada"}\n'


def test_the_imported_package_is_the_installed_one(image: Path, tmp_path: Path):
    code = "import logstore, ingest_api, consumer_offsets, compaction_jobs as c; print(logstore.__file__, c.__file__)"
    found = subprocess.check_output(
        [image / "opt/bin/python", "-c", code], cwd=tmp_path, env={"PATH": os.environ["PATH"]}, text=True, timeout=300
    )
    assert all(Path(file).is_relative_to(image / "opt/lib") for file in found.split())


_CODE_OF_LIBRARIES = """
from logstore.kafka_batches.plain_pages import CODEC, PAGE_CODEC
from logstore.records.columns.derive import KERNEL
from logstore.records.native import NATIVE
print(*(type(found).__name__ for found in (CODEC, PAGE_CODEC, KERNEL, NATIVE)))
"""


def test_the_libraries_are_the_compiled_ones(image: Path, tmp_path: Path):
    (wheel,) = (image / "src/dist").glob("*.whl")
    if compiler() is None:
        pytest.skip("there is no C compiler")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    found = subprocess.check_output(
        [image / "opt/bin/python", "-c", _CODE_OF_LIBRARIES],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        text=True,
        timeout=300,
    )
    assert found == "NativeCodec PageCodec Kernel Native\n"


def test_without_a_compiler_the_wheel_is_of_python_alone(image: Path, tmp_path: Path):
    """Hatchling builds it from the same sources as the other wheel."""
    environment = {**os.environ, "CC": "no-such-compiler", "PYTHONPATH": ""}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path]
    ran = subprocess.run(
        command, cwd=image / "src", env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "typed columns will go a slower way" in ran.stdout + ran.stderr
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(tmp_path / "installed")
    found = subprocess.check_output(
        [sys.executable, "-c", _CODE_OF_LIBRARIES],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "installed")},
        text=True,
        timeout=300,
    )
    assert found == "NumpyCodec NoneType NoneType NoneType\n"
