"""Keeps the server process small: it sets the allocators to give memory back after a burst, and hides a package that
the server does not need.
"""

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
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


class _WithoutPandas(PathFinder):
    """Finds what is installed, except pandas."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "pandas" else super().find_spec(fullname, path, target)


def hide_pandas() -> None:
    """Let Python not find pandas. Call it before pyarrow makes its first array, which imports pandas if it is there.

    This holds for the whole process, so only a process that is nothing but a server may call it.
    """
    # A None in ``sys.modules`` would be shorter, but Cython's ``import``, and so pyarrow's, takes it for the module.
    sys.meta_path[:] = [_WithoutPandas if finder is PathFinder else finder for finder in sys.meta_path]
