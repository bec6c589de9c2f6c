"""Paths and locations that users give are served, or refused by the name of their scheme."""

from pathlib import Path

import pytest

from logstore.errors import DataDirectoryError, InvalidConfigError
from logstore.local_path import absolute_path, local_path
from logstore.settings import load_settings
from logstore.table_files import open_table
from logstore.table_root import open_root

SCHEMES = ["s3", "S3", "s3a", "gs", "hdfs", "abfss", "http", "https", "viewfs", "jdbc+x"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("form", [str, Path])
def test_a_scheme_that_is_not_served_is_refused_by_name(scheme: str, form):
    for take in (local_path, absolute_path, open_root, open_table):
        with pytest.raises(DataDirectoryError, match=rf"^{scheme.replace('+', '.')}:// is not served: give a path"):
            take(form(f"{scheme}://bucket/x"))


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("data", "data"),
        ("./s3:/bucket", "s3:/bucket"),
        ("/srv/a%20b", "/srv/a%20b"),
        ("a:b", "a:b"),
        ("s3:", "s3:"),
        ("file:///srv/a%20b", "/srv/a b"),
        ("file:///srv/a#b?c", "/srv/a#b?c"),
        ("file://localhost/srv", "/srv"),
        ("FILE:///srv", "/srv"),
        ("file:/srv", "/srv"),
        (Path("file:///srv/log"), "/srv/log"),
        ("", "."),
    ],
)
def test_paths_and_files_are_served(given, path: str):
    assert local_path(given) == Path(path)


def test_an_absolute_path_has_a_home_directory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert absolute_path("~/log") == Path("/home/ada/log")
    assert absolute_path("log") == Path.cwd() / "log"


def test_a_file_of_another_machine_is_refused():
    with pytest.raises(DataDirectoryError, match=r"^file://nas/srv names no file of this machine"):
        local_path("file://nas/srv")


@pytest.mark.parametrize(
    ("setting", "given"), [("data", {"data": "s3://b/x"}), ("log.dirs", {"log_dirs": Path("s3://b/x")})]
)
def test_settings_refuse_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfigError, match=rf"^{setting} cannot be 's3:/+b/x': s3:// is not served"):
        load_settings(zookeeper_connect="h:1", **given)
    assert load_settings(data=f"file://{tmp_path}/d").data == tmp_path / "d"


def test_variables_and_the_settings_file_refuse_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/logstore.toml").write_text('data = "gs://b/x"')
    with pytest.raises(InvalidConfigError, match=r"^data cannot be .gs://b/x.: gs:// is not served"):
        load_settings()
    monkeypatch.setenv("LOGSTORE_DATA", "hdfs://n/x")
    with pytest.raises(InvalidConfigError, match=r"^data cannot be .hdfs://n/x': hdfs:// is not served"):
        load_settings()
    monkeypatch.setenv("LOGSTORE_CONFIG", "s3://b/logstore.toml")
    with pytest.raises(InvalidConfigError, match=r"^cannot read s3://b/logstore.toml: s3:// is not served"):
        load_settings()
