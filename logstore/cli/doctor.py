"""``logstore doctor``: check all that a store and its readers need, and give advice for what is missing.

Checks run on this machine; a running store is asked over HTTP (``store_checks``).
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.checks import Check, Status
from logstore.cli.data_directory import journals_in, kafka_of_data, log_directories, stopped_store, url_of_data
from logstore.cli.distributions import installation
from logstore.cli.output import bytes_text, counted, print_json, print_table
from logstore.command_line.command_group import FAILED
from logstore.command_line.options import JsonOption, UrlOption, given_path, given_url

if TYPE_CHECKING:
    from logstore.tls.options import TlsOptions

EXAMPLES = """\b
Examples:
  logstore doctor
  logstore doctor --data /srv/log --port 9092 --json
  logstore doctor --url http://10.0.0.5:8082
"""
PYTHON_MIN = (3, 11)
JAVA_MIN = 17
_JAVA_SECONDS_MAX = 20
_RENEW_DAYS = 14
_DISK_BYTES_MIN = 1024**3


def doctor(
    ctx: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", parser=given_path, help="Data directory. [default: as for serve]", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port. [default: as for serve]", show_default=False)
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address. [default: as for serve]", show_default=False)] = None,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Check this machine (Python, Java, Spark's jars) and a store. --url, LOGSTORE_URL or a profile names the store.
    Without a name, or with --data, --port or --host, the store on this machine is checked: port, disk, data directory,
    and the process that runs on it.

    'warn' is worth a look, 'fail' will not work; exit code 1 if anything fails. Changes nothing.
    """
    here = any(given is not None for given in (data, host, port))
    checks = list(run_checks(data, host, port, url=None if here and url is None else given_url(ctx, url)))
    if json:
        print_json(checks)
    else:
        print_table(
            ["check", "status", "found", "what to do"],
            [(check.name, check.status.value, check.found, check.advice) for check in checks],
        )
    if any(check.status is Status.fail for check in checks):
        raise typer.Exit(FAILED)


def run_checks(data: Path | None, host: str | None, port: int | None, *, url: str | None = None) -> Iterator[Check]:
    """Yield checks of the store at ``url``; with None, of the data directory here and the store on it."""
    from logstore.cli.store_checks import check_store

    yield check_distribution()
    yield check_python()
    yield check_java()
    yield check_jars()
    if url is None:
        yield from _local_checks(data, host, port)
    else:
        yield from check_store(url)


def _local_checks(data: Path | None, host: str | None, port: int | None) -> Iterator[Check]:
    if not importlib.util.find_spec("fastapi"):
        yield Check("server", Status.warn, "not installed", "To run a store here: pip install 'delta-logstore[server]'")
        return
    from logstore.cli.store_checks import check_open_files, check_store
    from logstore.errors import InvalidConfigError
    from logstore.open_files import open_files_limit
    from logstore.settings import load_settings

    try:
        settings = load_settings(data=data, host=host, port=port)
    except InvalidConfigError as error:
        yield Check("settings", Status.fail, error.message, "Correct conf/logstore.toml or the LOGSTORE_* variable.")
        return
    running = url_of_data(settings.data)
    if settings.tls_options is not None:
        yield check_certificate(settings.tls_options)
    yield check_port(settings.host, settings.port, running)
    if settings.kafka_address is not None:
        yield check_port(*settings.kafka_address, kafka_of_data(settings.data), "--kafka-port")
    yield check_data(settings.data)
    yield from check_journals(settings.data, settings.log_directory)
    yield check_disk(settings.data, settings.journal_max_bytes)
    if running is None:
        yield check_open_files(open_files_limit(), settings.max_connections)
    else:
        yield from check_store(running)


def check_distribution() -> Check:
    """Check which distribution this program is, and whether another one with the same import name is installed."""
    found = installation()
    if found.warning is None:
        return Check("distribution", Status.ok, found.own)
    return Check("distribution", Status.warn, f"{found.own}; {found.warning}", f"Mend it with {found.remedy}.")


