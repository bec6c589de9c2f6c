"""The command that takes a table back to an earlier version, for messages."""

import shlex


def restore_command(location: str, version: int | str) -> str:
    """The command for a shell that restores a table to a version."""
    restore = f"DeltaTable({_quoted(location)}).restore({version})"
    return shlex.join(("python", "-c", f"from deltalake import DeltaTable; {restore}"))


def _quoted(text: str) -> str:
    """A literal of Python in double quotes where that can be, which a shell's single quotes leave as it is."""
    return f'"{text}"' if text.isprintable() and not set(text) & set('"\\') else repr(text)
