"""A store's data directory seen from outside: its journals, its topics, and whether a store runs on it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from logstore.endpoint_file import read_endpoint
from logstore.errors import DataDirectoryError, InvalidConfigError, LogStoreError
from logstore.filesystem import local_filesystem
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.lock_file import LockFile
from logstore.names import is_legal_name

if TYPE_CHECKING:
    from logstore.inspection.observed_journal import ObservedJournal


def journal_directories(directory: Path | None, data: Path | None) -> list[Path]:
    """Return the journals of all brokers of ``--data``, or of a directory given as an argument.

    That may be a data directory, a log directory of a broker, or a journal itself. If neither is given, return those of
    the setting ``data``. Brokers whose journals are out of reach are reported on stderr. Raises a usage error if both
    are given; DataDirectoryError if there is no journal.
    """
    from logstore.settings import load_settings

    if directory is not None and data is not None:
        raise typer.BadParameter("give a journal's directory or --data, not both")
    given = directory or data or load_settings().data
    found = journals_in([*log_directories(given), given])
    if found:
        return found
    if given == directory and given.is_dir():
        return [given]
    raise DataDirectoryError(f"There is no journal in {given}: name a store's data directory, or a journal's own.")


def log_directories(data: Path, named: Sequence[Path] = (), *, quiet: bool = False) -> list[Path]:
    """Return the log directories of the brokers of ``data``, also those elsewhere (``log.dirs``), and the ``named``
    ones.

    Those out of reach are reported on stderr, unless ``quiet``.
    """
    from logstore.cluster.log_directory_record import broker_directories

    found = []
    for one in broker_directories(data, named):
        if one.out_of_reach is None:
            found.append(one.path)
        elif not quiet:
            typer.echo(f"logstore: a journal was left out: {one.out_of_reach}", err=True)
    return found


def log_directory_of(journal: Path) -> Path:
    """Return the log directory that contains a broker's journal."""
    return journal.resolve().parent.parent


def observed_journal(journal: Path) -> "ObservedJournal":
    """Open the journal of a broker for reading. Raises DataDirectoryError, StorageError.

    Reading it raises JournalDiffersError after the last frame if it is not the journal that was there before.
    """
    from logstore.cluster.log_directory import journal_check
    from logstore.inspection.observed_journal import ObservedJournal

    return ObservedJournal(journal, check=journal_check(log_directory_of(journal)))


def require_no_journal(home: Path) -> None:
    """Raise JournalDiffersError if the log directory ``home`` has lost its journal; DataDirectoryError."""
    from logstore.cluster.log_directory import journal_check
    from logstore.cluster.log_directory_record import RECORD
    from logstore.journal.identity import FoundJournal

    if not (home / RECORD).exists():  # else the broker has it elsewhere by now
        journal_check(home)(FoundJournal(home / "journal" / "0", 0, None, is_empty=True))


def journals_in(homes: Iterable[Path]) -> list[Path]:
    """Return the journals in log directories."""
    return [journal for home in homes for journal in sorted(home.glob("journal/*/"))]


def data_of(journal: Path, given: Path | None = None) -> Path | None:
    """Return the data directory of the journal's store, or None for a journal that belongs to none.

    It is the one that contains the journal, else ``given`` or the setting ``data``, if a broker has recorded there that
    the journal is its own.
    """
    from logstore.cluster.log_directory_record import broker_directories
    from logstore.settings import load_settings

    parents = journal.resolve().parents
    if len(parents) > 3 and (parents[3] / "topics").is_dir():
        return parents[3]
    candidates = [] if given is None else [given]
    with suppress(InvalidConfigError):
        candidates.append(load_settings().data)
    for data in candidates:
        if any(one.out_of_reach is None and one.path.resolve() in parents for one in broker_directories(data)):
            return data
    return None


def running_url(home: Path) -> str | None:
    """Return the URL of the store that serves the broker directory ``home``; None if it is unknown."""
    endpoint = read_endpoint(home)
    return None if endpoint is None else endpoint.url


def given_data(data: Path | None) -> Path:
    """Return ``--data``, else the setting ``data``. Raises DataDirectoryError if no store has been there."""
    from logstore.settings import load_settings

    given = data or load_settings().data
    if not (given / "topics").is_dir():
        raise DataDirectoryError(f"There is no data directory of a store at {given}: name one with --data DIR.")
    return given


def is_of_cluster(data: Path) -> bool:
    """Return True if brokers of a cluster share the data directory. Raises DataDirectoryError for a damaged file."""
    from logstore.cluster import checked_file

    return "coordinator" in checked_file.read(local_filesystem(), data / "cluster.json", "restore it")


def require_topics(data: Path, names: Sequence[str]) -> list[str]:
    """Return ``names``; if empty, all tables below ``data``, and directories that have lost their Delta log.

    Raises DataDirectoryError for a name that has no directory.
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
def stopped_store(data: Path | None, journals: Iterable[Path]) -> Iterator[None]:
    """Keep stores from starting on ``data``, and brokers on ``journals``. Raises DataDirectoryError if one runs.

    ``data`` is None for a journal that belongs to none.
    """
    with ExitStack() as locks:
        for directory in [*([] if data is None else [data]), *dict.fromkeys(one.resolve() for one in journals)]:
            try:
                locks.callback(LockFile.acquire(directory, local_filesystem()).release)
            except DataDirectoryError:
                where = directory if data is None else data
                at = None if data is None else url_of_data(data)
                raise DataDirectoryError(
                    f"A store is running on {where}{f' at {at}' if at else ''}: stop it first."
                ) from None
        yield


def url_of_data(data: Path) -> str | None:
    """Return the URL of a broker that serves ``data``; None if it is unknown."""
    found = (running_url(home) for home in sorted(data.glob("brokers/*/")))
    return next((url for url in found if url is not None), None)


def kafka_of_data(data: Path) -> str | None:
    """Return the host:port for Kafka's clients of a broker that serves ``data``; None if it is unknown."""
    found = (read_endpoint(home) for home in sorted(data.glob("brokers/*/")))
    return next((one.kafka for one in found if one is not None and one.kafka is not None), None)


def topic_names(data: Path) -> dict[str, str]:
    """Return names by topic id, of the tables below ``data`` that can be read."""
    from logstore.delta.log_check import observed_snapshot
    from logstore.table_root import open_root

    root = open_root(data)
    names: dict[str, str] = {}
    for name in root.tables():
        try:
            names[str(observed_snapshot(root.open(name)).topic_id)] = name
        except LogStoreError:
            # Its frames then show only the id.
            continue
    return names