def check_python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MIN:
        return Check("Python", Status.fail, found, "Python 3.11 or newer is needed: sudo apt-get install python3.11")
    return Check("Python", Status.ok, found)


def check_java() -> Check:
    """Check Java. Only Spark needs it, so its absence is no failure if pyspark is not installed."""
    bad = Status.fail if importlib.util.find_spec("pyspark") else Status.warn
    install = "Spark needs Java 17 or newer, the store does not: sudo apt-get install openjdk-17-jre-headless"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return Check("Java", bad, "none", install)
    try:
        ran = subprocess.run(  # noqa: S603 (the java that Spark would run)
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS_MAX, check=True
        )
    except FileNotFoundError:
        return Check("Java", bad, f"{java} is not there", f"Unset JAVA_HOME, or set it right. {install}")
    except (OSError, subprocess.SubprocessError) as error:
        return Check("Java", bad, f"{java} does not run: {error}", install)
    # The version is in `openjdk version "17.0.15"` or `java version "1.8.0_412"`.
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', ran.stderr + ran.stdout)
    if version is None or int(version[1]) < JAVA_MIN:
        return Check("Java", bad, version[0] if version else f"{java} of an unknown version", install)
    return Check("Java", Status.ok, f"{version[0].removeprefix('version ').strip(chr(34))} ({java})")


def check_jars() -> Check:
    if not importlib.util.find_spec("pyspark"):
        return Check(
            "Spark", Status.warn, "pyspark is not installed", "To read with Spark: pip install 'delta-logstore[spark]'"
        )
    from logstore.spark import jars
    from logstore.spark.spark_conf import user_settings

    found = jars.find(user_settings().get("spark.jars.ivy"))
    if found is None:
        return Check(
            "Spark jars",
            Status.warn,
            "not fetched yet",
            "The first session fetches them; now: python -m logstore.spark.jars",
        )
    return Check("Spark jars", Status.ok, f"Delta {jars.DELTA_VERSION} in {found[0].parent}")


def check_port(host: str, port: int, running: str | None, option: str = "--port") -> Check:
    """Check that a port is free. ``running`` is the address of the store on the data directory; None if none runs."""
    name = f"port {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except OSError as error:
        if running and running.endswith(f":{port}"):
            return Check(name, Status.ok, f"in use by this store, at {running}")
        return Check(
            name,
            Status.fail,
            f"{host}: {error.strerror or error}",
            f"Stop the program that uses it, or choose another: {option} N",
        )
    return Check(name, Status.ok, f"free on {host}")


def check_certificate(options: "TlsOptions") -> Check:
    """Check the files of TLS as a start does, and how long the certificate is valid."""
    from logstore.clock import SystemClock
    from logstore.errors import InvalidConfigError
    from logstore.tls.contexts import make_contexts

    name, now_ms = "certificate", SystemClock().now_ms()
    try:
        certificate = make_contexts(options, now_ms).certificate
    except InvalidConfigError as error:
        return Check(
            name, Status.fail, error.message, "Correct the file: the next start, or the next renewal, needs it."
        )
    found = f"{certificate.subject}, valid until {certificate.not_after}"
    if certificate.not_after_ms - now_ms < _RENEW_DAYS * 86_400_000:
        return Check(name, Status.warn, found, f"Renew {options.keystore_location}: the store takes the new file.")
    return Check(name, Status.ok, found)


