"""A group's records are in a Delta sink exactly once, wherever a run stops and whatever runs beside it."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.free_port import free_port
from logstore.client.admin import Admin
from logstore.errors import InvalidRequestError, StoreUnreachableError
from logstore.spark import delta_sink, delta_writer, group_read
from logstore.spark.sink_commits import SinkOffsetsUnknownError

pytestmark = pytest.mark.spark

#: The steps of ``write_delta`` in order.
STEPS = ("planned", "written", "found", "mirrored")


class Stopped(BaseException):
    """Ends a run, as closely as that is possible within one process."""


@pytest.fixture
def admin(store):
    with Admin(store.url) as admin:
        yield admin


@pytest.fixture
def stop_at(monkeypatch):
    """Return a function that stops the next run at a step, and only that run."""

    def stop(step: str, stopped: type[BaseException] = Stopped) -> None:
        def reached(name: str) -> None:
            if name == step:
                monkeypatch.undo()
                raise stopped

        monkeypatch.setattr(delta_sink, "reached", reached)

    return stop


def places(frame) -> list[tuple[str, int, int]]:
    return sorted(tuple(row) for row in frame.select("topic", "partition", "offset").collect())


def table(spark, sink: str | Path):
    return spark.read.format("delta").load(str(sink))


def log_of(sink: Path) -> list[dict]:
    """Return the actions of the table's log in order."""
    entries = sorted((sink / "_delta_log").glob("*.json"))
    return [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]


def txns(sink: Path) -> list[tuple[str, int]]:
    return [(a["txn"]["appId"], a["txn"]["version"]) for a in log_of(sink) if "txn" in a]


def committed(admin: Admin, group: str) -> dict[tuple[str, int], int]:
    return {(o.topic, o.partition): o.offset for o in admin.group_offsets(group)}


def spans(batch) -> dict[tuple[str, int], tuple[int, int]]:
    return {(r.topic, r.partition): (r.start, r.end) for r in batch.ranges}


def run_in_a_process(directory: Path, *arguments: object) -> subprocess.CompletedProcess:
    script = Path(__file__).with_name("exactly_once_run.py")
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "LOGSTORE_SPARK_LOG": str(directory / "spark.log"),
    }
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.long
def test_the_commit_of_the_sink_carries_the_offsets_and_the_sink_decides(spark, store, admin, tmp_path):
    one, other, sink = store.create("once-one", 2), store.create("once-other"), tmp_path / "si`nk"
    store.produce(one, 0, 0, 30)
    store.roll(one)
    store.produce(one, 0, 30, 40)
    store.produce(other, 0, 0, 5)

    def read(topics=(one, other), **options):
        return group_read(spark, list(topics), "deciding", store.url, sink=sink, **options)

    with read(max_offsets_per_trigger=30) as batch:
        with pytest.raises(InvalidRequestError, match=r"are not in .*si`nk: write_delta commits them"):
            batch.commit()
        with pytest.raises(InvalidRequestError, match=r"was made for the sink .*, not for elsewhere"):
            batch.write_delta("elsewhere")
        assert batch.write_delta(sink)
        with pytest.raises(InvalidRequestError, match="committed already"):
            batch.write_delta()
    first = {place: end for place, (_, end) in spans(batch).items()}
    assert committed(admin, "deciding") == first
    assert txns(sink) == [("deciding", 1)]
    (text,) = (a["commitInfo"]["userMetadata"] for a in log_of(sink) if "commitInfo" in a)
    told = json.loads(text)["logstore"]
    assert (told["group"], told["txnVersion"]) == ("deciding", 1)
    assert {t["topicId"] for t in told["topics"]} == {admin.describe_topic(t).topic_id for t in (one, other)}
    # The sink's positions count, whether the group's committed offsets are behind, ahead, or of a topic left out.
    admin.commit_offsets("deciding", {(one, 0): 0, (other, 0): 5})
    with read([one]) as batch:
        assert spans(batch) == {(one, 0): (first[one, 0], 40), (one, 1): (0, 0)}
        assert batch.write_delta(df=batch.df.where("offset % 2 = 0"))
    assert committed(admin, "deciding") == {(one, 0): 40, (one, 1): 0, (other, 0): first[other, 0]}
    with read() as batch:
        assert spans(batch) == {(one, 0): (40, 40), (one, 1): (0, 0), (other, 0): (first[other, 0], 5)}
        assert batch.write_delta()
    odd_left_out = {(one, 0, n) for n in range(first[one, 0], 40) if n % 2}
    everything = [(one, 0, n) for n in range(40)] + [(other, 0, n) for n in range(5)]
    assert places(table(spark, sink)) == sorted(set(everything) - odd_left_out)
    assert admin.group_lag("deciding").total_lag == 0
    # An empty batch writes nothing, and sets the group's committed offsets to the sink's positions.
    admin.commit_offsets("deciding", {(one, 0): 7})
    with read() as batch:
        assert batch.is_empty
        assert not batch.write_delta()
    assert txns(sink) == [("deciding", n) for n in (1, 2, 3)]
    assert committed(admin, "deciding") == {(one, 0): 40, (one, 1): 0, (other, 0): 5}
    # Overwriting replaces the rows and keeps the positions; a topic that was deleted and created again begins at 0.
    store.delete(other)
    store.create(other)
    store.produce(other, 0, 0, 2)
    with read() as batch:
        assert batch.write_delta(mode="overwrite")
    assert places(table(spark, sink)) == [(other, 0, 0), (other, 0, 1)]
    assert committed(admin, "deciding") == {(one, 0): 40, (one, 1): 0, (other, 0): 2}


