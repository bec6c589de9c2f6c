"""Every table feature of Delta 4.4: whether the store reads and commits with it, and that it can be removed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.table_features import BASE, FEATURES
from logstore.delta.topic_table import TopicTable
from logstore.errors import CommitRefusedError, LogStoreError, UnsupportedTableError
from logstore.inspection import feature_removal
from logstore.inspection.feature_removal import TakenBack
from logstore.segments.reader import read_row_group, row_groups
from logstore.topic_config import TopicConfig
from tests.support import deletion_vectors as vectors
from tests.support import table_features as features
from tests.support.table_paths import path_of
from tests.support.topics import create_topic, offsets_in_table, roll

#: Features that keep the store from reading the table, or from committing to it, while they are in use.
NOT_READ = {"catalogManaged", "adaptiveMetadata-preview"}
NOT_WRITTEN = NOT_READ | {
    "checkConstraints",
    "coordinatedCommits-preview",
    "generatedColumns",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
    "identityColumns",
    "invariants",
    "materializePartitionColumns",
}
NOT_TAKEN_BACK = NOT_READ | {"coordinatedCommits-preview"}


@pytest.fixture
def table(tmp_path: Path) -> TopicTable:
    table = create_topic(tmp_path)
    for start in (0, 20, 40):
        roll(table, 0, start, start + 20)
    return table


def served(table: TopicTable, partition: int = 0) -> dict[int, bytes | None]:
    """Return the records' values by offset."""
    found: dict[int, bytes | None] = {}
    for segment in table.snapshot().segments(partition):
        for group in row_groups(table.files, segment.path):
            batch = read_row_group(table.files, segment.path, group.index)
            assert not found.keys() & set(batch["offset"].to_pylist())
            found |= zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    assert list(found) == sorted(found)
    return found


def take_back(table: TopicTable, feature: str | None = None) -> TakenBack:
    def config(snapshot: TopicSnapshot) -> TopicConfig:
        return TopicConfig.parse(snapshot.config_overrides, {})

    return feature_removal.take_back(table, table.files.name, feature, config, 1)


def protocol_of(table: TopicTable) -> tuple[int, int, Sequence[str] | None]:
    told = DeltaTable(table.files.uri).protocol()
    return told.min_reader_version, told.min_writer_version, told.writer_features


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_is_honoured_or_refused_and_taken_back(table: TopicTable, feature: str) -> None:
    before = served(table)
    features.turn_on(path_of(table), feature)
    if feature in NOT_READ:
        with pytest.raises(UnsupportedTableError, match=FEATURES[feature].words):
            table.snapshot()
    else:
        assert served(table) == before
    if feature in NOT_WRITTEN:
        with pytest.raises(LogStoreError, match=FEATURES[feature].words):
            roll(table, 0, 60, 80)
    else:
        roll(table, 0, 60, 80)
    if feature in NOT_TAKEN_BACK:
        with pytest.raises(CommitRefusedError, match="only Spark can"):
            take_back(table, feature)
        return
    assert feature in take_back(table, feature).features
    take_back(table)  # and the features that it brought with it
    assert protocol_of(table)[:2] == (1, 2)
    snapshot = table.snapshot()
    assert snapshot.features == BASE
    assert not [name for name in features.PROPERTIES.get(feature, ()) if name in snapshot.properties]
    assert not [
        key for key in features.METADATA.get(feature, ()) if key in (snapshot.table.meta_data.schema_string or "")
    ]
    assert snapshot.table.domains == {}
    roll(TopicTable.open(table.files), 0, snapshot.partitions[0].sealed, 100)
    assert offsets_in_table(table) == list(served(table))
    assert {offset: served(table)[offset] for offset in before} == before


def test_one_feature_of_several(table: TopicTable) -> None:
    features.turn_on(path_of(table), "rowTracking", "deletionVectors", "columnMapping", "inCommitTimestamp")
    vectors.delete(path_of(table), [3])
    assert take_back(table, "deletionVectors").features == ("deletionVectors",)
    assert protocol_of(table) == (
        2,
        7,
        ["appendOnly", "columnMapping", "domainMetadata", "inCommitTimestamp", "invariants", "rowTracking"],
    )
    roll(table, 0, 60, 80)
    assert take_back(table, "domainMetadata").features == ("domainMetadata", "rowTracking")
    assert take_back(table, "columnMapping").features == ("columnMapping",)
    assert protocol_of(table) == (1, 7, ["appendOnly", "inCommitTimestamp", "invariants"])
    assert take_back(table).features == ("inCommitTimestamp",)
    assert protocol_of(table) == (1, 2, None)
    assert take_back(table).features == ()
    with pytest.raises(CommitRefusedError, match="no feature 'nonsense'"):
        take_back(table, "nonsense")


