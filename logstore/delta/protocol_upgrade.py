"""Tables whose protocol another writer upgraded, and the command that takes it back.

Readers of this project know neither deletion vectors nor column mapping: they would serve deleted rows, or none. So
a table that asks readers for more is refused. One that asks only writers for more is read, and takes no commits.
"""

import contextlib
import shlex
from collections.abc import Collection

from logstore.delta.log_entries import list_log, read_actions
from logstore.delta.schema import PROTOCOL
from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError, UnsupportedTableError
from logstore.table_files import TableFiles

_FEATURES = {
    "delta.enableDeletionVectors": "deletion vectors",
    "delta.columnMapping.mode": "column mapping",
    "delta.enableChangeDataFeed": "the change data feed",
    "delta.enableRowTracking": "row tracking",
    "delta.enableTypeWidening": "type widening",
}


def require_readable(files: TableFiles, snapshot: TopicSnapshot, reader_features: Collection[str]) -> None:
    """UnsupportedTableError if the table asks readers for more than this release does."""
    if snapshot.protocol[0] == _MAPPING_READER or reader_features:
        raise upgraded(files, snapshot)


def upgraded(files: TableFiles, snapshot: TopicSnapshot) -> UnsupportedTableError:
    """The upgrade in words, with the command that takes it back."""
    found = [feature for name, feature in _FEATURES.items() if snapshot.properties.get(name, "false") not in _OFF]
    what = f" (for {' and '.join(found)})" if found else ""
    reader, writer = snapshot.protocol
    return UnsupportedTableError(
        f"{files} was upgraded to reader {reader} / writer {writer}{what}; a topic stays at reader {PROTOCOL[0]} / "
        f"writer {PROTOCOL[1]}",
        _remedy(files),
    )


#: Before protocols had lists of features, this version was column mapping.
_MAPPING_READER = 2
_OFF = {"", "false", "none"}


def _remedy(files: TableFiles) -> str:
    version = _upgraded_in(files)
    before = "VERSION" if version is None else version - 1
    command = restore_command(str(files), before, "protocol_downgrade_allowed=True")
    where = "" if version is not None else ", where VERSION is the one before the upgrade"
    return f"Take the upgrade back: {command}{where}; the store commits rolls that this takes out again"


def restore_command(location: str, version: int | str, *options: str) -> str:
    """The command for a shell that restores a table to a version."""
    restore = f"DeltaTable({_quoted(location)}).restore({', '.join((str(version), *options))})"
    return shlex.join(("python", "-c", f"from deltalake import DeltaTable; {restore}"))


def _quoted(text: str) -> str:
    """A literal of Python in double quotes where that can be, which a shell's single quotes leave as it is."""
    return f'"{text}"' if text.isprintable() and not set(text) & set('"\\') else repr(text)


def _upgraded_in(files: TableFiles) -> int | None:
    """The version of the oldest upgrade that nobody has taken back; None if it is not in the log any more."""
    upgraded: int | None = None
    with contextlib.suppress(OSError, CorruptionError):
        for version in sorted(list_log(files).entries):
            for action in read_actions(files, version):
                if (protocol := action.protocol) is not None:
                    asked = protocol.min_reader_version, protocol.min_writer_version
                    upgraded = None if asked == PROTOCOL else version if upgraded is None else upgraded
        return upgraded
    return None
