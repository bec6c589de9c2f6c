"""Every command that takes a path refuses a scheme that is not served, and creates nothing."""

import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.models import ParameterInfo
from typer.testing import CliRunner

from logstore.cli.app import app
from logstore.command_line.options import existing_path, given_path


def paths(commands: typer.Typer, *words: str) -> Iterator[tuple[list[str], str, ParameterInfo]]:
    """Yield the words of each command, with the name and the definition of each parameter that is a path."""
    for group in commands.registered_groups:
        assert group.typer_instance is not None
        yield from paths(group.typer_instance, *words, group.name or group.typer_instance.info.name or "")
    for command in commands.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        for parameter, hint in typing.get_type_hints(command.callback, include_extras=True).items():
            if "pathlib.Path" in str(hint):
                yield [*words, name], parameter, hint.__metadata__[0]


PATHS = list(paths(app))


def test_every_path_goes_through_the_one_place():
    """Require ``parser=given_path``: typer's type of a path would take ``s3://bucket`` for a directory."""
    assert [(words, name) for words, name, info in PATHS if info.parser not in (given_path, existing_path)] == []
    assert {words[0] for words, *_ in PATHS} == {
        *("serve", "job", "journal", "segment", "cluster", "topic", "doctor", "produce", "consume", "group")
    }


@pytest.mark.parametrize(("words", "name", "info"), PATHS, ids=lambda given: given if type(given) is str else None)
def test_a_scheme_that_is_not_served_is_a_usage_error(words, name, info, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option = []
    if isinstance(info, typer.models.OptionInfo):
        option = [next((one for one in info.param_decls or () if one[0] == "-"), f"--{name.replace('_', '-')}")]
    needed = ["t"] if words[-1] in {"produce", "consume", "adopt", "erase", "reset"} else []
    result = CliRunner().invoke(app, [*words, *needed, *option, "s3://bucket/x"])
    assert result.exit_code == 2, result.output
    assert "s3://bucket/x: s3:// is not served" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_plan_of_reassignments_is_no_bucket():
    result = CliRunner().invoke(app, ["topic", "reassign", "verify", "s3://bucket/plan.json"])
    assert result.exit_code == 2
    assert "s3:// is not served" in result.output


def test_a_file_that_is_read_may_be_a_uri(tmp_path: Path):
    """Give files without a line: the error is about their content."""
    file = tmp_path / "a b"
    file.write_text("\n")
    for words, says in (
        (["group", "reset", "g", "--from-file"], "no line"),
        (["topic", "erase", "t", "--keys-file"], "name"),
    ):
        for given in (str(file), file.as_uri()):
            result = CliRunner().invoke(app, [*words, given])
            assert (result.exit_code, says in result.output) == (2, True), result.output
        assert "cannot read" in CliRunner().invoke(app, [*words, (tmp_path / "absent").as_uri()]).output