@pytest.mark.long
@pytest.mark.parametrize("knows_sink", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_run_that_stops_between_two_steps_neither_loses_nor_doubles(
    spark, store, admin, tmp_path, stop_at, knows_sink
):
    topic, group, sink = store.create(f"stopped-{knows_sink}"), f"stopped-{knows_sink}", tmp_path / "sink"

    def run() -> None:
        if knows_sink:
            with group_read(spark, topic, group, store.url, sink=sink) as batch:
                batch.write_delta(df=batch.df)
        else:
            with group_read(spark, topic, group, store.url) as batch:
                batch.write_delta(sink)

    end = 0
    for step in STEPS:
        store.produce(topic, 0, end, end + 10)
        end += 10
        stop_at(step)
        with pytest.raises(Stopped):
            run()
        there = places(table(spark, sink)) if sink.exists() else []
        assert there == [(topic, 0, n) for n in range(end - 10 if step == "planned" else end)]
    run()
    store.produce(topic, 0, end, end + 5)
    run()
    assert places(table(spark, sink)) == [(topic, 0, n) for n in range(end + 5)]
    assert committed(admin, group) == {(topic, 0): end + 5}
    assert admin.group_lag(group).total_lag == 0


@pytest.mark.parametrize(
    ("step", "plan"),
    [
        *((step, ()) for step in ("planned", "task", "written", "found", "mirrored")),
        *((step, ("without-sink",)) for step in ("planned", "written", "found", "mirrored")),
    ],
)
@pytest.mark.long
def test_a_killed_driver_neither_loses_nor_doubles(spark, store, admin, tmp_path, step, plan):
    name = "-".join(("killed", step, *plan))
    topics, sink = [store.create(name, 2), store.create(f"{name}-2")], tmp_path / "sink"

    def produce(start: int, end: int) -> None:
        for topic, partition in ((topics[0], 0), (topics[0], 1), (topics[1], 0)):
            store.produce(topic, partition, start, end)
        store.roll(topics[1])

    def run() -> None:
        with group_read(spark, topics, name, store.url, sink=None if plan else sink) as batch:
            batch.write_delta(sink)

    produce(0, 10)
    run()
    produce(10, 30)
    killed = run_in_a_process(tmp_path, "group", store.url, ",".join(topics), name, sink, step, *plan)
    assert killed.returncode == (-9 if step == "task" else 9), killed.stderr[-2000:]
    is_in = step not in ("planned", "task")
    assert len(places(table(spark, sink))) == (90 if is_in else 30)
    produce(30, 35)
    for _ in range(2):
        run()
    wanted = [(topics[0], 0), (topics[0], 1), (topics[1], 0)]
    assert places(table(spark, sink)) == sorted((*place, n) for place in wanted for n in range(35))
    assert committed(admin, name) == dict.fromkeys(wanted, 35)
    assert admin.group_lag(name).total_lag == 0


@pytest.mark.long
def test_one_of_two_runs_writes_and_the_other_continues_from_there(spark, store, admin, tmp_path, caplog):
    topic, sink = store.create("at-once"), tmp_path / "sink"
    store.produce(topic, 0, 0, 10)

    def read():
        return group_read(spark, topic, "at-once", store.url, sink=sink)

    for made in (10, 20):
        # At first there is no table, and both runs create it.
        batches = [read()]
        store.produce(topic, 0, made, made + 5)
        batches.append(read())
        with ThreadPoolExecutor(2) as pool:
            wrote = list(pool.map(lambda batch: batch.write_delta(), batches))
        assert sorted(wrote) == [False, True]
        winner = batches[wrote.index(True)]
        end = winner.ranges[0].end
        assert places(table(spark, sink)) == [(topic, 0, n) for n in range(end)]
        assert committed(admin, "at-once") == {(topic, 0): end}
        store.produce(topic, 0, made + 5, made + 10)
    # This run was planned before the other one wrote, so Delta silently skips its write.
    late = read()
    with read() as batch:
        assert batch.write_delta()
    with late:
        assert not late.write_delta()
    assert "another run has written to" in caplog.text
    assert places(table(spark, sink)) == [(topic, 0, n) for n in range(30)]
    assert committed(admin, "at-once") == {(topic, 0): 30}


@pytest.mark.long
def test_a_batch_that_was_made_without_the_sink(spark, store, admin, tmp_path, caplog):
    topic, sink = store.create("unplanned"), tmp_path / "sink"
    store.produce(topic, 0, 0, 20)
    with group_read(spark, topic, "unplanned", store.url) as batch:
        with pytest.raises(InvalidRequestError, match="df= must begin where the sink ends: give sink="):
            batch.write_delta(sink, df=batch.df)
        with pytest.raises(InvalidRequestError, match="write_delta needs a sink: give sink="):
            batch.write_delta()
        assert batch.write_delta(sink)
    # All records are still there.
    admin.commit_offsets("unplanned", {(topic, 0): 5})
    with group_read(spark, topic, "unplanned", store.url) as batch:
        assert not batch.write_delta(sink)
        assert batch.is_empty
    assert committed(admin, "unplanned") == {(topic, 0): 20}
    # A part of the records is missing, so the batch is neither written nor committed.
    store.produce(topic, 0, 20, 30)
    admin.commit_offsets("unplanned", {(topic, 0): 25})
    with (
        pytest.raises(InvalidRequestError, match=r"begins at 25, .* up to 20 only; .* give sink="),
        group_read(spark, topic, "unplanned", store.url) as batch,
    ):
        batch.write_delta(sink)
    # A batch that is not written commits nothing, even if its error was caught.
    with (
        group_read(spark, topic, "unplanned", store.url, sink=sink) as batch,
        pytest.raises(Exception, match="no_such_column"),
    ):
        batch.write_delta(mode="overwrite", options={"replaceWhere": "no_such_column = 1"})
    assert "was not written to" in caplog.text
    assert committed(admin, "unplanned") == {(topic, 0): 25}
    # Without the store, the sink continues from storage; the group's committed offsets stay.
    store.roll(topic)
    with group_read(spark, topic, "unplanned", storage=store.server.data, sink=sink) as batch:
        assert batch.write_delta()
    assert places(table(spark, sink)) == [(topic, 0, n) for n in range(30)]
    assert committed(admin, "unplanned") == {(topic, 0): 25}


@pytest.mark.long
def test_a_sink_whose_log_no_longer_has_the_commit(spark, store, admin, tmp_path):
    topic, sink = store.create("cleaned"), tmp_path / "sink"

    def run() -> None:
        with group_read(spark, topic, "cleaned", store.url, sink=sink) as batch:
            batch.write_delta()

    store.produce(topic, 0, 0, 10)
    run()
    # Each commit gets a checkpoint; the commit after the run's belongs to another writer.
    spark.sql(f"ALTER TABLE delta.`{sink}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")

    def clean() -> None:
        spark.sql(f"COMMENT ON TABLE delta.`{sink}` IS 'x'")
        entries = sorted((sink / "_delta_log").glob("*.json"))
        for entry in entries[:-1]:
            entry.unlink()
            entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)

    clean()
    store.produce(topic, 0, 10, 20)
    run()  # the group's committed offsets are those of the sink's last transaction
    assert places(table(spark, sink)) == [(topic, 0, n) for n in range(20)]
    store.produce(topic, 0, 20, 30)
    metadata = admin.group_offsets("cleaned")[0].metadata
    for offset, kept in ((10, metadata.replace("2", "1")), (10, "")):
        clean()
        # The committed offsets are behind the sink, or their metadata does not say which transaction they are from.
        admin.commit_offsets("cleaned", {(topic, 0): offset}, metadata=kept)
        with pytest.raises(SinkOffsetsUnknownError, match="no longer has that commit"):
            run()
    assert places(table(spark, sink)) == [(topic, 0, n) for n in range(20)]


