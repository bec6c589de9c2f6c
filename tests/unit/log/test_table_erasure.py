"""Erased records leave a table and its old files, and what another writer brings back is erased again."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from logstore.delta.erased_files import ERASED_FILES, is_erased
from logstore.log.erasures import ErasedUpTo, KnownErasure, TableErasure, bounds_of
from logstore.log.table_erasure import delete_erased_files, erase_from_table
from logstore.records.erasure_record import Erasure, hash_keys, new_salt
from logstore.topic_config import TopicConfig
from tests.support import deletion_vectors as vectors
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.local_jobs import compact, merge
from tests.support.table_paths import path_of


def put(key: bytes | None, value: bytes = b"secret-of-") -> Record:
    return Record(key, value + (key or b"nobody"), 1)


def erasure_of(topic: KeyedTopic, *keys: bytes, number: int = 1, epoch: int = 1) -> KnownErasure:
    """Return an erasure that is requested now."""
    snapshot = topic.table.snapshot()
    ends = {partition: state.sealed for partition, state in snapshot.partitions.items()}
    salt = new_salt()
    return KnownErasure(
        Erasure(
            id=str(number),
            number=number,
            state="pending",
            topic=topic.name,
            topic_id=str(snapshot.topic_id),
            requested_ms=1,
            partitions=bounds_of(ends, dict.fromkeys(ends, epoch)),
            salt=salt,
            keys=hash_keys(keys, salt),
        )
    )


def erase(topic: KeyedTopic, *erasures: KnownErasure) -> TableErasure:
    with ThreadPoolExecutor(2) as pool:
        done = erase_from_table(
            topic.table, topic.name, ErasedUpTo(erasures), TopicConfig.parse({}, {}), now_ms=1, pool=pool
        )
    delete_erased_files(topic.table.files, topic.table.snapshot(), erasures, known=set())
    return done


def has_bytes(topic: KeyedTopic, text: bytes) -> bool:
    """Return whether any file of the table has the bytes. The tests' values are too short to be compressed."""
    return any(text in file.read_bytes() for file in path_of(topic.table).rglob("*") if file.is_file())


@pytest.fixture
def topic(tmp_path: Path) -> KeyedTopic:
    """Create two partitions of three segments each, with ``ada`` in two of them."""
    topic = KeyedTopic.create(tmp_path, "users", partitions=2, cleanup_policy="compact,delete")
    for number in range(3):
        keys = [b"ada", b"bob", None, b"cy"] if number < 2 else [b"dan", b"eve", b"ida"]
        topic.roll({p: [put(key, b"secret-%d-of-" % number) for key in keys] for p in (0, 1)})
    return topic


def test_the_records_of_a_key_go_and_others_keep_their_offsets(topic: KeyedTopic) -> None:
    before = topic.contents(0)
    untouched = topic.table.snapshot().segments(0)[2].path
    assert has_bytes(topic, b"of-ada")
    done = erase(topic, erasure_of(topic, b"ada", b"nobody-has-it"))
    assert (done.records, done.rewritten, len(done.versions)) == (4, 4, 1)
    assert topic.contents(0) == {o: record for o, record in before.items() if record.key != b"ada"}
    assert topic.table.snapshot().segments(0)[2].path == untouched
    assert [(s.base_offset, s.end_offset) for s in topic.table.snapshot().segments(1)] == [(0, 4), (4, 8), (8, 11)]
    assert not has_bytes(topic, b"of-ada")
    assert has_bytes(topic, b"of-bob")


def test_every_json_text_of_a_key_goes_also_after_a_restore(topic: KeyedTopic) -> None:
    """Erase with the hashes of one text, as reports of earlier releases have them."""
    spellings = [rb'"a\/b"', rb'"\u0061/b"', b'"a/b"', rb'"a\u002Fb"']
    topic.roll({0: [put(key, b"secret") for key in (*spellings, rb'"a\/c"', rb"a\/b", None)]})
    before, erasure = topic.table.snapshot().version, erasure_of(topic, b'"a/b"')
    with ThreadPoolExecutor(2) as pool:
        config = TopicConfig.parse({}, {})
        erase_from_table(topic.table, "users", ErasedUpTo((erasure,)), config, now_ms=1, pool=pool)
    DeltaTable(str(path_of(topic.table))).restore(before)
    assert erase(topic, erasure).records == len(spellings)
    left = {record.key for record in topic.contents(0).values()}
    assert left.isdisjoint(spellings)
    assert left >= {rb'"a\/c"', rb"a\/b", None}
    assert not any(has_bytes(topic, key) for key in spellings)


def test_a_second_run_commits_nothing(topic: KeyedTopic) -> None:
    erasure = erasure_of(topic, b"ada")
    erase(topic, erasure)
    version = topic.table.snapshot().version
    assert erase(topic, erasure) == TableErasure()
    assert topic.table.snapshot().version == version


def test_nothing_to_erase_is_noted_in_the_table(topic: KeyedTopic) -> None:
    erasure = erasure_of(topic, b"nobody-has-it")
    assert erase(topic, erasure) == TableErasure()
    assert is_erased(topic.table.snapshot(), erasure.number)


