"""The embedded coordinator: one cluster id for ever, a leader epoch that only rises."""

from pathlib import Path

import pytest

from logstore.broker.coordinator import EmbeddedCoordinator
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem


def coordinator(data: Path) -> EmbeddedCoordinator:
    (data / "brokers" / "0").mkdir(parents=True, exist_ok=True)
    return EmbeddedCoordinator(data, 0, FileSystem())


def test_the_cluster_keeps_its_id(tmp_path: Path) -> None:
    assert coordinator(tmp_path).cluster_id == coordinator(tmp_path).cluster_id


def test_every_start_leads_with_a_higher_epoch(tmp_path: Path) -> None:
    assert [coordinator(tmp_path).elect(above=0) for _ in range(3)] == [1, 2, 3]


def test_an_epoch_is_above_all_that_the_tables_have_seen(tmp_path: Path) -> None:
    # The broker's own directory may be lost; the tables remember who led.
    assert coordinator(tmp_path).elect(above=41) == 42
    assert coordinator(tmp_path).elect(above=0) == 43


@pytest.mark.parametrize("content", ['{"cluster_id": "x", "format_version": 99}', "{", "[]"])
def test_a_directory_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(DataDirectoryError):
        coordinator(tmp_path)
