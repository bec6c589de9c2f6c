"""Faults by another program beside the store, which copies a topic's directory, removes locks or the journal, or
commits to a topic's table.

The store's duties that the checker cannot see are checked here: it refuses with the documented reason, and every other
log keeps working. When a fault is over the store has rolled the topic once more, so that no later fault prevents its
undoing.
"""

import contextlib
import functools
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from logstore.broker.topics.problems import ProblemState
from logstore.delta.snapshot import PartitionState
from logstore.delta.topic_table import TopicTable
from logstore.errors import LogStoreError
from logstore.table_files import open_table
from tests.faults.bench import foreign_commits
from tests.faults.bench.foreign_commits import Removal
from tests.faults.bench.history import Recorder
from tests.faults.bench.made_again import MadeAgain
from tests.faults.bench.nemesis import READY_S, Neighbour, Nemesis, StoreBrokenError, Streams
from tests.faults.bench.records import Record, stored
from tests.faults.bench.schedule import Fault
from tests.faults.bench.workload import Client, TopicSpec
from tests.support import lost_journals
from tests.support.lost_journals import durable_end, found_in, journal_of
from tests.support.server_process import FaultyServerProcess, NotStartedError

#: error_code values: refused until it is repaired, because records are missing; the offset is not in the log.
_QUARANTINED, _OUT_OF_RANGE = 50303, 41601
_ACCEPTED = 202
_POLL_S = 0.1
_TIMEOUT_S = 30.0
#: The store's messages about a journal that is no longer its own.
_NOT_THE_ONE, _REMOVED = "is not the one that was here before", "was removed or replaced while this process wrote to it"
Log = tuple[TopicSpec, int]


