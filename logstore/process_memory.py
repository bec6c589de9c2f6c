"""How the server process asks for its memory: little at the start, and given back after a burst.

What it does counts only before the process imports pyarrow. Nothing depends on it but the process's size.
"""

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Final

from logstore.limits import MIB

# glibc would raise this bound to the largest body that it has seen freed, and keep what is below it for good. Smaller
# blocks are used again so often that mapping each anew would cost more than it gives back; nor does the end of the heap
# go back whenever one of them is freed there, to be had again page by page for the next. Each arena has such an end:
# two arenas do for threads that take turns at the interpreter.
_MMAP_THRESHOLD_BYTES: Final = 4 * MIB
_TRIM_THRESHOLD_BYTES: Final = 16 * MIB
_ARENAS: Final = 2
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


@contextlib.contextmanager
def lean_process() -> Iterator[None]:
    """Around everything that the process imports and does.

    pyarrow imports pandas (40 MB) with the first array that it makes, if it is there for Spark's sake. Here it is not.
    Arrow's memory comes from jemalloc, where its wheels have one: with the others a burst of large requests or a roll
    leaves 50 to 100 MB. ``ARROW_DEFAULT_MEMORY_POOL`` decides if it is set.
    """
    if sys.platform == "linux" and platform.machine() == "x86_64":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
        with contextlib.suppress(AttributeError):  # another libc
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
            mallopt(_M_ARENA_MAX, _ARENAS)
            mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
    _replace_finder(PathFinder, _WithoutPandas)
    try:
        yield
    finally:
        _replace_finder(_WithoutPandas, PathFinder)


class _WithoutPandas(PathFinder):
    """Finds what is installed, but for pandas: not to be found is what every library reckons with."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "pandas" else super().find_spec(fullname, path, target)


def _replace_finder(old: type[PathFinder], new: type[PathFinder]) -> None:
    sys.meta_path[:] = [new if finder is old else finder for finder in sys.meta_path]
