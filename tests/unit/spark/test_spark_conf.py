import pytest

from logstore.spark.spark_conf import (
    DELTA_EXTENSION,
    EXTENSIONS_KEY,
    PACKAGE_ROOT,
    is_connect,
    is_local,
    parse_properties,
    parse_submit_arguments,
    session_settings,
    user_settings,
)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Change to a directory without ``conf``, and hide the user's Spark."""
    for name in ("SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_defaults(directory, text):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spark-defaults.conf").write_text(text)
    return directory


def test_properties_are_read_as_spark_reads_them():
    text = "# a comment\n! another\n\nspark.a   1\nspark.b=2\n  spark.c : three words \nspark.d  x \\\n    y\nspark.e\n"
    assert parse_properties(text) == {
        "spark.a": "1",
        "spark.b": "2",
        "spark.c": "three words",
        "spark.d": "x y",
        "spark.e": "",
    }


def test_submit_arguments_become_settings():
    arguments = (
        "--master local[3] --conf spark.x=1=2 -c spark.y='a b' --packages=a:b:1 --driver-memory 3g pyspark-shell"
    )
    assert parse_submit_arguments(arguments) == {
        "spark.master": "local[3]",
        "spark.x": "1=2",
        "spark.y": "a b",
        "spark.jars.packages": "a:b:1",
        "spark.driver.memory": "3g",
    }


def test_nearer_to_the_user_wins(elsewhere, monkeypatch):
    write_defaults(elsewhere / "conf", "spark.a project\nspark.b project\nspark.c project\nspark.d project\n")
    own = write_defaults(elsewhere / "own", "spark.b user\nspark.c user\nspark.master spark://h:7077\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(own))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.c=arguments pyspark-shell")
    monkeypatch.setenv("MASTER", "local[7]")
    assert user_settings() == {
        "spark.a": "project",
        "spark.b": "user",
        "spark.c": "arguments",
        "spark.d": "project",
        "spark.master": "spark://h:7077",
    }


def test_spark_home_is_where_the_users_settings_are_when_nothing_else_says_so(elsewhere, monkeypatch):
    write_defaults(elsewhere / "spark" / "conf", "spark.z 1")
    monkeypatch.setenv("SPARK_HOME", str(elsewhere / "spark"))
    assert user_settings()["spark.z"] == "1"


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2, 4]", "local-cluster[1,1,1024]"])
def test_local_masters(master):
    assert is_local(master)


@pytest.mark.parametrize("master", ["spark://localhost:7077", "k8s://https://h", "yarn", "sc://localhost", "locale"])
def test_remote_masters(master):
    assert not is_local(master)
    assert is_connect(master) == (master == "sc://localhost")


def test_a_local_session_keeps_to_the_loopback_address_and_a_remote_one_does_not():
    local = session_settings("local[2]", {}, progress=False)
    assert (local["spark.driver.host"], local["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert str(PACKAGE_ROOT) in local["spark.executorEnv.PYTHONPATH"].split(":")
    remote = session_settings("spark://h:7077", {}, progress=False)
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.executorEnv.PYTHONPATH"} & remote.keys()
    for settings in (local, remote):
        assert settings["spark.sql.session.timeZone"] == "UTC"
        assert settings["spark.databricks.delta.vacuum.logging.enabled"] == "false"


def test_the_users_settings_win_but_delta_is_always_there():
    given = {
        EXTENSIONS_KEY: "org.example.Mine",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.driver.host": "192.0.2.1",
        "spark.executorEnv.PYTHONPATH": "/mine",
    }
    settings = session_settings("local[2]", given, progress=True)
    assert settings[EXTENSIONS_KEY] == f"org.example.Mine,{DELTA_EXTENSION}"
    assert settings["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert settings["spark.driver.host"] == "192.0.2.1"
    assert settings["spark.executorEnv.PYTHONPATH"] == f"/mine:{PACKAGE_ROOT}"
    again = session_settings("local[2]", {EXTENSIONS_KEY: DELTA_EXTENSION}, progress=True)
    assert again[EXTENSIONS_KEY] == DELTA_EXTENSION
