"""Each check of ``topic verify``, on a table in which only that one fails."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from logstore.delta.log_entries import checksums, list_log, vouch
from logstore.delta.schema import add_action
from logstore.filesystem import FileSystem
from logstore.inspection.table_check import TopicReport, newest_tails, verify_topic
from logstore.journal.frame import FrameLocation
from logstore.journal.scan import RecoveredFrame
from logstore.log.journal_tail import collect_tails
from logstore.records.batch_identity import BatchIdentity, RememberedBatch
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support import deletion_vectors as vectors
from tests.support import table_features as features
from tests.support.damage import flip_bit
from tests.support.journals import data_frame, snapshot_frame
from tests.support.topics import (
    create_topic,
    foreign_commit,
    log_batch,
    log_entry,
    overwrite_entry,
    rewrite_files,
    roll,
    roll_part,
    write_segment,
)


@pytest.fixture
def table(tmp_path):
    """Create [0, 30) of partition 0 in three files."""
    table = create_topic(tmp_path)
    for base in (0, 10, 20):
        roll(table, 0, base, base + 10, epoch=3)
    return table


def verify(table, *frames, quick=False) -> TopicReport:
    """Verify against a journal of these frames of the topic; without frames, against none."""
    if not frames:
        return verify_topic(table.files, {}, quick=quick)
    topic_id, position, recovered = table.snapshot().topic_id, 128, []
    for frame in frames:
        header = frame.header._replace(topic_id=topic_id)
        length = 128 + len(frame.payload)
        payload = None if header.has_records else bytes(frame.payload)
        recovered.append(RecoveredFrame(header, FrameLocation(position, length), payload))
        position += length
    return verify_topic(table.files, {"": collect_tails(recovered)}, quick=quick)


def checks(report: TopicReport) -> list[str]:
    return [finding.check for finding in report.problems]


def path(table) -> Path:
    return Path(table.files.uri)


def test_a_sound_table(table):
    for quick in (False, True):
        report = verify(table, quick=quick)
        assert (report.problems, report.notes, report.unnamed_files) == ([], [], 0)
        assert (report.topic, report.version, report.partitions) == ("events", 3, 1)
        assert (report.files, report.records) == (3, 30)
    assert verify(table, data_frame(30), data_frame(31)).problems == []
    assert verify(table, data_frame(20, count=5), data_frame(25, count=7)).problems == []


def test_a_file_that_no_commit_names_is_counted(table):
    write_segment(table, 0, 30, 40)
    assert (verify(table).problems, verify(table).unnamed_files) == ([], 1)


def test_a_second_file_for_an_offset(table):
    foreign_commit(path(table), [add_action(write_segment(table, 0, 5, 15), 1, data_change=True)])
    assert checks(verify(table)) == ["ranges"]


def test_a_file_beyond_the_sealed_offset(table):
    foreign_commit(path(table), [add_action(write_segment(table, 0, 30, 40, epoch=1), 1, data_change=True)])
    assert checks(verify(table)) == ["ranges"]


@pytest.mark.parametrize("fact", ["start", "cleaned"])
def test_a_log_start_and_a_clean_point_above_the_sealed_offset(table, fact):
    foreign_commit(path(table), [], [(f"logstore/0/{fact}", 31)])
    assert "offsets" in checks(verify(table))


def test_a_leader_epoch_that_the_log_does_not_know(table):
    foreign_commit(path(table), [], [("logstore/0/epoch", 2)])
    assert checks(verify(table)) == ["leader-epochs"]


def test_an_add_action_that_says_something_else(table):
    segment = replace(write_segment(table, 0, 30, 40, epoch=3), num_records=9, max_timestamp_us=5)
    part = replace(roll_part(table, 0, 30, 40, 3), segments=(segment,))
    table.commit_roll([part])
    found = verify(table).problems
    assert {finding.check for finding in found} == {"file-differs"}
    assert ["10 records" in found[0].text, "largest time" in found[1].text] == [True, True]
    assert {finding.file for finding in found} == {segment.path}


def test_an_overwritten_commit_and_a_journal_that_knows_of_it(table):
    """Overwrite the last roll's entry: the table no longer has its file, which is still on the disk."""
    overwrite_entry(table, 3)
    report = verify(table, snapshot_frame(sealed_offset=30))
    assert checks(report) == ["journal"]
    assert "offsets 20 to 29" in report.problems[0].text
    assert report.unnamed_files == 1


def test_a_hole_in_the_journal(table):
    assert checks(verify(table, data_frame(30), data_frame(32))) == ["journal"]
    assert "31" in verify(table, data_frame(30), data_frame(32)).problems[0].text


def test_a_journal_that_begins_above_the_table(table):
    assert "offsets 30 to 34" in verify(table, data_frame(35)).problems[0].text


