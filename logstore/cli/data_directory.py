"""A store's data directory seen from outside: its journals, its topics, and whether a store runs on it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer

from logstore.endpoint_file import read_endpoint
from logstore.errors import DataDirectoryError, LogStoreError
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.lock_file import LockFile
from logstore.names import is_legal_name


def journal_directories(directory: Path | None, data: Path | None) -> list[Path]:
    """The journals of all brokers below ``--data``, or of a directory given as an argument: a data directory, a log
    directory of a broker, or a journal itself. Without either, those of the setting ``data``.

    A usage error when both are given; DataDirectoryError when there is no journal.
    """
    from logstore.settings import load_settings

    if directory is not None and data is not None:
        raise typer.BadParameter("give a journal's directory or --data, not both")
    given = directory or data or load_settings().data
    found = [*given.glob("brokers/*/journal/*/"), *given.glob("journal/*/")]
    if found:
        return sorted(found, key=lambda journal: (journal.parts[-3].zfill(12), journal.name))
    if given == directory and given.is_dir():
        return [given]
    raise DataDirectoryError(f"There is no journal in {given}: name a store's data directory, or a journal's own.")


def running_url(home: Path) -> str | None:
    """The URL of the store that serves the broker directory ``home``; None if it is unknown."""
    endpoint = read_endpoint(home)
    return None if endpoint is None else endpoint.url


def given_data(data: Path | None) -> Path:
    """``--data``, else the setting ``data``. DataDirectoryError if no store has been there."""
    from logstore.settings import load_settings

    given = data or load_settings().data
    if not (given / "topics").is_dir():
        raise DataDirectoryError(f"There is no data directory of a store at {given}: name one with --data DIR.")
    return given


def is_of_cluster(data: Path) -> bool:
    """Whether brokers that agree through ZooKeeper share the data directory. DataDirectoryError for a damaged file."""
    from logstore.cluster import checked_file

    return "coordinator" in checked_file.read(data / "cluster.json", "restore it")


def require_topics(data: Path, names: Sequence[str]) -> list[str]:
    """``names``; without any all tables below ``data``, and directories that have lost their Delta log.
    DataDirectoryError for a name that has no directory.
    """
    from logstore.table_root import open_root

    if not names:
        root = open_root(data)
        return sorted(
            [*root.tables(), *(name for name in root.strays() if [*(data / "topics" / name).glob("partition=*")])]
        )
    for name in names:
        if not is_legal_name(name, TOPIC_NAME_LENGTH_MAX) or not (data / "topics" / name).is_dir():
            raise DataDirectoryError(f"There is no topic {name!r} in {data}: it has no directory in {data / 'topics'}.")
    return list(dict.fromkeys(names))


@contextmanager
def stopped_store(home: Path, elsewhere: Sequence[Path] = ()) -> Iterator[None]:
    """Keeps stores from starting on the data directory of ``home``, a broker's; DataDirectoryError if one runs.

    Of brokers of a cluster whose ``log.dirs`` are elsewhere, those are seen that ``elsewhere`` names.
    """
    with ExitStack() as locks:
        outside = [journal for one in elsewhere for journal in one.glob("journal/*/")]
        for directory in (home.parent.parent, *sorted(home.parent.glob("*/journal/*/")), *outside):
            try:
                locks.callback(LockFile.acquire(directory).release)
            except DataDirectoryError:
                at = running_url(home)
                raise DataDirectoryError(
                    f"A store is running on {home.parent.parent}{f' at {at}' if at else ''}: stop it first."
                ) from None
        yield


def topic_names(data: Path) -> dict[str, str]:
    """Topic id to name, of the tables below ``data`` that can be read."""
    from logstore.delta.log_check import observed_snapshot
    from logstore.table_root import open_root

    root = open_root(data)
    names: dict[str, str] = {}
    for name in root.tables():
        try:
            names[str(observed_snapshot(root.open(name)).topic_id)] = name
        except LogStoreError:
            # Its frames then show with the id alone.
            continue
    return names
