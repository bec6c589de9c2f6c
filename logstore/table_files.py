"""The files of a topic's table, by relative name: the only way from the store, its jobs and its tools to table data.

It uses a local directory, through the ``FileSystem``; an object store could also keep its names and promises.
``logstore.table_root`` has the tables of a store.

Invariants:

- A name is relative to its table, with ``/`` between its parts; a name that leads out of the table is a
  CorruptionError, because names come from logs that others write to.
- ``list`` gives every file below a directory once, by rising name (code points), with the version that it had then.
  Files that come or go meanwhile may be in it or not. A missing directory has no files, but a missing table or log is a
  FileNotFoundError: nobody may take a lost one for an empty one.
- A version is opaque: two versions of a name are equal only if its content is the same.
- ``read_ranges`` fills every buffer, or raises: OSError as the disk does, EOFError if the file ends before. The content
  of buffers is undefined after an error.
- ``put_if_absent`` is atomic: of several writers of a name one wins, and a reader sees the whole content or no file.
  True: the content is durable under its name. False: the name is taken, and nothing was changed. OutcomeUnknownError:
  the file exists, but may be lost in a power cut. Any other OSError: the file does not exist.
- ``replace`` is atomic for readers, and durable on return. It changes nothing if the file is not as ``expected``.
  Locally the comparison and the change are two steps: a name that is replaced has one writer, the table's owner.
- ``create`` never makes a table: one that was removed does not come back. Only ``finish`` of an upload promises
  anything: on its return the bytes and the name are durable. Before that the name may be visible, with a part of the
  bytes. An upload that is aborted leaves no file; a crash may leave a part of one, which no commit names.
- ``sync`` makes files that others wrote (delta-rs syncs nothing, rule R7) durable with their names. It does not cover
  content that was renamed over one of them since its entry was looked up: compare the versions.

Blocking; safe from several threads at once. Every method raises OSError as the disk does.
"""

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.entropy import new_uuid
from logstore.errors import CorruptionError
from logstore.filesystem import Buffer, FileSystem, local_filesystem
from logstore.local_path import absolute_path

#: The directory that makes a directory a Delta table.
LOG_DIRECTORY: Final = "_delta_log"
_SET_ASIDE = re.compile(r"(.+)\.set-aside\d*")

_MARK_TICK_NS_MAX: Final = 2 * 10**9

#: Inode, size and modification time: another writer's commit that renames over a file changes them.
Version = tuple[int, int, int]


class OutcomeUnknownError(OSError):
    """A change took place, but making it durable failed: a power cut may take it back."""


class Entry(NamedTuple):
    """A file of a table, as it was when it was looked up. ``modified_ms`` is the storage's time."""

    name: str
    size: int
    modified_ms: int
    version: Version


#: It is called with the number of bytes that were read or written; it may wait.
Pace = Callable[[int], None]

#: The methods ``list`` and ``names`` hide these types from annotations.
Entries = list[Entry]
Names = list[str]