def test_a_partition_that_only_the_journal_has(table):
    assert checks(verify(table, data_frame(0, partition=2))) == ["journal"]


def test_producers_that_differ(table):
    remembered = RememberedBatch(7, 0, 0, 5, 30, 1_000)
    with SegmentWriter(open_table(table.files.uri), 0, 30, 35, 3) as writer:
        writer.write(log_batch(range(30, 35)))
        segment = writer.finish(((3, 0),), [remembered])
    table.commit_roll([replace(roll_part(table, 0, 30, 35, 3), segments=(segment,))])
    frame = data_frame(30, count=5)
    for identity, expected in ((BatchIdentity(7, 0, 0), []), (BatchIdentity(7, 0, 5), ["producers"])):
        sent = frame._replace(header=frame.header._replace(identity=identity))
        assert checks(verify(table, sent, data_frame(35))) == expected


def test_leader_epochs_that_differ(table):
    """Check epochs of a segment that fall, and epochs that begin elsewhere in the journal's snapshot."""
    assert checks(verify(table, snapshot_frame(30))) == []
    with SegmentWriter(open_table(table.files.uri), 0, 30, 35, 3) as writer:
        writer.write(log_batch(range(30, 35)))
        segment = writer.finish(((0, 4), (3, 8)))
    table.commit_roll([replace(roll_part(table, 0, 30, 35, 3), segments=(segment,))])
    found = verify(table, snapshot_frame(35)).problems
    assert [finding.check for finding in found] == ["leader-epochs", "leader-epochs"]


def test_records_that_another_writer_took_out(table):
    DeltaTable(path(table)).restore(2)
    report = verify(table)
    assert checks(report) == ["records-missing"]
    assert "offsets 20 to 29 are missing: RESTORE" in report.problems[0].text


def test_a_delete_leaves_a_gap_that_is_reported(table):
    DeltaTable(path(table)).delete("partition = 0 AND offset >= 10 AND offset < 20")
    report = verify(table)
    assert report.problems == []
    assert [finding.check for finding in report.notes] == ["gap"]


def test_a_file_of_another_writer_below_the_sealed_offset_is_a_note(table):
    DeltaTable(path(table)).delete("partition = 0 AND offset = 13")
    for quick in (False, True):
        report = verify(table, quick=quick)
        assert report.problems == []
        assert (report.files, report.foreign_files, report.records) == (3, 1, 29)
        assert "foreign-file" in {finding.check for finding in report.notes}


def test_a_file_of_another_writer_that_is_damaged(table):
    DeltaTable(path(table)).delete("partition = 0 AND offset = 13")
    (foreign,) = [p for p in table.snapshot().paths if not p.startswith("partition=0/0000")]
    (path(table) / foreign).write_bytes((path(table) / foreign).read_bytes()[:-100])
    assert checks(verify(table)) == ["file-damaged"]


def test_rows_of_another_writer_at_offsets_that_are_taken(table):
    rows = DeltaTable(path(table)).to_pyarrow_table(filters=[("partition", "=", 0)])
    write_deltalake(path(table), rows.slice(0, 5), mode="append")
    found = verify(table).problems
    assert [finding.check for finding in found] == ["foreign-file"]
    assert ", which is taken" in found[0].text
    assert "logstore topic drop-foreign-files events" in found[0].text


def test_rows_of_another_writer_in_a_partition_that_there_is_not(table):
    rows = DeltaTable(path(table)).to_pyarrow_table(filters=[("partition", "=", 0)])
    at = rows.schema.get_field_index("partition")
    write_deltalake(path(table), rows.set_column(at, "partition", pa.array([4] * len(rows), pa.int32())), mode="append")
    assert checks(verify(table)) == ["foreign-file"]


@pytest.mark.parametrize("statement", ["compact", "z_order"])
def test_an_optimize_is_reported_and_is_no_damage(table, statement):
    optimize = DeltaTable(path(table)).optimize
    (optimize.compact() if statement == "compact" else optimize.z_order(["value"]))
    for quick in (False, True):
        report = verify(table, quick=quick)
        assert report.problems == []
        assert (report.records, report.foreign_files) == (30, 1)


def test_a_table_with_a_feature_that_the_store_refuses(table):
    features.turn_on(Path(path(table)), "catalogManaged")
    report = verify(table)
    assert checks(report) == ["delta-log"]
    assert "commits of a catalog" in report.problems[0].text


def test_deletion_vectors_are_reported_and_are_no_damage(table):
    vectors.delete(Path(path(table)), [3, 14])
    report = verify(table)
    assert report.problems == []
    assert (report.records, [note.check for note in report.notes]) == (28, ["deletion-vector"] * 2)


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_a_deletion_vector_that_cannot_be_read(table, gone):
    vectors.delete(Path(path(table)), [3])
    (vector,) = Path(path(table)).glob("deletion_vector_*.bin")
    vector.unlink() if gone else vector.write_bytes(vector.read_bytes()[:-1])
    assert checks(verify(table)) == ["file-damaged"]