def test_records_that_come_later_stay(topic: KeyedTopic) -> None:
    erasure = erasure_of(topic, b"ada")
    topic.roll({0: [put(b"ada")]})
    erase(topic, erasure)
    assert [o for o, record in topic.contents(0).items() if record.key == b"ada"] == [11]
    assert is_erased(topic.table.snapshot(), erasure.number)


def test_records_of_later_leaders_stay_at_the_same_offsets(topic: KeyedTopic) -> None:
    """Erase after a backup was put back: other records have the offsets."""
    before = topic.contents(0)
    erase(topic, erasure_of(topic, b"ada", epoch=0))
    assert topic.contents(0) == before


def test_the_stores_own_commits_keep_the_table_erased(topic: KeyedTopic) -> None:
    erasure = erasure_of(topic, b"ada")
    erase(topic, erasure)
    topic.roll({0: [put(b"ada")]})
    merge(topic, 1)
    compact(topic, 1)
    snapshot = topic.table.snapshot()
    assert len(snapshot.segments(0)) < 4
    assert is_erased(snapshot, erasure.number)


def test_a_restore_is_erased_again(topic: KeyedTopic) -> None:
    """Run a RESTORE, which can bring old files back until they are deleted."""
    erasure, before = erasure_of(topic, b"ada"), topic.table.snapshot().version
    with ThreadPoolExecutor(2) as pool:
        erase_from_table(topic.table, "users", ErasedUpTo((erasure,)), TopicConfig.parse({}, {}), now_ms=1, pool=pool)
    DeltaTable(str(path_of(topic.table))).restore(before)
    assert not is_erased(topic.table.snapshot(), erasure.number)
    assert erase(topic, erasure).records == 4
    assert not has_bytes(topic, b"of-ada")


def test_an_earlier_erasure_also_holds_after_a_restore(topic: KeyedTopic) -> None:
    before = topic.table.snapshot().version
    first, second = erasure_of(topic, b"ada"), erasure_of(topic, b"eve", number=2)
    with ThreadPoolExecutor(2) as pool:
        for known in ((first,), (first, second)):
            erase_from_table(topic.table, "users", ErasedUpTo(known), TopicConfig.parse({}, {}), now_ms=1, pool=pool)
    DeltaTable(str(path_of(topic.table))).restore(before)
    assert erase(topic, first, second).records == 6
    assert not has_bytes(topic, b"of-ada")
    assert not has_bytes(topic, b"of-eve")


def test_files_that_no_commit_names_go_if_they_have_the_records(topic: KeyedTopic) -> None:
    """Leave files as a killed job does, or one that lost its race, or a write that stopped half way."""
    (old, _, clean) = topic.table.snapshot().segments(0)
    directory = path_of(topic.table)
    ranges = [(0, 4), (0, 8), (8, 11)]
    names = [f"partition=0/{base:020d}-{end:020d}-1-{n:032x}.parquet" for n, (base, end) in enumerate(ranges)]
    content = (directory / old.path).read_bytes()
    (directory / names[0]).write_bytes(content)
    (directory / names[1]).write_bytes(content[: len(content) // 2])
    (directory / names[2]).write_bytes((directory / clean.path).read_bytes())
    erase(topic, erasure_of(topic, b"ada"))
    assert [(directory / name).exists() for name in names] == [False, False, True]


def test_other_writers_files_are_rewritten(topic: KeyedTopic) -> None:
    DeltaTable(str(path_of(topic.table))).optimize.compact()
    erase(topic, erasure_of(topic, b"ada"))
    assert not has_bytes(topic, b"of-ada")
    assert len(topic.contents(0)) == 9


def test_records_that_a_deletion_vector_hides_are_also_erased(topic: KeyedTopic) -> None:
    """Hide records with a deletion vector: their bytes are still in the file, and a RESTORE would show them."""
    vectors.delete(path_of(topic.table), [0, 4], partition=0)
    vectors.update(path_of(topic.table), [5], b"secret-new", partition=1)
    done = erase(topic, erasure_of(topic, b"ada"))
    # The erasure removed no served record of partition 0, and two of partition 1.
    assert (done.records, done.rewritten) == (2, 4)
    assert not has_bytes(topic, b"of-ada")
    assert topic.table.snapshot().vectors == ()


def test_old_files_in_directories_of_column_mapping_go_if_they_have_the_records(topic: KeyedTopic) -> None:
    old = topic.table.snapshot().segments(1)[0].path
    rows = pq.read_table(path_of(topic.table) / old, partitioning=None)
    there = path_of(topic.table) / "Jj" / "part-00000-0.snappy.parquet"
    there.parent.mkdir()
    pq.write_table(rows.replace_schema_metadata(None), there)
    erase(topic, erasure_of(topic, b"ada"))
    assert not there.exists()


def test_a_table_without_erasures_gets_no_facts(topic: KeyedTopic) -> None:
    assert ERASED_FILES not in topic.table.snapshot().transactions
