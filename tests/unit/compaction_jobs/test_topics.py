"""The topics that a job works on."""

import shutil
from pathlib import Path

import pytest

from compaction_jobs.topics import select_topics
from logstore.errors import DataDirectoryError, UnknownTopicError
from logstore.table_root import open_root
from tests.support.table_paths import create_table, path_of


def names(data: Path, *patterns: str) -> list[str]:
    return [topic.name for topic in select_topics(open_root(data), patterns, {})]


def test_topics_are_chosen_by_name_and_glob(tmp_path: Path) -> None:
    (tmp_path / "topics").mkdir()
    assert names(tmp_path, "*") == names(tmp_path) == [], "a store without topics has nothing to be done"
    for name in ("web-a", "web-b", "users"):
        create_table(tmp_path / "topics" / name, num_partitions=1, config_overrides={})
    assert names(tmp_path, "web-*") == ["web-a", "web-b"]
    assert names(tmp_path, "users", "*-a") == ["users", "web-a"]
    assert names(tmp_path) == ["users", "web-a", "web-b"]
    for wrong in ("user", "log-*"):
        with pytest.raises(UnknownTopicError, match=wrong.replace("*", r"\*")):
            names(tmp_path, "users", wrong)
    with pytest.raises(DataDirectoryError, match="not a store's data directory"):
        names(tmp_path / "topics")


@pytest.mark.parametrize("how", ["copy", "link"])
def test_a_copy_of_a_topic_is_no_topic(tmp_path, how):
    path = path_of(create_table(tmp_path / "topics" / "users", num_partitions=1, config_overrides={}))
    if how == "copy":
        shutil.copytree(path, path.with_name("users.bak"))
    else:
        path.with_name("users.bak").symlink_to("users")
    assert [topic.name for topic in select_topics(open_root(tmp_path), [], {})] == ["users"]
    with pytest.raises(UnknownTopicError, match="is a copy of another topic"):
        select_topics(open_root(tmp_path), ["users.bak"], {})
