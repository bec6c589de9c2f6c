"""The check of commit messages, as git calls it."""

import subprocess
from pathlib import Path

import pytest

from tests.support.server_process import ROOT

pytestmark = pytest.mark.system


def check(directory: Path, message: str) -> tuple[int, str]:
    file = directory / "COMMIT_EDITMSG"
    file.write_text(message)
    ran = subprocess.run(
        [ROOT / "conf/commit_message.sh", file], capture_output=True, text=True, timeout=60, check=False
    )
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    "message",
    [
        "Keep the order\n",
        f"{'ü' * 72}\n\nThe reasons. They may be long: {'x' * 100}.\n",
        "\n# A comment of git.\nKeep the order\n# Another one.\n\nThe reasons.\n",
        "Keep the order\n# ------------------------ >8 ------------------------\ndiff --git a/a b/a\n",
        f"Merge branch '{'x' * 72}'\n",
    ],
)
def test_a_message_with_a_short_first_line_is_taken(tmp_path: Path, message: str) -> None:
    assert check(tmp_path, message) == (0, "")


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        (f"{'x' * 73}\n", "has 73 characters"),
        ("Keep the order.\n\nThe reasons.\n", "remove the full stop"),
        ("Keep the order\nof records\n", "leave the second line empty"),
    ],
)
def test_another_message_is_refused_with_the_change_to_make(tmp_path: Path, message: str, wrong: str) -> None:
    code, error = check(tmp_path, message)
    assert code == 1
    assert wrong in error
    assert error.count("\n") == 1
