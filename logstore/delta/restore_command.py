"""The command that takes a table back to an earlier version, for messages."""

import shlex


def restore_command(location: str, version: int | str) -> str:
    """Return the shell command that restores a table to a version."""
    restore = f"DeltaTable({_quoted(location)}).restore({version})"
    return shlex.join(("python", "-c", f"from deltalake import DeltaTable; {restore}"))


def _quoted(text: str) -> str:
    """Return a Python literal, in double quotes if possible, so that a shell's single quotes leave it as it is."""
    return f'"{text}"' if text.isprintable() and not set(text) & set('"\\') else repr(text)
