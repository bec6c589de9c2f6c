"""Libraries that ``conf/build_hook.py`` compiles from C sources of this package, when it is installed or its wheel is
built. Each source has a library beside it: ``a.c`` has ``_a.so``.

A library that does not belong to the source beside it is not loaded, because their structures could differ.
"""

import ctypes
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class StaleLibraryError(OSError):
    """The library was compiled from another source."""


def library_of(source: Path) -> Path:
    """Return the path of the library that is compiled from ``source``."""
    return source.with_name(f"_{source.stem}.so")


def load(source: Path, library: Path) -> ctypes.CDLL:
    """Load the ``library`` of ``source``. Raises OSError if it cannot be loaded, and StaleLibraryError if it was
    compiled from another source.
    """
    functions = ctypes.CDLL(str(library))
    functions.source_crc.restype = ctypes.c_int64
    if functions.source_crc() != zlib.crc32(source.read_bytes()):
        raise StaleLibraryError(f"{library} was compiled from another {source.name}")
    return functions


def loaded(make: Callable[[], T]) -> T | None:
    """Return what ``make`` makes of a library; None where the library is not compiled or cannot be loaded."""
    try:
        return make()
    except OSError:
        return None
