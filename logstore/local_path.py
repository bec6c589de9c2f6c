"""The one place that decides which paths and locations the store serves: those of this machine's file systems.

A path is taken as it is, and ``file://`` names one. Any other ``scheme://`` is refused by its name: taken for a path it
would be a directory of that name below the working directory, and its user would lose acknowledged records there.
"""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from logstore.errors import DataDirectoryError

# One slash is enough: a Path of `s3://bucket/log` is `s3:/bucket/log`. One letter is not a scheme.
_SCHEME = re.compile(r"\s*(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?=/)")
_FILE = re.compile(r"(//(?P<host>[^/]*))?(?P<path>/.*)", re.DOTALL)


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return the path that ``location`` names. Raises DataDirectoryError for a scheme that is not served, and for a
    ``file://`` location of another machine.
    """
    text = os.fspath(location)
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    if found["scheme"].lower() != "file":
        raise DataDirectoryError(
            f"{found['scheme']}:// is not served: give a path on a file system of this machine, or file:///path"
        )
    parts = _FILE.fullmatch(text[found.end() :])
    if parts is None or parts["host"] not in (None, "", "localhost"):
        raise DataDirectoryError(f"{text} names no file of this machine: give file:///path, or a path")
    return Path(unquote(parts["path"]))


def absolute_path(location: str | os.PathLike[str]) -> Path:
    """Return the ``local_path`` as an absolute path, with ``~`` for the home directory."""
    return local_path(location).expanduser().absolute()
