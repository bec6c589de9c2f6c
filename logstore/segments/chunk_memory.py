"""Memory for column chunks that is used again.

Arrow's allocator gives large pieces back to the system at once, and the system fills new memory with zeros: that costs
more than reading a chunk into it. Invariant: at most one piece is kept, of at most KEPT_BYTES_MAX.
"""

import threading
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from logstore.limits import MIB, ROW_GROUP_BYTES_MAX

Bytes: TypeAlias = npt.NDArray[np.uint8]

#: Smaller pieces are used again by the allocators themselves.
KEPT_BYTES_MIN: Final = 4 * MIB
#: A chunk of a row group that is not one large record.
KEPT_BYTES_MAX: Final = ROW_GROUP_BYTES_MAX + MIB


class ChunkMemory:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Bytes | None = None

    def take(self, size: int) -> Bytes:
        """Return ``size`` bytes of any content."""
        if not KEPT_BYTES_MIN <= size <= KEPT_BYTES_MAX:
            return np.empty(size, np.uint8)
        with self._lock:
            kept, self._kept = self._kept, None
        # Memory pages that are never written take no memory.
        return (np.empty(KEPT_BYTES_MAX, np.uint8) if kept is None else kept)[:size]

    def give_back(self, taken: Bytes) -> None:
        """Keep the memory that ``take`` returned; nothing may use it any more."""
        if isinstance(taken.base, np.ndarray):
            with self._lock:
                self._kept = taken.base
