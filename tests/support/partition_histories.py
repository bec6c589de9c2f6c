"""Partitions as jobs find them, and configurations for them, to test properties of plans."""

from dataclasses import replace

from hypothesis import strategies as st

from logstore.delta.clean_files import clean_digest
from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.segments.names import segment_name
from logstore.topic_config import TopicConfig

NOW = 1_000


@st.composite
def histories(draw):
    """Draw (state, files): files of any writer, with or without records, with gaps between and inside them, as
    compaction, aborted transactions and a DELETE leave them; and any facts that fit.
    """
    files = []
    at = 0
    for _ in range(draw(st.integers(0, 6))):
        base = at + draw(st.sampled_from([0, 0, 0, 1, 3]))
        at = base + draw(st.integers(1, 6))
        name = draw(st.sampled_from(["ours", "ours", "earlier", "foreign"]))
        records = draw(st.integers(0 if name == "ours" else 1, at - base))
        files.append(_file(draw, name, base, at, records))
    sealed = at + draw(st.sampled_from([0, 0, 0, 3]))
    ends = sorted({0, sealed, *(f.base_offset for f in files)})
    cleaned = draw(st.sampled_from(ends))
    # Sometimes files have come back below the clean point.
    digest = clean_digest(files, cleaned) + draw(st.sampled_from([0, 0, 1]))
    return PartitionState(sealed, 0, draw(st.integers(0, sealed)), 0, cleaned, digest), tuple(files)


def _file(draw, name, base, end, records):
    size = draw(st.integers(1, 20))
    path = segment_name(0, base, end, 0, "0" * 32)
    if not records:
        return SegmentFile(path, size, 0, base, end, -1, -1, -1, -1)
    low = base + draw(st.integers(0, end - base - records))
    high = draw(st.integers(low + records - 1, end - 1))
    oldest = draw(st.integers(0, NOW + 50))
    newest = draw(st.integers(oldest, NOW + 100))
    if name != "ours":
        path = f"f{base}" if name == "foreign" else path.replace(f"-{end:020d}-", "-")
        base, end = low, high + 1
    return SegmentFile(path, size, records, base, end, low, high, oldest, newest)


def segment_file(base: int, size: int = 10, oldest_ms: int = 0, newest_ms: int = 0) -> SegmentFile:
    """Return a segment of ten records from ``base``."""
    path = segment_name(0, base, base + 10, 0, "0" * 32)
    return SegmentFile(path, size, 10, base, base + 10, base, base + 9, oldest_ms, newest_ms)


configs = st.builds(
    lambda policy, **values: replace(TopicConfig.parse({}), cleanup_policy=frozenset(policy), **values),
    st.sampled_from([{"delete"}, {"compact"}, {"delete", "compact"}]),
    retention_ms=st.integers(-1, NOW),
    retention_bytes=st.integers(-1, 80),
    min_cleanable_dirty_ratio=st.floats(0, 1),
    min_compaction_lag_ms=st.integers(0, 300),
    max_compaction_lag_ms=st.integers(300, NOW),
)
