"""The topics that a job works on: tables below ``<data>/topics``, by name or glob."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from logstore.delta.log_entries import LOG_DIRECTORY
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import TopicTable
from logstore.errors import DataDirectoryError, UnknownTopicError
from logstore.filesystem import FileSystem
from logstore.topic_config import TopicConfig

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class JobTopic:
    """``defaults`` are the store's topic keys; ``named`` = asked for by its whole name, not by a glob."""

    name: str
    table: TopicTable
    defaults: Mapping[str, str]
    named: bool

    def config(self, snapshot: TopicSnapshot) -> TopicConfig:
        """InvalidConfigError for a table property that was set past the store."""
        return TopicConfig.parse(snapshot.config_overrides, self.defaults)

    def is_deleted(self) -> bool:
        return not (self.table.path / LOG_DIRECTORY).is_dir()


def select_topics(
    data: Path, patterns: Sequence[str], defaults: Mapping[str, str], filesystem: FileSystem
) -> list[JobTopic]:
    """The topics that match any pattern, by name; all of them without one.

    Raises DataDirectoryError if ``data`` is no store's, UnknownTopicError for a pattern that matches none,
    unless it asks for all of none.
    """
    directory = data / "topics"
    if not directory.is_dir():
        raise DataDirectoryError(f"{data} is not a store's data directory: there is no {directory}")
    names = sorted(path.parent.name for path in directory.glob("*/_delta_log"))
    for pattern in patterns:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
            what = f"no topic that matches {pattern!r}" if _GLOB.search(pattern) else f"no topic {pattern!r}"
            raise UnknownTopicError(f"There is {what} in {data}")
    chosen = [name for name in names if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    # Not TopicTable.open: a dry run writes nothing, not even an fsync.
    return [JobTopic(n, TopicTable(directory.resolve() / n, filesystem), defaults, named=n in patterns) for n in chosen]
