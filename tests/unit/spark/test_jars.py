import os
import subprocess
import sys
import zipfile

import pytest

from logstore.spark import jars
from logstore.spark.spark_conf import PACKAGE_ROOT


@pytest.fixture
def ivy_home(tmp_path):
    """Return an Ivy directory with whole archives under the names of the jars."""
    home = tmp_path / "ivy"
    (home / "jars").mkdir(parents=True)
    for name in jars.JAR_NAMES:
        with zipfile.ZipFile(home / "jars" / name, "w") as archive:
            archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n" * 100)
    return home


def test_jars_that_are_there_are_found_without_java_or_network(ivy_home, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert jars.fetch(str(ivy_home)) == tuple(ivy_home / "jars" / name for name in jars.JAR_NAMES)


def test_the_ordinary_place_is_searched(ivy_home, monkeypatch):
    monkeypatch.setenv("HOME", str(ivy_home.parent))
    assert jars.find() is None
    ivy_home.rename(ivy_home.parent / ".ivy2.5.2")
    assert jars.find() is not None


def test_a_missing_jar_means_none(ivy_home):
    (ivy_home / "jars" / jars.JAR_NAMES[1]).unlink()
    assert jars.find(str(ivy_home)) is None


def test_a_half_copied_jar_does_not_count(ivy_home):
    jar = ivy_home / "jars" / jars.JAR_NAMES[0]
    jar.write_bytes(jar.read_bytes()[:-10])
    assert jars.find(str(ivy_home)) is None


@pytest.mark.system
def test_without_java_the_error_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "env"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(jars.SparkJarsError, match=r"Java is missing \(Debian: apt-get install"):
        jars.fetch(str(tmp_path / "ivy"), log=tmp_path / "ivy.log")


@pytest.mark.long
def test_jars_are_fetched_to_where_they_are_looked_for_whatever_home_is(tmp_path, monkeypatch):
    """Fetch from a repository in a directory; Java does not look at HOME."""
    for artifact, version in [
        jar.removeprefix("io.delta_").removesuffix(".jar").rsplit("-", 1) for jar in jars.JAR_NAMES
    ]:
        directory = tmp_path / "repository" / "io" / "delta" / artifact / version
        directory.mkdir(parents=True)
        with zipfile.ZipFile(directory / f"{artifact}-{version}.jar", "w") as archive:
            archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
        project = "<modelVersion>4.0.0</modelVersion><groupId>io.delta</groupId>"
        itself = f"<artifactId>{artifact}</artifactId><version>{version}</version>"
        others = "".join(
            f"<dependency><groupId>io.delta</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
            for name in ("delta-storage", "delta-kernel-api", "delta-kernel-defaults")
            if artifact.startswith("delta-spark")
        )
        pom = f"<project>{project}{itself}<dependencies>{others}</dependencies></project>"
        (directory / f"{artifact}-{version}.pom").write_text(pom)
    (tmp_path / "home").mkdir()
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers>'
        f'<ibiblio name="here" m2compatible="true" root="{(tmp_path / "repository").as_uri()}/"/>'
        "</resolvers></ivysettings>"
    )
    (tmp_path / "spark-defaults.conf").write_text(f"spark.jars.ivySettings {settings}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = jars.fetch(log=tmp_path / "ivy.log")
    assert found == tuple(tmp_path / "home" / ".ivy2.5.2" / "jars" / name for name in jars.JAR_NAMES)


@pytest.mark.system
def test_the_command_says_in_one_line_where_they_are(ivy_home, tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(f"spark.jars.ivy {ivy_home}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "logstore.spark.jars"],
        env=os.environ | {"SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": str(PACKAGE_ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"Spark's Delta {jars.DELTA_VERSION} jars are in {ivy_home / 'jars'}\n"
