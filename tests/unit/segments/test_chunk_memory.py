"""Large memory is used again by the next reader, and by one at a time."""

import numpy as np

from logstore.segments.chunk_memory import KEPT_BYTES_MAX, KEPT_BYTES_MIN, ChunkMemory


def test_large_memory_is_used_again_by_one_at_a_time() -> None:
    memory = ChunkMemory()
    first = memory.take(KEPT_BYTES_MIN)
    address = first.ctypes.data
    memory.give_back(first)
    first, second = memory.take(KEPT_BYTES_MAX), memory.take(KEPT_BYTES_MIN)
    assert (len(first), first.ctypes.data) == (KEPT_BYTES_MAX, address)
    assert not np.shares_memory(first, second)
    memory.give_back(first)
    memory.give_back(second)
    assert memory.take(KEPT_BYTES_MIN + 1).base is second.base


def test_other_sizes_are_not_kept() -> None:
    memory = ChunkMemory()
    for size in (0, 1, KEPT_BYTES_MIN - 1, KEPT_BYTES_MAX + 1):
        taken = memory.take(size)
        assert len(taken) == size
        memory.give_back(taken)
    assert memory._kept is None