@pytest.mark.long
def test_an_empty_batch_mirrors_the_sink(spark, store, admin, tmp_path, stop_at):
    topic, later, sink = store.create("mirrored", 2), store.create("mirrored-later"), tmp_path / "sink"
    store.produce(later, 0, 0, 7)

    def read(*topics: str):
        return group_read(spark, topics, "mirrored", store.url, sink=sink, auto_offset_reset="latest")

    def mirrored() -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (o.topic, o.partition): (o.offset, json.loads(o.metadata)["txnVersion"])
            for o in admin.group_offsets("mirrored")
        }

    # The sink has nothing of the group yet, so an empty batch commits offsets by itself.
    with read(topic) as batch:
        assert batch.is_empty
    assert committed(admin, "mirrored") == {(topic, 0): 0, (topic, 1): 0}
    for start, stop in ((0, False), (10, True)):
        store.produce(topic, 0, start, start + 10)
        if stop:
            stop_at("written")
        with contextlib.suppress(Stopped), read(topic) as batch:
            batch.write_delta()
    assert mirrored() == {(topic, 0): (10, 1), (topic, 1): (0, 1)}
    # If the sink's log was cleaned, the group's offsets replace it, so all of them must be of one commit.
    with read(topic, later) as batch:
        assert batch.is_empty
    assert mirrored() == {(topic, 0): (20, 2), (topic, 1): (0, 2), (later, 0): (7, 2)}
    assert admin.group_lag("mirrored").total_lag == 0


