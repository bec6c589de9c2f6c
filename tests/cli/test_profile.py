import json
import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logstore.cli.app import app


def run(*arguments: str, code: int = 0, **environment: str | None) -> str:
    result = CliRunner(env={"LOGSTORE_URL": None, **environment}).invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def file() -> Path:
    return Path(os.environ["XDG_CONFIG_HOME"]) / "logstore" / "profiles.toml"


def shown(*before: str, **environment: str) -> tuple[str, str]:
    found = json.loads(run(*before, "profile", "show", "--json", **environment))
    return found["url"], found["source"]


def test_a_profile_from_its_first_value_to_its_end():
    assert "No profiles yet" in CliRunner().invoke(app, ["profile", "list"]).stderr
    assert str(file()) in run("profile", "set", "staging", "url=http://10.0.0.5:8082", "format=json")
    run("profile", "set", "staging", "client-id=ada", "format=")
    run("profile", "set", 'odd "name"', "url=a:1")
    assert tomllib.loads(file().read_text()) == {
        "profiles": {
            "staging": {"url": "http://10.0.0.5:8082", "client-id": "ada"},
            'odd "name"': {"url": "a:1"},
        }
    }
    assert run("profile", "use", "staging") == "Using profile staging\n"
    assert json.loads(run("profile", "list", "--json")) == [
        {"profile": 'odd "name"', "in_use": False, "url": "a:1"},
        {"profile": "staging", "in_use": True, "url": "http://10.0.0.5:8082", "client-id": "ada"},
    ]
    assert run("profile", "list").splitlines()[2].split() == ["*", "staging", "http://10.0.0.5:8082", "ada", "-"]
    assert shown() == ("http://10.0.0.5:8082", "profile staging, in use")
    run("profile", "delete", "staging")
    assert shown() == ("http://127.0.0.1:8082", "default")


def test_an_option_wins_over_the_environment_which_wins_over_the_profile_in_use():
    for name in ("one", "two", "three"):
        run("profile", "set", name, f"url={name}:1")
    run("profile", "use", "one")
    assert shown() == ("one:1", "profile one, in use")
    two = {"LOGSTORE_PROFILE": "two"}
    assert shown(**two) == ("two:1", "LOGSTORE_PROFILE=two")
    assert shown(**two, LOGSTORE_URL="u:1") == ("u:1", "LOGSTORE_URL")
    assert shown("--profile", "three", **two, LOGSTORE_URL="u:1") == ("three:1", "--profile three")
    assert shown("--profile", "three", "--url", "v:1", **two) == ("v:1", "--url")
    run("profile", "use", "--none")
    assert shown()[1] == "default"


@pytest.mark.system
def test_a_profile_has_the_defaults_of_options(server, topic, tmp_path):
    run("profile", "set", "here", f"url={server.url}", "format=key-value", "client-id=ada")
    here = ("--profile", "here")
    (tmp_path / "lines").write_text("a\n")
    run(*here, "produce", topic, str(tmp_path / "lines"))
    assert run(*here, "consume", topic) == "null\ta\n"
    assert run(*here, "consume", topic, "--format", "value") == "a\n"
    # The ending of a file's name takes precedence over the profile.
    run(*here, "consume", topic, "-o", str(tmp_path / "out.csv"))
    assert (tmp_path / "out.csv").read_text().startswith('"partition"')
    assert 'client="ada",method="POST",route="/topics/{topic}' in _metrics(server.url)


def _metrics(url: str) -> str:
    import httpx

    return httpx.get(f"{url}/metrics").text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["profile", "use", "absent"], "no profile 'absent': there are staging; make one with"),
        (["--profile", "absent", "topic", "list"], "no profile 'absent'"),
        (["--profile", "absent", "consume", "t"], "no profile 'absent'"),
        (["--profile", "staging", "topic", "list"], "profile 'staging' has no url"),
        (["profile", "set", "staging", "colour=red"], "a profile has no 'colour': it holds url, client-id, format"),
        (["profile", "set", "staging", "url=nowhere"], "has no port"),
        (["profile", "delete", "absent"], "no profile 'absent'"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(arguments, says):
    run("profile", "set", "staging", "format=json")
    before = file().read_text()
    error = run(*arguments, code=1)
    assert says in error
    assert error.count("\n") == 1
    assert file().read_text() == before


def test_a_value_is_checked_when_it_is_set_and_blamed_on_its_profile():
    run("profile", "set", "staging", "url=127.0.0.1:1", "format=%k %s")
    before = file().read_text()
    says = "not one of value, key-value, json, record, pretty, base64, csv, parquet"
    for value, why in (("xx", says), ("%z", "%z is no field")):
        assert why in _words(run("profile", "set", "staging", f"format={value}", code=2))
    assert file().read_text() == before
    file().write_text('profile = "hand"\n[profiles.hand]\nurl = "nowhere"\nformat = "xx"\n')
    assert "Invalid value for format of profile hand: 'xx' is" in _words(run("consume", "t", code=2))
    assert "profile 'hand': " in run("topic", "list", code=1)
    # The profile's format does not matter where the command line has one.
    assert "profile 'hand': " in run("consume", "t", "--json", code=1)
    assert "'yy' is" in run("consume", "t", "-f", "yy", code=2)


def _words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("text", ["profile = ", "profiles = 1", "[profiles.a]\nurl = 1\n", 'profile = "a"', "x = 1"])
def test_a_file_that_is_something_else_is_named(text):
    file().parent.mkdir(parents=True)
    file().write_text(text)
    error = run("topic", "list", code=1)
    assert "profiles.toml" in error or "no profile 'a'" in error
