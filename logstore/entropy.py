"""Chance: ids, secrets and jitter come from one source, which a simulation replaces by one with a seed.

The source is the operating system's, which is fit for secrets. The whole process shares it, as it does the operating
system's: a drawn value reveals nothing about its caller.
"""

import contextlib
import random
from collections.abc import Iterator
from uuid import UUID

_source: random.Random = random.SystemRandom()


@contextlib.contextmanager
def seeded(source: random.Random) -> Iterator[None]:
    """Draw from ``source``, in all threads, while the block runs."""
    global _source  # noqa: PLW0603 - one for the process, as the operating system's
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


def new_uuid() -> UUID:
    """Return a random UUID (RFC 9562, version 4)."""
    return UUID(bytes=_source.randbytes(16), version=4)


def random_bytes(count: int) -> bytes:
    return _source.randbytes(count)


def random_bits(count: int) -> int:
    return _source.getrandbits(count)


def random_int(least: int, most: int) -> int:
    """Return an integer from ``least`` to ``most``, both included."""
    return _source.randint(least, most)


def random_float(least: float, most: float) -> float:
    return _source.uniform(least, most)