def test_a_file_that_a_job_replaces_meanwhile_does_not_count(table):
    class Replacing(FileSystem):
        """A file system on which a job and a vacuum run after the log is read and before the files are."""

        done = False

        def stat(self, path):
            if not self.done and str(path).endswith(".parquet"):
                self.done = True
                old = [file.path for file in table.snapshot().segments(0)]
                rewrite_files(table, 0, old, [write_segment(table, 0, 0, 30, epoch=3)], data_change=False)
                table.files.remove(old)
            return super().stat(path)

    assert verify_topic(open_table(table.files.uri, Replacing()), {}).problems == []


def test_a_damaged_checkpoint(table):
    DeltaTable(path(table)).create_checkpoint()
    report = verify(table)
    assert (report.problems, [finding.check for finding in report.notes]) == ([], ["delta-log"])
    parts = list_log(table.files).checkpoints[3]
    vouch(table.files, 3, checksums(table.files, parts))
    assert (verify(table).problems, verify(table).notes) == ([], [])
    log_entry(table, 1).unlink()
    assert (verify(table).problems, len(verify(table).notes)) == ([], 1)
    content = (path(table) / parts[0]).read_bytes()
    flip_bit(path(table) / parts[0], 60)
    assert "delta-log" in checks(verify(table))
    (path(table) / parts[0]).write_bytes(content)
    vouch(table.files, 3, {Path(parts[0]).name: "00000000"})
    assert "the checksums do not match" in verify(table).problems[0].text


def test_a_hint_that_names_no_checkpoint(table):
    hint = path(table) / "_delta_log" / "_last_checkpoint"
    hint.write_bytes(b'{"version":2,"size":1}')
    assert checks(verify(table)) == ["delta-log"]
    assert hint.exists()


def test_a_commit_that_is_there_twice(table):
    """Copy an entry to another version, which its digest covers."""
    entry = log_entry(table, 3)
    log_entry(table, 4).write_bytes(entry.read_bytes())
    assert "delta-log" in checks(verify(table))


def test_a_commit_of_ours_that_lost_its_digest(table):
    entry = log_entry(table, 3)
    entry.write_bytes(entry.read_bytes().replace(b"logstore.digest", b"logstore.digesu"))
    assert checks(verify(table)) == ["delta-log"]


def test_an_add_of_a_file_that_is_not_there(table):
    missing = AddAction("partition=0/x.parquet", 5, {"partition": "0"}, 1, True, '{"numRecords":0}')
    foreign_commit(path(table), [missing])
    assert "file-missing" in checks(verify(table))


# ---- journals of several brokers -------------------------------------------------------------------------------------


def frame(base_offset: int, count: int, *, epoch: int):
    found = data_frame(base_offset, count=count)
    return found._replace(header=found.header._replace(leader_epoch=epoch))


def tails_of(table, *frames):
    """Return what a journal with these frames of the topic says about it."""
    topic_id, recovered = table.snapshot().topic_id, []
    for at, frame in enumerate(frames):
        header = frame.header._replace(topic_id=topic_id)
        payload = None if header.has_records else bytes(frame.payload)
        recovered.append(RecoveredFrame(header, FrameLocation(128 + 1_000 * at, 1_000), payload))
    return collect_tails(recovered)


def test_a_replica_that_was_out_of_sync_is_no_damage(table):
    """Replace the leader of epoch 2: its records from offset 25 on were never acknowledged."""
    whole = tails_of(table, frame(20, 10, epoch=3), frame(30, 2, epoch=3))
    parted = tails_of(table, frame(20, 12, epoch=2))
    report = verify_topic(table.files, {"/one": whole, "/two": parted})
    assert checks(report) == []
    (note,) = report.notes
    assert note.text.startswith("/two is not in sync")
    assert newest_tails([parted, whole]) == newest_tails([whole, parted]) == whole


def test_a_hole_in_one_journal_is_damage_whatever_the_other_has(table):
    whole = tails_of(table, frame(30, 4, epoch=3))
    holed = tails_of(table, frame(30, 1, epoch=3), frame(32, 2, epoch=3))
    report = verify_topic(table.files, {"/one": whole, "/two": holed})
    assert checks(report) == ["journal"]
    assert report.problems[0].text.startswith("/two: the journal does not hold offsets 31 to 32")


def test_the_newest_replica_is_the_longest_of_the_newest_leader(table):
    old = tails_of(table, frame(30, 9, epoch=3))
    short = tails_of(table, frame(30, 1, epoch=4))
    long = tails_of(table, frame(30, 2, epoch=4))
    assert newest_tails([old, long, short]) == long
