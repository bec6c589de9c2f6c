"""The entries of topics' Delta logs, and the entries that a power cut took."""

from collections.abc import Iterable
from pathlib import Path

#: The contents by topic and version.
Entries = dict[tuple[str, int], bytes]


def table_entries(data: Path, topics: Iterable[str]) -> Entries:
    """Read all entries of the tables under ``data`` / ``topics``."""
    return {
        (topic, int(path.stem)): path.read_bytes()
        for topic in topics
        for path in (data / "topics" / topic / "_delta_log").glob("*.json")
        if path.stem.isdigit()
    }


def lost_entries(before: Entries, after: Entries) -> list[tuple[str, int, str]]:
    """Return topic, version and remaining content of each entry that has changed or is gone."""
    return [
        (topic, version, _left(content, after.get((topic, version))))
        for (topic, version), content in sorted(before.items())
        if after.get((topic, version)) != content
    ]


def _left(before: bytes, after: bytes | None) -> str:
    return "nothing" if after is None else f"{len(after)} of {len(before)} bytes"
