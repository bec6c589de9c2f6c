"""Checks of a running store over HTTP, for ``doctor``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from logstore import __version__
from logstore.cli.checks import Check, Status
from logstore.cli.output import bytes_text, counted, duration_text, problem_reason
from logstore.errors import LogStoreError

if TYPE_CHECKING:
    from logstore.protocol.messages.status import StoreStatus

# Rolls begin when the journal is half full; above this they do not keep up.
_JOURNAL_SHARE_MAX = 0.8


def check_store(url: str) -> Iterator[Check]:
    """Check the store that listens at ``url``."""
    from logstore.client.admin import Admin

    try:
        with Admin(url, client_id="logstore-cli", default_api_timeout_ms=0) as admin:
            found = admin.status()
    except LogStoreError as error:
        yield Check("store", Status.fail, error.message, "Start it (logstore serve), or name another: --url URL")
        return
    yield from checks_of(found, url)


def checks_of(found: "StoreStatus", url: str) -> Iterator[Check]:
    """Yield checks of the status that a store returns."""
    yield _readiness(found, url)
    if found.version != __version__:
        yield Check("version", Status.warn, f"{found.version}, this is {__version__}", "Use the same version.")
    yield from _topics(found)
    yield _journal(found)
    yield check_open_files(found.open_files_max, found.max_connections)


def check_open_files(limit: int | None, max_connections: int) -> Check:
    from logstore.open_files import open_files_shortage

    name = "open files"
    if (shortage := open_files_shortage(limit, max_connections)) is not None:
        reason, _, advice = shortage.partition(". ")
        return Check(name, Status.warn, reason, advice)
    return Check(name, Status.ok, "no limit" if limit is None else f"{limit:,} may be open")


def _readiness(found: "StoreStatus", url: str) -> Check:
    if found.not_ready_reason is not None:
        return Check("store", Status.fail, f"{url} is not ready: {found.not_ready_reason}", "See its log.")
    return Check(
        "store", Status.ok, f"{url} is ready, version {found.version}, up for {duration_text(found.uptime_ms)}"
    )


def _topics(found: "StoreStatus") -> Iterator[Check]:
    topics = [topic for topic in found.topics if not topic.is_internal]
    if not found.problems:
        records = counted(sum(topic.records for topic in topics), "record")
        yield Check("topics", Status.ok, f"{counted(len(topics), 'topic')}, {records}")
    for topic in topics:
        if topic.misfits:
            reason = f"{counted(topic.misfits, 'record')} did not fit"
            advice = f"See why: value_error in the table, or logstore topic columns show {topic.name}"
            yield Check(f"columns of {topic.name}", Status.warn, reason, advice)
    for problem in found.problems:
        where = problem.topic if problem.partition is None else f"{problem.topic}-{problem.partition}"
        yield Check(f"topic {where}", Status.fail, problem_reason(problem), problem.remedy)


def _journal(found: "StoreStatus") -> Check:
    journal = found.journal
    text = f"{bytes_text(journal.needed_bytes)} of {bytes_text(journal.max_bytes)} not yet in Delta"
    if journal.needed_bytes > _JOURNAL_SHARE_MAX * journal.max_bytes:
        advice = "Rolls do not keep up: see the store's log, or raise journal.max.bytes."
        return Check("journal of the store", Status.warn, text, advice)
    return Check("journal of the store", Status.ok, text)
