from deltalake import DeltaTable

from compaction_jobs.jobs import run_job, topics_of
from logstore.table_root import open_root
from tests.support.job_context import job_context
from tests.support.keyed_topics import KeyedTopic, Record


def test_a_partition_that_lacks_what_a_restore_took_away_is_not_compacted(tmp_path):
    """Refuse to compact: readers skip gaps below the clean point, so the loss would no longer show."""
    topic = KeyedTopic.create(tmp_path, "users", cleanup_policy="compact")
    for value in (b"1", b"2", b"3"):
        topic.roll({0: [Record(b"k", value, 1), Record(b"l", value, 1)]})
    table = DeltaTable(str(tmp_path / "topics" / "users"))
    version = table.version()
    table.restore(version - 1)
    with job_context(1_700_000_000_000) as context:
        (report,) = run_job("compact", topics_of("compact", open_root(tmp_path), ["users"], {}), context).topics
    assert report.error is not None
    assert f"users-0: offsets 4 to 5 are missing: RESTORE in version {version + 1}" in str(report.error)