@pytest.mark.long
def test_tables_by_name_and_tables_that_cannot_be_sinks(spark, store, admin, tmp_path):
    topic = store.create("named")
    store.produce(topic, 0, 0, 10)

    def write(sink, **arguments) -> bool:
        with group_read(spark, topic, "named", store.url, sink=sink) as batch:
            return batch.write_delta(**arguments)

    try:
        assert write("once_named")
        store.produce(topic, 0, 10, 20)
        assert write("default.once_named")
        assert places(spark.table("once_named")) == [(topic, 0, n) for n in range(20)]
    finally:
        spark.sql("DROP TABLE IF EXISTS once_named")
    spark.range(1).write.format("delta").option("delta.setTransactionRetentionDuration", "7 days").save(
        str(tmp_path / "forgets")
    )
    store.produce(topic, 0, 20, 30)
    for sink, message in [
        (tmp_path / "forgets", r"it forgets which batches it has; .* UNSET TBLPROPERTIES"),
        (store.server.data / "topics" / topic, r'is the table of topic named: write with format\("logstore"\)'),
        (7, "a sink is the path of a Delta table"),
        ("", "a sink is the path of a Delta table"),
        ("./new", "sink ./new: .* give the whole path"),
        (Path("new"), "sink new: .* give the whole path"),
        ("no name", "no name cannot be a sink: ParseException"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            write(sink)
    for arguments, message in [
        ({"mode": "ignore"}, 'mode=\'ignore\': give "append" or "overwrite"'),
        ({"options": {"TxnVersion": "1"}}, "TxnVersion is set by this write itself"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            write(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_a_store_that_is_gone_when_the_sink_has_the_batch(spark, store, admin, tmp_path):
    topic, sink = store.create("gone"), tmp_path / "sink"
    store.produce(topic, 0, 0, 10)
    batch = group_read(spark, topic, "gone", store.url, sink=sink)
    batch._bootstrap = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(StoreUnreachableError) as raised:
        batch.write_delta()
    assert "only the group's committed offsets could not be set" in raised.value.__notes__[0]
    with group_read(spark, topic, "gone", store.url, sink=sink) as batch:
        assert batch.is_empty
    assert committed(admin, "gone") == {(topic, 0): 10}


@pytest.fixture
def stream(spark, store, tmp_path):
    """Yield a topic's table, and a function that runs a query over it into a sink up to the current end."""
    topic, sink = store.create(f"streamed-{tmp_path.name}"), tmp_path / "sink"
    source = store.server.data / "topics" / topic

    def run(checkpoint: str = "checkpoint", write=None, **options) -> None:
        writer = spark.readStream.format("delta").load(str(source)).writeStream
        writer = writer.foreachBatch(write or delta_writer(sink, **options)).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()

    return topic, source, run


def offsets(spark, sink: Path) -> list[int]:
    return sorted(row.offset for row in table(spark, sink).select("offset").collect())


@pytest.mark.long
def test_a_streaming_query_writes_a_batch_once(spark, store, tmp_path, stop_at, stream):
    (topic, _, run), sink = stream, tmp_path / "sink"
    store.produce(topic, 0, 0, 10)
    store.roll(topic)
    stop_at("written", ZeroDivisionError)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run()
    assert offsets(spark, sink) == list(range(10))
    run()
    store.produce(topic, 0, 10, 20)
    store.roll(topic)
    run()
    assert offsets(spark, sink) == list(range(20))
    assert [version for _, version in txns(sink)] == [0, 1]
    # With its own app id this is a second writer of the table, and no other query may use that id.
    run("second", app_id="mine", transform=lambda df: df.where("offset < 3"))
    with pytest.raises(Exception, match=r"another query .* needs its own app_id"):
        run("lost", app_id="mine")
    assert offsets(spark, sink) == sorted([*range(20), 0, 1, 2])
    with pytest.raises(InvalidRequestError, match='app_id=""'):
        delta_writer(sink, app_id="")
    with pytest.raises(InvalidRequestError, match="this is no batch of a query"):
        delta_writer(sink)(spark.range(1), 0)


@pytest.mark.long
def test_a_checkpoint_that_is_older_than_the_sink_fails_the_query(spark, store, tmp_path, stream):
    (topic, _, run), sink, checkpoint = stream, tmp_path / "sink", tmp_path / "checkpoint"

    def produce_and_run(start: int, end: int) -> None:
        store.produce(topic, 0, start, end)
        store.roll(topic)
        run()

    produce_and_run(0, 10)
    shutil.copytree(checkpoint, tmp_path / "copy")
    produce_and_run(10, 20)
    shutil.copytree(checkpoint, tmp_path / "newer")
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    # The next batch has an id that the table already has, so Delta would silently skip it.
    with pytest.raises(Exception, match=r"checkpoint gives batch 1, .*: the checkpoint is older than the table"):
        produce_and_run(20, 40)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "newer", checkpoint)
    run()
    assert offsets(spark, sink) == list(range(40))
    # The table is ahead of the checkpoint's batch id.
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    with pytest.raises(Exception, match=r"has batch 2 of this query, .* gives batch 1"):
        run()
    assert offsets(spark, sink) == list(range(40))


@pytest.mark.long
def test_two_writers_of_a_query_into_one_table(spark, store, tmp_path, stream):
    (topic, _, run), sink = stream, tmp_path / "sink"
    store.produce(topic, 0, 0, 10)
    store.roll(topic)

    def both(**options):
        low, high = (
            delta_writer(sink, lambda df: df.where("offset < 5")),
            delta_writer(sink, lambda df: df.where("offset >= 5"), **options),
        )

        def write(df, batch_id):
            low(df, batch_id)
            high(df, batch_id)

        return write

    with pytest.raises(Exception, match="give each writer of this table its own app_id"):
        run(write=both())
    assert offsets(spark, sink) == list(range(5))
    run(write=both(app_id="high"))
    assert offsets(spark, sink) == list(range(10))


@pytest.mark.long
def test_a_killed_query_writes_a_batch_once(spark, store, tmp_path, stream):
    (topic, source, run), sink = stream, tmp_path / "sink"
    for number, step in enumerate(("planned", "written")):
        store.produce(topic, 0, 10 * number, 10 * number + 10)
        store.roll(topic)
        killed = run_in_a_process(tmp_path, "stream", source, sink, tmp_path / "checkpoint", step)
        assert killed.returncode == 9, killed.stderr[-2000:]
        assert len(txns(sink) if sink.exists() else []) == number + (step == "written")
        run()
        assert offsets(spark, sink) == list(range(10 * number + 10))
