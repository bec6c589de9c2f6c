"""The topics that a job works on: tables below ``<data>/topics``, by name or glob."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import TopicTable
from logstore.errors import DataDirectoryError, LogStoreError, UnknownTopicError
from logstore.table_root import TableRoot
from logstore.topic_config import TopicConfig

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class JobTopic:
    """A topic. ``defaults`` are the store's topic keys; ``named`` is set if it was requested by name, not by a glob."""

    name: str
    table: TopicTable
    defaults: Mapping[str, str]
    named: bool

    def config(self, snapshot: TopicSnapshot) -> TopicConfig:
        """Return the configuration. Raises InvalidConfigError for a table property that was set bypassing the store."""
        return TopicConfig.parse(snapshot.config_overrides, self.defaults)

    def is_deleted(self) -> bool:
        """Return True if the topic is deleted; False also if that cannot be determined."""
        try:
            return not self.table.files.exists()
        except OSError:
            return False


def select_topics(root: TableRoot, patterns: Sequence[str], defaults: Mapping[str, str]) -> list[JobTopic]:
    """Return the topics that match any pattern, by name; all of them without one.

    A copy of a topic's directory, or a link to it, is not a topic. Raises DataDirectoryError if ``root`` is not a
    store's, UnknownTopicError for a pattern without a match, except a pattern for all topics where there are none.
    """
    if not root.exists():
        raise DataDirectoryError(f"{root.data} is not a store's data directory: there is no {root.where()}")
    names = root.tables()
    for pattern in patterns:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
            what = f"no topic that matches {pattern!r}" if _GLOB.search(pattern) else f"no topic {pattern!r}"
            raise UnknownTopicError(f"There is {what} in {root.data}")
    chosen = [name for name in names if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    opened = {name: open_topic(root, name, defaults, named=name in patterns) for name in chosen}
    for name, topic in opened.items():
        if topic is None and name in patterns:
            raise UnknownTopicError(f"{root.where(name)} is a copy of another topic, or a link to it: it is no topic")
    return [topic for topic in opened.values() if topic]


def open_topic(root: TableRoot, name: str, defaults: Mapping[str, str], *, named: bool = False) -> JobTopic | None:
    """Open the topic of table ``name``; return None if that is a copy of a topic's directory, or a link to it."""
    # TopicTable.open would write, but a dry run must not cause even an fsync.
    table = TopicTable(root.open(name))
    return None if _is_copy(root, table) else JobTopic(name, table, defaults, named)


def _is_copy(root: TableRoot, table: TopicTable) -> bool:
    """Return True if the store would refuse the table because it is another topic's."""
    if root.link_target(table.files.name) is not None:
        return True
    try:
        return table.snapshot().topic_name not in {None, table.files.name}
    except (LogStoreError, OSError):
        return False  # the run reports the problem, and continues with the others
