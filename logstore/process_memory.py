"""Settings of the server process's allocators: the process is small and gives memory back after a burst."""

import contextlib
import ctypes
import os
import platform
import sys
from typing import Final

from logstore.limits import MIB

# glibc raises this bound to the largest block that it has seen freed, and keeps every smaller block for good. A bound
# that was set stays. Smaller blocks are reused so often that mapping each again costs more than it gives back.
_MMAP_THRESHOLD_BYTES: Final = 4 * MIB
# The end of an arena's heap goes back to the system only when this much is free, so that it is not fetched again page
# by page.
_TRIM_THRESHOLD_BYTES: Final = 16 * MIB
# Each arena has such an end. Two arenas suffice for threads that take turns at the interpreter.
_ARENAS: Final = 2
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def tune_allocators() -> None:
    """Set the bounds of malloc, and Arrow's allocator. Call it before pyarrow is imported.

    Arrow's memory comes from jemalloc if its wheel has one: with the others a burst of large requests or a roll leaves
    50 to 100 MB. ``ARROW_DEFAULT_MEMORY_POOL`` decides if it is set.
    """
    if sys.platform == "linux" and platform.machine() == "x86_64":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
        with contextlib.suppress(AttributeError):  # another libc
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
            mallopt(_M_ARENA_MAX, _ARENAS)
            mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