class Upload:
    """A new file, written from beginning to end. ``with files.create(name) as upload: ...; upload.finish()``."""

    def __init__(self, filesystem: FileSystem, path: Path, pace: Pace | None = None) -> None:
        self.size = 0
        self._filesystem, self._path, self._pace = filesystem, path, pace
        self._fd: int | None = filesystem.create(path)

    @property
    def is_open(self) -> bool:
        """True until the upload is finished or aborted."""
        return self._fd is not None

    def write(self, data: Buffer) -> None:
        """Append data; after a failure the upload must be aborted."""
        assert self._fd is not None
        written = self._filesystem.write_at(self._fd, [data], self.size)
        self.size += written
        if self._pace:
            self._pace(written)

    def finish(self) -> None:
        """Make the bytes durable, then the name. After an error abort it."""
        assert self._fd is not None
        self._filesystem.fdatasync(self._fd)
        # The name is synced before the file is released, which is removed after a failure.
        self._filesystem.sync_directory(self._path.parent)
        self._filesystem.close(self._fd)
        self._fd = None

    def abort(self) -> None:
        """Remove the file; does nothing after ``finish``."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        self._filesystem.close(fd)
        self._filesystem.unlink(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class TableFiles:
    """The files of one table. Made by ``TableRoot.open``, or by ``open_table`` if there is no root."""

    def __init__(
        self, path: Path, filesystem: FileSystem, pace: Pace | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Open a table by its path. ``clock`` is the clock of the process; the storage may have another time."""
        self.name = path.name
        self.clock = clock
        self._path = path
        self._prefix = f"{path}/"
        self._filesystem = filesystem
        self._pace = pace

    def __str__(self) -> str:
        return self.uri

    # ---- for others ---------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """The table's address for delta-rs, pyarrow, DuckDB and ``open_table``."""
        return str(self._path)

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The options that delta-rs needs besides the ``uri``."""
        return None

    @property
    def spark_uri(self) -> str:
        """The table's address for Spark. It is not ``Path.as_uri``, because Hadoop takes the text after the scheme as
        it is.
        """
        return f"file://{self._path.absolute()}"

    def where(self, name: str) -> str:
        """Return the place of a file, for messages."""
        return self._prefix + name

    def reached(self, point: str) -> None:
        """Name a point of a protocol, see ``FileSystem.reached``."""
        self._filesystem.reached(point)

    def paced(self, pace: Pace) -> "TableFiles":
        """Return the same files, with ``pace`` called for the bytes that ``read_ranges`` and uploads have moved."""
        return TableFiles(self._path, self._filesystem, pace, self.clock)

    def free_bytes(self) -> int:
        """Return the bytes that may still be written to the storage that holds the table."""
        return self._filesystem.free_bytes(self._path)

    @contextlib.contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Yield whether the lock ``name`` of this table is held here while the block runs; False if another holder, in
        any process of this storage, has it. The lock ends with its process.
        """
        fd = self._filesystem.try_lock(Path(self._place(name)))
        try:
            yield fd is not None
        finally:
            if fd is not None:
                self._filesystem.close(fd)

    # ---- reading ------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether the table exists, as far as that can be seen."""
        return self._filesystem.is_directory(self._prefix + LOG_DIRECTORY)

    def list(self, under: str, after: str = "") -> Entries:
        """Return the files below the directory ``under`` ("" for all) whose names come after ``after``, by rising name.
        Raises FileNotFoundError without a table, or without a log if that is listed.
        """
        found: Entries = []
        directory = self._place(under) if under else str(self._path)
        try:
            self._list(directory, f"{under}/" if under else "", after, found)
        except FileNotFoundError:
            if under in ("", LOG_DIRECTORY) or not self._filesystem.is_directory(self._path):
                raise
        found.sort()
        return found

    def names(self, under: str, after: str = "") -> Names:
        """Return the names directly in the directory ``under`` that come after ``after``, rising. It is cheaper than
        ``list``, which looks at every file. Directories are among them. Raises FileNotFoundError.
        """
        prefix, least = f"{under}/", after.removeprefix(f"{under}/")
        return [prefix + name for name in sorted(self._filesystem.names(self._place(under))) if name > least]

    def head(self, name: str) -> Entry:
        """Return the entry of a file. Raises FileNotFoundError."""
        return _entry(name, self._filesystem.stat(self._place(name)))

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        filesystem = self._filesystem
        fd = filesystem.open_read(self._place(name))
        try:
            content = bytearray(filesystem.size(fd))
            if (filled := self._fill(fd, memoryview(content), 0)) < len(content):
                del content[filled:]
            return bytes(content)
        finally:
            filesystem.close(fd)

    def read_ranges(self, name: str, ranges: Iterable[tuple[int, memoryview]]) -> None:
        """Fill each buffer with the bytes from its position on. Raises FileNotFoundError and EOFError."""
        filesystem = self._filesystem
        fd = filesystem.open_read(self._place(name))
        try:
            for position, buffer in ranges:
                if self._fill(fd, buffer, position) < len(buffer):
                    raise EOFError(f"{self.where(name)} ends before byte {position + len(buffer)}")
                if self._pace:
                    self._pace(len(buffer))
        finally:
            filesystem.close(fd)

    def mark(self, under: str) -> int | None:
        """Return when a name was last added to the directory ``under`` or removed from it; None if that was so recently
        that a further change might not show, or if the directory does not exist.

        File systems count this time in ticks of up to two seconds, and two names may come within one tick.
        """
        try:
            changed = self._filesystem.stat(self._place(under)).st_mtime_ns
        except OSError:
            return None
        return changed if self.clock.now_ms() * 1_000_000 - changed > _MARK_TICK_NS_MAX else None

    def now_ms(self) -> int:
        """Return the time of the storage, in milliseconds since the Unix epoch."""
        return self._filesystem.now_ns(self._path) // 1_000_000

    # ---- writing ------------------------------------------------------------------------------------------------

    def create(self, name: str) -> Upload:
        """Begin a new file. Raises FileExistsError, and FileNotFoundError if the table was removed."""
        path = Path(self._place(name))
        self._make_directories(path.parent)
        return Upload(self._filesystem, path, self._pace)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Store ``content`` durably under a name, and return whether the name was free. Raises OutcomeUnknownError."""
        path = Path(self._place(name))
        self._make_directories(path.parent)
        aside = self._write_aside(path, content)
        try:
            self._filesystem.link(aside, path)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):  # a file that is left over has a name that nobody reads
                self._filesystem.unlink(aside)
        self._settle(path)
        return True

    def replace(self, name: str, content: bytes, expected: Entry) -> Entry | None:
        """Replace a file, and return its new entry; None, and nothing is changed, if it is no longer as ``expected``.
        Raises OutcomeUnknownError.
        """
        path = Path(self._place(name))
        try:
            if self.head(name).version != expected.version:
                return None
        except FileNotFoundError:
            return None
        aside = self._write_aside(path, content)
        try:
            self._filesystem.rename(aside, path)
        except OSError:
            with contextlib.suppress(OSError):
                self._filesystem.unlink(aside)
            raise
        self._settle(path)
        return self.head(name)

    def remove(self, names: Iterable[str], *, durable: bool = True) -> None:
        """Remove files; without ``durable`` a power cut may bring them back. Raises FileNotFoundError."""
        removed = [Path(self._place(name)) for name in names]
        for path in removed:
            self._filesystem.unlink(path)
        if durable:
            self._sync_directories(removed)

    def discard(self, names: Iterable[str]) -> None:
        """Remove files that no commit names, as far as possible. A crash or an error may leave some behind; these are
        logged, and a vacuum deletes them.
        """
        for name in names:
            try:
                self.remove([name], durable=False)
            except OSError as error:
                import structlog  # imported late: Spark's workers read tables without it

                log = structlog.stdlib.get_logger(__name__)
                log.warning("table.leftover", file=self.where(name), why=str(error))

    def set_aside(self, name: str) -> str:
        """Give a file, durably, a name that no Delta reader, writer or clean-up takes for one of its files. Return the
        name.
        """
        path = Path(self._place(name))
        taken = set(self._filesystem.names(path.parent))
        aside = next(aside for n in itertools.count() if (aside := f"{path.name}.set-aside{n or ''}") not in taken)
        self._filesystem.rename(path, path.with_name(aside))
        self._sync_directories([path])
        return name[: len(name) - len(path.name)] + aside

    def put_back(self, aside: str) -> None:
        """Undo ``set_aside``."""
        name = _SET_ASIDE.fullmatch(aside)
        assert name is not None
        path = Path(self._place(name[1]))
        self._filesystem.rename(Path(self._place(aside)), path)
        self._sync_directories([path])

    def sync(self, names: Iterable[str]) -> None:
        """Make files that others wrote durable, and their names."""
        paths = [Path(self._place(name)) for name in names]
        for path in paths:
            self._filesystem.sync_file(path)
        self._sync_directories(paths)

    def sync_names(self, under: str) -> None:
        """Make the set of names in the directory ``under`` durable."""
        self._filesystem.sync_directory(Path(self._place(under)))

    def sync_removals(self) -> None:
        """Make it durable that files are gone which anybody has removed, also a process that was killed since."""
        self._sync_tree(str(self._path))

    def _sync_tree(self, directory: str) -> None:
        for child in self._filesystem.names(directory):
            with contextlib.suppress(FileNotFoundError):
                if self._filesystem.is_directory(path := f"{directory}/{child}"):
                    self._sync_tree(path)
        self._filesystem.sync_directory(Path(directory))

    # ---- local --------------------------------------------------------------------------------------------------

    def _place(self, name: str) -> str:
        bounded = f"/{name}/"
        if "//" in bounded or "/../" in bounded or "/./" in bounded or "\0" in bounded:
            raise CorruptionError(f"{self._path}: {name!r} is not the name of a file within the table")
        return self._prefix + name

    def _fill(self, fd: int, buffer: memoryview, position: int) -> int:
        """Return how many of the wanted bytes exist: a read may stop early before the end of the file."""
        filled = self._filesystem.read_into(fd, buffer, position)
        while 0 < filled < len(buffer):
            more = self._filesystem.read_into(fd, buffer[filled:], position + filled)
            if not more:
                break
            filled += more
        return filled

    def _list(self, directory: str, prefix: str, after: str, found: Entries) -> None:
        filesystem = self._filesystem
        for child in filesystem.names(directory):
            name = prefix + child
            # "0" follows "/": if it were a directory, all names in it would come before `after`.
            if name <= after and f"{name}0" <= after:
                continue
            try:
                status = filesystem.stat(f"{directory}/{child}")
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                with contextlib.suppress(FileNotFoundError):
                    self._list(f"{directory}/{child}", f"{name}/", after, found)
            elif name > after:
                found.append(_entry(name, status))

    def _make_directories(self, path: Path) -> None:
        """Create directories, only within the table."""
        directory = self._path
        for name in path.relative_to(self._path).parts:
            directory /= name
            self._filesystem.make_directory(directory, parents=False)

    def _write_aside(self, path: Path, content: bytes) -> Path:
        """Write a durable file beside ``path``; its name need not be durable."""
        aside = path.with_name(f"{path.name}.{new_uuid().hex}.tmp")
        fd = self._filesystem.create(aside)
        try:
            try:
                self._filesystem.write_at(fd, [content], 0)
                self._filesystem.fdatasync(fd)
            finally:
                self._filesystem.close(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._filesystem.unlink(aside)
            raise
        return aside

    def _settle(self, path: Path) -> None:
        """Make a completed change of a name durable. Raises OutcomeUnknownError."""
        try:
            self._filesystem.sync_directory(path.parent)
        except OSError as error:
            raise OutcomeUnknownError(error.errno, error.strerror, str(path)) from error

    def _sync_directories(self, paths: Iterable[Path]) -> None:
        for directory in dict.fromkeys(path.parent for path in paths):
            self._filesystem.sync_directory(directory)


def open_table(location: str | os.PathLike[str], filesystem: FileSystem | None = None) -> TableFiles:
    """Open a table by its ``uri``, a path or a ``file://`` location. Raises DataDirectoryError."""
    return TableFiles(absolute_path(location), filesystem or local_filesystem())


def find_file(path: Path) -> tuple[TableFiles, str]:
    """Return the table and the name of a file that a person named by its path, as in ``segment dump``."""
    path = path.absolute()
    depth = 1 if path.parent.name.startswith("partition=") else 0
    table = path.parents[depth]
    return open_table(table), path.relative_to(table).as_posix()


def _entry(name: str, status: os.stat_result) -> Entry:
    version = (status.st_ino, status.st_size, status.st_mtime_ns)
    return Entry(name, status.st_size, status.st_mtime_ns // 1_000_000, version)
