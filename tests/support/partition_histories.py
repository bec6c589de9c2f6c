"""Partitions as jobs find them, and configurations for them, to test properties of plans."""

from dataclasses import replace

from hypothesis import strategies as st

from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.topic_config import TopicConfig

NOW = 1_000


@st.composite
def histories(draw):
    """(state, files): files with gaps between and inside them, as compaction leaves them, and any facts that fit."""
    files = []
    at = 0
    for _ in range(draw(st.integers(0, 6))):
        low = at + draw(st.integers(0, 3))
        high = low + draw(st.integers(0, 5))
        oldest = draw(st.integers(0, NOW + 50))
        newest = draw(st.integers(oldest, NOW + 100))
        records = draw(st.integers(1, high - low + 1))
        files.append(SegmentFile(f"f{low}", draw(st.integers(1, 20)), records, low, high, oldest, newest))
        at = high + 1
    sealed = at + draw(st.integers(0, 3))
    ends = sorted({0, sealed, *(f.min_offset for f in files)})
    state = PartitionState(sealed, 0, draw(st.integers(0, sealed)), 0, draw(st.sampled_from(ends)))
    return state, tuple(files)


configs = st.builds(
    lambda policy, **values: replace(TopicConfig.parse({}), cleanup_policy=frozenset(policy), **values),
    st.sampled_from([{"delete"}, {"compact"}, {"delete", "compact"}]),
    retention_ms=st.integers(-1, NOW),
    retention_bytes=st.integers(-1, 80),
    min_cleanable_dirty_ratio=st.floats(0, 1),
    min_compaction_lag_ms=st.integers(0, 300),
    max_compaction_lag_ms=st.integers(300, NOW),
)
