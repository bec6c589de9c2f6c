"""Small JSON files with a checksum: a read returns what was written, or raises an error."""

import json
from collections.abc import Mapping
from pathlib import Path

from logstore.crc32c import crc32c
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem

_CHECKSUM = "crc32c"


def encode(content: Mapping[str, object]) -> bytes:
    return json.dumps({**content, _CHECKSUM: _checksum(content)}).encode()


def write(filesystem: FileSystem, path: Path, content: Mapping[str, object]) -> None:
    """Write the file durably, all or nothing. Raises OSError."""
    filesystem.write_atomically(path, encode(content))


def read(filesystem: FileSystem, path: Path, give_up: str) -> dict[str, object]:
    """Return the content, {} without a file. Raises DataDirectoryError if the file has changed since it was written.

    ``give_up`` completes the message: how to do without the content.
    """
    try:
        content = json.loads(filesystem.read_file(path))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise damaged(path, give_up) from error
    if not isinstance(content, dict):
        raise damaged(path, give_up)
    stored = content.pop(_CHECKSUM, None)
    if not content or stored != _checksum(content):
        raise damaged(path, give_up)
    return content


def damaged(path: Path, give_up: str) -> DataDirectoryError:
    return DataDirectoryError(f"{path} is damaged: it is not what was written. Restore it from a backup, or {give_up}.")


def _checksum(content: Mapping[str, object]) -> str:
    return f"{crc32c(json.dumps(content, sort_keys=True).encode()):08x}"