class Meddler(Nemesis):
    def __init__(
        self,
        server: FaultyServerProcess,
        recorder: Recorder,
        topics: Sequence[TopicSpec],
        neighbours: list[Neighbour],
        jobs: Neighbour | None,
        *,
        streams: Streams | None = None,
        patience_s: float = READY_S,
    ) -> None:
        super().__init__(server, recorder, topics, neighbours, jobs, streams=streams, patience_s=patience_s)
        self._logs: list[Log] = [(topic, p) for topic in self._loaded for p in range(topic.partitions)]
        self._client = Client(server.url, "meddler", recorder)
        #: By topic, the version up to which other writers had also committed to the table.
        self._mended: dict[str, int] = {}
        #: Topics in which a statement deleted or changed records.
        self._stated: set[str] = set()

    def close(self) -> None:
        self._client.close()

    # ---- directories and locks --------------------------------------------------------------------------------------

    def _copy(self, fault: Fault) -> None:
        """Run ``cp -r`` or ``ln -s`` beside the original while it is written to; then a start finds both."""
        topic = self._chosen(fault)
        name = fault.settings["name"].format(f"{topic.name}.{next(self._numbers)}")
        original, copy = self._table(topic), self._server.data / "topics" / name
        self._told(fault, topic=topic.name)
        if fault.settings["how"] == "link":
            copy.symlink_to(original.name)
        else:
            # Files that disappear meanwhile are not copied.
            subprocess.run(["cp", "-r", original, copy], check=False, capture_output=True)
        try:
            self._restart("kill")
            self._require_told(name, None, ProblemState.QUARANTINED)
            answer = httpx.get(f"{self._server.url}/topics/{name}/partitions/0/offsets", timeout=_TIMEOUT_S)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or answer.json()["error_code"] != _QUARANTINED:
                self.broken.append(f"{name}, a copy of a topic's directory, is answered for: {answer.text[:300]}")
            self._require_acknowledged(self._logs, f"beside a copy of {topic.name}")
            time.sleep(fault.seconds)
        finally:
            _remove(copy)

    def _recreate(self, fault: Fault) -> None:
        """Delete a topic and create it again under consumers that have read the one before."""
        name = f"made.again.{next(self._numbers)}"
        self._told(fault, topic=name)
        try:
            with MadeAgain(self._server.url, name) as topic:
                topic.make_again()
                if fault.settings["restart"]:
                    self._restart(fault.settings["restart"])
                time.sleep(fault.seconds)
                self.broken += topic.contradictions()
        except LogStoreError as error:
            self.broken.append(f"{name}, deleted and made again: {error!r}")

    def _lock(self, fault: Fault) -> None:
        """Remove the locks and start a second store on the directory: the two never both acknowledge.

        The first one may be stopped meanwhile, in the middle of a write.
        """
        both = fault.settings["locks"] == "both"
        self._told(fault)
        if fault.settings["stop_at"]:
            self._stop_at(fault.settings["stop_at"])
        (self._server.data / "lock").unlink()
        for lock in self._server.data.glob("brokers/*/journal/*/lock") if both else ():
            lock.unlink()
        try:
            second = self._server.beside()
        except NotStartedError as error:
            if both or not any("Another process is serving" in line for line in error.lines):
                raise StoreBrokenError(f"a second store without locks: {error}") from error
            self._require_refused_by_the_older()
        else:
            with second:
                client = Client(second.url, "second", self._recorder)
                if not both:
                    self.broken.append("a second store started, though the first one holds the lock of the journal")
                self._require_acknowledged(self._logs, "of the younger of two stores", client)
                self._require_refused_by_the_older()
                time.sleep(fault.seconds)
                self._end(self._server, fault.settings["end"])
                self._require_acknowledged(self._logs, "of the store that is left of two", client)
                client.close()
                self._end(second, fault.settings["then"])
        if self._server.process.poll() is None:
            self._end(self._server, fault.settings["end"])
        self.start()

    def _stop_at(self, point: str) -> None:
        self._server.control(f"point {point} stop")
        status = Path(f"/proc/{self._server.process.pid}/stat")
        if not self._wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", READY_S):
            raise StoreBrokenError(f"the load does not lead to {point}")

    def _require_refused_by_the_older(self) -> None:
        self._server.process.send_signal(signal.SIGCONT)
        topic, partition = self._logs[0]
        if self._produce(self._client, topic, partition):
            self.broken.append("a store that lost its lock acknowledges while another one serves the directory")

    # ---- the journal alone ------------------------------------------------------------------------------------------

    def _journal(self, fault: Fault) -> None:
        """Replace or remove the journal: the start is refused by name, and changes nothing.

        With the journal back, all records are served.
        """
        home, how = self._server.data / "brokers" / "0", fault.settings["how"]
        # They lie beside the data directory, where nothing looks for them.
        aside, image = (self._server.data.parent / f"{name}-{next(self._numbers)}" for name in ("aside", "image"))
        self._told(fault)
        if how == "removed":
            self._journal_removed(fault, home, aside)
            return
        if how == "older":
            self._restart("kill", lambda: shutil.copytree(journal_of(home), image))
            self._require_acknowledged(self._logs, "after a restart")
            end = found_in(image).end
            if not self._wait_until(lambda: durable_end(home) > end, READY_S):
                raise StoreBrokenError("the store does not write down how far its journal is durable")
        self._tell(fault.settings["end"])
        self._count_injected()
        self._end(self._server, fault.settings["end"])
        shutil.copytree(home / "journal", aside)
        match how:
            case "lost":
                lost_journals.lose(home)
            case "unmounted":
                lost_journals.leave_empty(home)
            case "older":
                lost_journals.put_in_place(home, image)
                shutil.rmtree(image)
            case "replaced":
                lost_journals.replace_with_a_strangers(home)
            case _:
                lost_journals.cut(home)
        self._require_start_refused(home)
        lost_journals.lose(home)
        aside.rename(home / "journal")
        self.start()

    def _journal_removed(self, fault: Fault, home: Path, aside: Path) -> None:
        """Remove the journal under the running store, which acknowledges nothing from then on.

        A stop writes what the store can still read into the tables, and a start continues from there. After a kill the
        files have to come back.
        """
        lost_journals.move_away(home, aside)
        for topic, partition in self._logs[:2]:
            if self._produce(self._client, topic, partition):
                self.broken.append("a store whose journal was removed acknowledges")
        ready = self._readiness()
        if ready is None or ready.status_code != httpx.codes.SERVICE_UNAVAILABLE or _REMOVED not in ready.text:
            self.broken.append(f"/health/ready does not say that the journal was removed: {ready and ready.text}")
        time.sleep(fault.seconds)
        self._tell(fault.settings["end"])
        self._count_injected()
        self._end(self._server, fault.settings["end"])
        self._require_start_refused(home)
        if fault.settings["end"] == "terminate" and fault.settings["then"] == "new journal":
            shutil.rmtree(aside)
            self.start("--new-journal")
        else:
            lost_journals.put_back(home, aside)
            self.start()

    def _require_start_refused(self, home: Path) -> None:
        before = lost_journals.content_of(home)
        try:
            self._server.start()
        except NotStartedError as error:
            if error.code != 1 or not any(_NOT_THE_ONE in line for line in error.lines):
                raise StoreBrokenError(f"a start without its journal: {error}") from error
        else:
            self.broken.append("a store has started on a journal that is not the one that stood there")
            self._server.kill()
        if lost_journals.content_of(home) != before:
            self.broken.append(f"a start without its journal has changed {home}")

    # ---- tables -----------------------------------------------------------------------------------------------------

    def _restore(self, fault: Fault) -> None:
        """RESTORE or overwrite the table: sealed records are gone until the store commits the same files again."""
        topic = self._chosen(fault, [topic for topic in self._loaded if not topic.compacted])
        table = self._table(topic)
        if not self._wait_until(lambda: foreign_commits.newest(table) > 1, self._patience_s):
            raise StoreBrokenError(f"{topic.name} is never rolled")
        self._told(fault, topic=topic.name)
        since = self._foreign(topic)
        # An overwrite removes a statement's files, and their records stay missing, as the documentation says.
        stated = topic.name in self._stated and not foreign_commits.is_all_ours(table)
        if fault.settings["how"] == "overwrite" and not stated:
            removal = foreign_commits.empty(table)
        else:
            # A RESTORE to the time of an earlier fault would bring that fault back.
            removal = foreign_commits.restore(table, fault.settings["back"], self._mended.get(topic.name, 0))
        try:
            if removal is None:
                return
            if fault.settings["restart"]:
                self._restart(fault.settings["restart"])
            self._require_served_again(topic, removal)
            self._require_acknowledged(self._logs, f"while records of {topic.name} are committed again")
            time.sleep(fault.seconds)
        finally:
            self._foreign(topic, since)
        self._require_served(topic, range(topic.partitions))

    def _require_served_again(self, topic: TopicSpec, removal: Removal) -> None:
        """Require that removed records are in the table and served again, unless retention removed them."""

        def told() -> bool:
            # Retention may have removed them since: the log start is read after the files, and it only grows.
            gone = list(foreign_commits.missing(self._table(topic), removal))
            there = all(last < self._state(topic, partition).log_start for partition, last in gone)
            return there and self._refusal(topic, removal.partition, removal.offset) in {0, _OUT_OF_RANGE}

        if not self._wait_until(told, self._patience_s):
            where = f"{topic.name}-{removal.partition} at {removal.offset}"
            self.broken.append(f"records that version {removal.version} took away do not come back: {where}")

    def _rewrite(self, fault: Fault) -> None:
        """Run OPTIMIZE or Z-order: the same records are then in files of another writer."""
        topic = self._chosen(fault)
        table = self._table(topic)
        self._told(fault, topic=topic.name)
        since = self._foreign(topic)
        foreign_commits.rewrite(table, fault.settings["how"])
        try:
            if fault.settings["restart"]:
                self._restart(fault.settings["restart"])
            self._require_acknowledged(self._logs, f"after {topic.name} was rewritten")
            time.sleep(fault.seconds)
        finally:
            self._foreign(topic, since)
        self._require_served(topic, range(topic.partitions))

    def _strange(self, fault: Fault) -> None:
        """Append a row of a writer that does not know offsets, or set a property that cannot be read.

        Nobody sees or is served such a row. The property keeps its own topic from being served, and no other.
        """
        topic, what = self._chosen(fault), fault.settings["what"]
        partition = int(fault.settings["partition"] * topic.partitions)
        table = self._table(topic)
        in_row = isinstance(what, int)
        # A row over the store's rows has to overlap an existing file.
        if in_row and not self._wait_until(lambda: self._sealed(topic, partition) > 0, READY_S):
            raise StoreBrokenError(f"{topic.name}-{partition} is never rolled")
        touched = [partition] if in_row else range(topic.partitions)
        restart = fault.settings["restart"]
        self._told(fault, topic=topic.name)
        since = self._foreign(topic)
        if in_row:
            self._append_to_the_log(topic, partition, what)
        else:
            foreign_commits.set_property(table, "logstore.partitions", what)
        if restart:
            self._restart(restart)
        if in_row:
            self._require_named(topic, partition)
        else:
            self._require_quarantined(topic, touched)
        time.sleep(fault.seconds)
        if in_row:
            TopicTable.open(open_table(table)).drop_foreign_files()
        else:
            foreign_commits.set_property(table, "logstore.partitions", str(topic.partitions))
        self._foreign(topic, since)
        if restart and not in_row:
            # The topic was not opened at all.
            self._restart(restart)
        self._require_served(topic, touched)

    def _statement(self, fault: Fault) -> None:
        """DELETE, UPDATE, or a MERGE that does both, of sealed records of one file; a RESTORE may undo it."""
        topic = self._chosen(fault)
        partition = int(fault.settings["partition"] * topic.partitions)
        table = self._table(topic)
        rows: list[list[Any]] = []

        def chosen() -> bool:
            # Retention may remove a file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                start = self._state(topic, partition).log_start
                rows[:] = foreign_commits.records(
                    table, partition, start, fault.settings["file"], fault.settings["every"]
                )
            return bool(rows)

        if not self._wait_until(chosen, READY_S):
            raise StoreBrokenError(f"{topic.name}-{partition} has no sealed records")
        text = f"stated-{next(self._numbers)}"
        offsets = [row[0] for row in rows]
        stays = {"delete": [], "update": offsets, "merge": offsets[::2]}[fault.settings["how"]]
        values = dict.fromkeys(stays, text)
        self._told(fault, topic=topic.name)
        told = {"topic": topic.name, "partition": partition, "how": fault.settings["how"], "rows": rows}
        number = self._recorder.invoke("nemesis", "statement", **told, values=values)
        match fault.settings["how"]:
            case "delete":
                version = foreign_commits.delete(table, partition, offsets)
            case "update":
                version = foreign_commits.update(table, partition, offsets, json.dumps(text))
            case _:
                stored_values = {offset: stored(values.get(offset)) for offset in offsets}
                version = foreign_commits.merge(table, partition, stored_values)
        if version is None:
            self._recorder.complete(number, "nemesis", "statement", "fail", **told)
            return
        self._stated.add(topic.name)
        self._mended[topic.name] = version
        if fault.settings["restart"]:
            self._restart(fault.settings["restart"])
        self._require_as_stated(topic, partition, offsets, values)
        self._recorder.complete(number, "nemesis", "statement", "ok", **told, values=values, version=version)
        self._require_acknowledged(self._logs, f"after a statement of others on {topic.name}")
        time.sleep(fault.seconds)
        if fault.settings["undone"] and not topic.compacted:
            self._take_back(topic, version, {**told, "values": {row[0]: row[4] for row in rows}})
        self._require_served(topic, range(topic.partitions))

    def _erase(self, fault: Fault) -> None:
        """Erase all records of a key for good, perhaps with a kill at a step of the erasure."""
        topic = self._chosen(fault)
        partition = int(fault.settings["partition"] * topic.partitions)
        key = f"erased-{next(self._numbers)}"
        words = f"words-of-{key}-{topic.name}"
        records = [Record(f"{key}-{n}", key, f"{words}-{n}", None) for n in range(3)]
        places: list[tuple[int, int]] = []

        def produced() -> bool:
            answer, told = self._client.produce(topic, partition, records, acks="all", form="json")
            places[:] = [place for place in told.get("places", ()) if place is not None] if answer.ok else []
            return len(places) == len(records)

        if not produced():
            return  # the outcome is open: the records stay
        offsets = {offset for _, offset in places}
        _, told = self._client.fetch(topic.name, partition, min(offsets), form="arrow", max_bytes=10_000, max_wait_ms=0)
        rows = [row for row in told.get("records", ()) if row[0] in offsets]
        self._told(fault, topic=topic.name)
        state = {"topic": topic.name, "partition": partition, "how": "erase", "rows": rows}
        number = self._recorder.invoke("nemesis", "statement", **state)
        begun: list[dict[str, Any]] = []

        def begins() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.post(
                    f"{self._server.url}/topics/{topic.name}/erasures", json={"keys": [key]}, timeout=_TIMEOUT_S
                )
                if answer.status_code == _ACCEPTED:
                    begun.append(answer.json())
            return bool(begun)

        point = fault.settings["point"]
        if point is not None:
            self._server.control(f"point {point} kill")
        if not self._wait_until(begins, self._patience_s):
            raise StoreBrokenError(f"no erasure of {topic.name} begins")
        if point is not None:
            if not self._wait_until(lambda: self._server.process.poll() is not None, READY_S):
                raise StoreBrokenError(f"an erasure does not lead to {point}")
            self._server.kill()
            self.start()
        elif fault.settings["restart"]:
            self._restart(fault.settings["restart"])
        report: dict[str, Any] = {}

        def is_erased() -> bool:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                path = f"/topics/{topic.name}/erasures/{begun[0]['erasure']}"
                report.update(httpx.get(self._server.url + path, timeout=_TIMEOUT_S).json())
            return report.get("state") == "erased"

        if not self._wait_until(is_erased, 2 * self._patience_s):
            raise StoreBrokenError(f"an erasure of {topic.name} is never over: {report}")
        files = (file for file in self._server.data.rglob("*") if file.is_file())
        left = [str(file) for file in files if words.encode() in _content(file)]
        if left:
            self.broken.append(f"erased records of {topic.name} are still in {left}")
        # Without a version, another commit has removed the records before: the newest version does not have them.
        version = max(report["versions"], default=foreign_commits.newest(self._table(topic)))
        self._recorder.complete(number, "nemesis", "statement", "ok", **state, version=version)
        self._require_acknowledged(self._logs, f"after records of {topic.name} were erased")
        time.sleep(fault.seconds)

    def _take_back(self, topic: TopicSpec, version: int, told: Mapping[str, Any]) -> None:
        """RESTORE the version before a statement; ``told`` has the rows and their values from then on."""
        told = {**told, "how": "restore"}
        number = self._recorder.invoke("nemesis", "statement", **told)
        since = self._foreign(topic)
        made, removal = foreign_commits.restore_to(self._table(topic), version - 1)
        self._require_as_stated(topic, told["partition"], list(told["values"]), told["values"])
        if removal is not None:
            self._require_served_again(topic, removal)
        self._foreign(topic, since)
        self._recorder.complete(number, "nemesis", "statement", "ok", **told, version=made)

    def _require_as_stated(
        self, topic: TopicSpec, partition: int, offsets: Sequence[int], values: Mapping[int, str]
    ) -> None:
        """Require that readers get records with these values, and no others of ``offsets``; fewer if a job removed
        some.

        The statement is one commit: the first and the last of its records show whether it is served.
        """

        def served(offset: int) -> bool:
            answer, told = self._client.fetch(
                topic.name, partition, offset, form="arrow", max_bytes=10_000, max_wait_ms=0
            )
            if not answer.ok:
                return int(told.get("error_code", -1)) == _OUT_OF_RANGE
            found = {row[0]: row[4] for row in told["records"]}
            return found.get(offset) == values.get(offset) or (topic.compacted and offset not in found)

        for offset in sorted({offsets[0], offsets[-1]}):
            if not self._wait_until(functools.partial(served, offset), self._patience_s):
                where = f"{topic.name}-{partition} offset {offset}"
                self.broken.append(f"{where} is not served as a statement of another writer left it")

    def _append_to_the_log(self, topic: TopicSpec, partition: int, beyond: int) -> None:
        """Append a row ``beyond`` the sealed offset.

        A row that retention has passed lies below the log start and is harmless; one that overlaps the store's rows
        stops retention.
        """
        offset = -1
        while offset < self._state(topic, partition).log_start:
            offset = self._sealed(topic, partition) + beyond
            foreign_commits.append(self._table(topic), partition, offset)

    def _sealed(self, topic: TopicSpec, partition: int) -> int:
        return self._state(topic, partition).sealed

    def _state(self, topic: TopicSpec, partition: int) -> PartitionState:
        return TopicTable.open(open_table(self._table(topic))).snapshot().partitions[partition]

    def _foreign(self, topic: TopicSpec, since: int | None = None) -> int:
        """Record that others commit to the table from now on, or did until now ``since`` a version; return the first
        version.
        """
        newest = foreign_commits.newest(self._table(topic))
        if since is None:
            self._recorder.tell("nemesis", "foreign", topic=topic.name, version=newest + 1)
            return newest + 1
        self._recorder.tell("nemesis", "foreign", topic=topic.name, version=since, until=newest)
        self._mended[topic.name] = newest
        return since

    # ---- what must hold meanwhile -----------------------------------------------------------------------------------

    def _require_named(self, topic: TopicSpec, partition: int) -> None:
        """Require that the file is reported as a problem, and that every log acknowledges."""

        def told() -> bool:
            return any(p["state"] == ProblemState.FOREIGN_FILE for p in self._problems(topic.name))

        if not self._wait_until(told, self._patience_s):
            self.broken.append(f"/health/ready does not say that {topic.name}-{partition} has a foreign file")
        self._require_acknowledged(self._logs, f"beside a foreign file of {topic.name}")

    def _require_quarantined(self, topic: TopicSpec, partitions: Collection[int]) -> None:
        """Require that these partitions are refused, and that all other logs acknowledge."""
        for partition in partitions:
            self._require_refused(topic, partition)
        others = [log for log in self._logs if log[0] is not topic or log[1] not in partitions]
        self._require_acknowledged(others, f"while {topic.name} is in quarantine")

    def _require_refused(self, topic: TopicSpec, partition: int) -> None:
        if not self._wait_until(lambda: self._refusal(topic, partition, 0) == _QUARANTINED, self._patience_s):
            self.broken.append(f"{topic.name}-{partition} is not in quarantine")
        elif self._produce(self._client, topic, partition):
            self.broken.append(f"{topic.name}-{partition} is in quarantine, and acknowledges")
        else:
            self._require_told(topic.name, partition, ProblemState.QUARANTINED)

    def _require_told(self, topic: str, partition: int | None, state: ProblemState) -> None:
        if not any(p["state"] == state and p["partition"] in {None, partition} for p in self._problems(topic)):
            self.broken.append(f"/health/ready does not say that {topic}-{partition} is {state}")

    def _problems(self, topic: str) -> list[dict[str, Any]]:
        return [p for p in self._client.get("/health/ready")["problems"] if p["topic"] == topic]

    def _require_acknowledged(self, logs: Sequence[Log], when: str, client: Client | None = None) -> None:
        for topic, partition in logs:
            if not self._produce(client or self._client, topic, partition):
                self.broken.append(f"{topic.name}-{partition} does not acknowledge {when}")

    def _require_served(self, topic: TopicSpec, partitions: Collection[int]) -> None:
        """Require that repaired logs are served whole and take records, and that the table has a new commit of the
        store.
        """
        if not self._wait_until(lambda: not self._problems(topic.name), self._patience_s):
            raise StoreBrokenError(f"{topic.name} was mended, and is not served whole: {self._problems(topic.name)}")
        for partition in partitions:
            if not self._produce(self._client, topic, partition):
                raise StoreBrokenError(f"{topic.name}-{partition} takes no records, though it was mended")
        mended = foreign_commits.newest(self._table(topic))
        if not self._wait_until(lambda: self._roll(topic.name) >= mended, self._patience_s):
            raise StoreBrokenError(f"{topic.name} does not roll, though it was mended")

    def _refusal(self, topic: TopicSpec, partition: int, offset: int) -> int:
        """Return the error_code that a reader gets at an offset; 0 if it is served."""
        answer, told = self._client.fetch(topic.name, partition, offset, form="arrow", max_bytes=10_000, max_wait_ms=0)
        time.sleep(0 if answer.ok else _POLL_S)
        return 0 if answer.ok else int(told.get("error_code", -1))

    # ---- how --------------------------------------------------------------------------------------------------------

    def _chosen(self, fault: Fault, among: Sequence[TopicSpec] | None = None) -> TopicSpec:
        topics = self._loaded if among is None else among
        return topics[int(fault.settings["which"] * len(topics))]

    def _table(self, topic: TopicSpec) -> Path:
        return self._server.data / "topics" / topic.name

    def _restart(self, how: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._tell(how)
        self._count_injected()
        self._end(self._server, how)
        meanwhile()
        self.start()

    def _end(self, server: FaultyServerProcess, how: str) -> None:
        if how == "kill":
            server.kill()
        elif code := server.stop():
            self.broken.append(f"SIGTERM ended a server with {code}")


def _remove(copy: Path) -> None:
    if copy.is_symlink():
        copy.unlink()
    else:
        shutil.rmtree(copy, ignore_errors=True)


def _content(file: Path) -> bytes:
    """Return the file's bytes; the file may disappear meanwhile."""
    with contextlib.suppress(OSError):
        return file.read_bytes()
    return b""