@pytest.mark.parametrize(
    ("feature", "change", "why"),
    [
        ("variantType", features.add_column("x", "variant"), "column x is of type variant"),
        ("timestampNtz", features.add_column("x", "timestamp_ntz"), "column x is of type timestamp_ntz"),
        ("geospatial", features.add_column("x", "geometry(OGC:CRS84)"), "column x is of type geometry"),
        (
            "columnMapping",
            features.add_column("x", "long", **{"delta.columnMapping.physicalName": "col-1"}),
            "column x has another name in the files",
        ),
        (
            "typeWidening",
            features.add_column("x", "long", **{"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}),
            "column x has an older type",
        ),
    ],
)
def test_columns_of_the_owner_that_need_a_feature(table: TopicTable, feature: str, change: Any, why: str) -> None:
    """Keep columns that the owner added: they stop nothing, and the feature is not removed."""
    before = served(table)
    features.turn_on(path_of(table), feature, change=change)
    assert served(table) == before
    roll(table, 0, 60, 80)
    with pytest.raises(CommitRefusedError, match=why):
        take_back(table)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (features.rename("value", "v"), "its column value was renamed to v"),
        (features.drop("key"), "its column key was dropped"),
        (features.rename("offset", "o"), "its column offset was renamed to o"),
    ],
)
def test_columns_of_the_topic_that_were_renamed_or_dropped(table: TopicTable, change: Any, why: str) -> None:
    features.turn_on(path_of(table), "columnMapping", change=change)
    with pytest.raises(UnsupportedTableError, match=why) as error:
        table.snapshot()
    assert "RESTORE TABLE" in error.value.remedy
    with pytest.raises(LogStoreError, match=why):
        roll(table, 0, 60, 80)


def test_a_feature_of_a_later_delta(table: TopicTable) -> None:
    before = served(table)
    features.turn_on(path_of(table), "writersOfTomorrow")
    assert served(table) == before
    features.turn_on(path_of(table), "appendOnly", "identityColumns")
    remedy = "Upgrade logstore, or let the writer that turned it on take writersOfTomorrow back"
    with pytest.raises(CommitRefusedError, match=r"writersOfTomorrow \(this release does not know it\)") as refused:
        roll(table, 0, 60, 80)
    assert str(refused.value).count(remedy) == 1
    assert "take-feature-back" not in str(refused.value)
    with pytest.raises(CommitRefusedError, match=f"does not know the feature writersOfTomorrow. {remedy}"):
        take_back(table)


def test_the_remedy_is_given_once(table: TopicTable) -> None:
    features.turn_on(path_of(table), "checkConstraints")
    with pytest.raises(CommitRefusedError) as refused:
        roll(table, 0, 60, 80)
    assert str(refused.value).count("logstore topic take-feature-back") == 1


def test_a_default_of_a_column_of_the_owner_keeps_commits_back(table: TopicTable) -> None:
    features.turn_on(
        path_of(table), "allowColumnDefaults", change=features.add_column("x", "long", CURRENT_DEFAULT="5")
    )
    with pytest.raises(CommitRefusedError, match="column x has a default"):
        roll(table, 0, 60, 80)
    take_back(table)
    roll(table, 0, 60, 80)


def test_rows_that_others_delete_while_files_are_written_again(
    table: TopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change vectors after the first plan: its files are written again, because their vectors differ at the commit."""
    vectors.delete(path_of(table), [3])
    write = feature_removal.write_here
    calls = []

    def write_while_another_deletes(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            vectors.delete(path_of(table), [4])
        return write(*arguments, **options)

    monkeypatch.setattr(feature_removal, "write_here", write_while_another_deletes)
    take_back(table)
    assert list(served(table)) == [offset for offset in range(60) if offset not in {3, 4}]
    assert protocol_of(table)[:2] == (1, 2)


def test_take_back_with_updated_rows(table: TopicTable) -> None:
    vectors.update(path_of(table), [3, 25], b"new")
    expected = served(table)
    assert expected[3] == expected[25] == b"new"
    assert take_back(table).rewritten_files == 3
    assert served(table) == expected
    rows = DeltaTable(table.files.uri).to_pyarrow_table(columns=["offset", "value"]).to_pylist()
    assert {row["offset"]: row["value"] for row in rows} == expected
