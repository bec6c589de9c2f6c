"""Which topics exist: one directory with a Delta table each under ``<data>/topics``, and nothing else.

Invariants: no two names differ only by case or by ``.`` and ``_``; a topic appears and disappears by one rename, so a
crash leaves it whole or absent. What was deleted waits in ``<data>/deleted`` for its files to be removed.
"""

import re
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

import structlog

from logstore.delta.topic_table import TopicTable
from logstore.errors import InvalidTopicError, TopicExistsError
from logstore.filesystem import FileSystem
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.segments.layout import layout_of

log = structlog.stdlib.get_logger(__name__)

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless a user may create a topic of that name."""
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        shown = name if len(name) <= TOPIC_NAME_LENGTH_MAX else name[:32] + "..."
        raise InvalidTopicError(
            f"Topic name {shown!r} is not allowed: use 1 to {TOPIC_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - "
            "(but not '.' or '..')."
        )
    if name.startswith("__"):
        raise InvalidTopicError(f"Topic name {name!r} is not allowed: names that begin with '__' are internal.")


def check_no_collision(name: str, existing: Iterable[str]) -> None:
    """Raise TopicExistsError for the same name, InvalidTopicError for one that a metric or file name would confuse."""
    for other in existing:
        if other == name:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        if _folded(other) == _folded(name):
            raise InvalidTopicError(
                f"Topic '{name}' collides with the existing '{other}': names may not differ only by case "
                "or by '.' and '_'."
            )


def _folded(name: str) -> str:
    return name.lower().replace(".", "_")


class TopicCatalog:
    """Blocking; the broker calls it from threads, one change at a time."""

    def __init__(self, data: Path, filesystem: FileSystem) -> None:
        self._topics = data / "topics"
        self._staging = data / "staging"
        self._deleted = data / "deleted"
        self._filesystem = filesystem
        filesystem.make_directory(self._topics)

    def load(self) -> dict[str, TopicTable]:
        """All topics on disk. What a crash left behind of a creation or deletion is removed."""
        shutil.rmtree(self._staging, ignore_errors=True)
        self.purge()
        tables = {}
        for path in sorted(self._topics.iterdir()):
            if _NAME.fullmatch(path.name) and (path / "_delta_log").is_dir():
                tables[path.name] = TopicTable.open(path, filesystem=self._filesystem)
            else:
                log.warning("catalog.not_a_topic", path=str(path))
        return tables

    def create(self, name: str, *, num_partitions: int, config_overrides: dict[str, str]) -> TopicTable:
        return TopicTable.create(
            self._topics / name,
            num_partitions=num_partitions,
            config_overrides=config_overrides,
            filesystem=self._filesystem,
            staging=self._staging,
            layout=layout_of(name),
        )

    def remove(self, name: str) -> None:
        """Take the topic away in one step; ``purge`` deletes its files."""
        self._filesystem.make_directory(self._deleted)
        self._filesystem.rename(self._topics / name, self._deleted / uuid.uuid4().hex)
        self._filesystem.sync_directory(self._topics)

    def purge(self) -> None:
        shutil.rmtree(self._deleted, ignore_errors=True)