def check_data(data: Path) -> Check:
    name = "data directory"
    if not data.exists():
        parent = next(parent for parent in data.resolve().parents if parent.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            return Check(name, Status.fail, f"{data} cannot be made in {parent}", "Choose another: --data DIR")
        return Check(name, Status.ok, f"{data} does not exist yet: serve makes it")
    if not data.is_dir():
        return Check(name, Status.fail, f"{data} is not a directory", "Choose another: --data DIR")
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        return Check(name, Status.fail, f"{data} is not writable by you", f"sudo chown -R $(id -u) {data}")
    from logstore.names import is_internal
    from logstore.table_root import open_root

    # As for a running store below, internal topics do not count.
    topics = [name for name in open_root(data).tables() if not is_internal(name)]
    held = f"{data}: {counted(len(topics), 'topic')}"
    # A broker of a cluster has no lock there.
    if not (data / "lock").exists() and url_of_data(data) is None:
        return Check(name, Status.ok, f"{held}, no store runs on it")
    from logstore.errors import DataDirectoryError

    try:
        with stopped_store(data, journals_in(log_directories(data, quiet=True))):
            return Check(name, Status.ok, f"{held}, no store runs on it")
    except DataDirectoryError:
        at = url_of_data(data)
        return Check(name, Status.ok, f"{held}, a store runs on it{f' at {at}' if at else ''}")


def check_journals(data: Path, log_directory: Path) -> Iterator[Check]:
    """Check the journals of all brokers of ``data``, and of the one with ``log_directory``."""
    from logstore.cluster.log_directory_record import BrokerDirectory, broker_directories

    named = [log_directory] if (log_directory / "journal").is_dir() else []
    found = broker_directories(data, named) or [BrokerDirectory("", log_directory)]
    for one in found:
        name = "journal" if len(found) == 1 else f"journal of broker {one.broker}"
        if one.out_of_reach is None:
            yield check_journal(one.path, name)
        else:
            yield Check(name, Status.warn, one.out_of_reach, "Also run this on that machine.")


def check_journal(home: Path, name: str = "journal") -> Check:
    """Check only sizes and heads; ``journal verify`` reads the journal."""
    if (differs := _difference(home)) is not None:
        return Check(name, Status.fail, differs, "See: logstore journal verify")
    corrupt = sorted(home.glob("journal/*/*.corrupt*"))
    size = sum(file.stat().st_size for file in home.glob("journal/*/*.log"))
    if corrupt:
        return Check(
            name,
            Status.warn,
            f"{bytes_text(size)}; copies of an earlier repair: {corrupt[0]}",
            "Delete when not needed.",
        )
    return Check(name, Status.ok, bytes_text(size))


def _difference(home: Path) -> str | None:
    """Return how the journal in ``home`` differs from the one that was there before, or None if it does not.

    Only the head and the size of its newest file are compared.
    """
    from logstore.cluster.log_directory import journal_check
    from logstore.errors import LogStoreError
    from logstore.filesystem import local_filesystem
    from logstore.journal.identity import FoundJournal
    from logstore.journal.journal_file import JournalFile, list_files

    journal = home / "journal" / "0"
    try:
        check = journal_check(home)  # before the files: those of a running broker only grow
        files = list_files(journal, local_filesystem()) if journal.is_dir() else []
        if not files:
            check(FoundJournal(journal, 0, None, is_empty=True))
            return None
        start, path = files[-1]
        newest = JournalFile.open(path, start, local_filesystem())
        newest.close()
        if newest.file_id is not None:
            check(FoundJournal(journal, start + newest.allocated, newest.identity, is_empty=False))
    except LogStoreError as error:
        return error.message
    except OSError:  # freed meanwhile, or no data directory
        return None
    return None


def check_disk(data: Path, journal_max_bytes: int) -> Check:
    existing = next(path for path in (data.resolve(), *data.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{bytes_text(free)} free at {existing}"
    if free < _DISK_BYTES_MIN:
        return Check("disk", Status.fail, found, "Free some space, or choose another disk: --data DIR")
    if free < journal_max_bytes:
        return Check(
            "disk", Status.warn, found, f"The journal may take {bytes_text(journal_max_bytes)} (journal.max.bytes)."
        )
    return Check("disk", Status.ok, found)
