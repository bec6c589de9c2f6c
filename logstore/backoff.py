"""The pauses between tries."""

from collections.abc import Iterator
from typing import Final

from logstore.entropy import random_float

_SECONDS: Final = 0.1
_SECONDS_MAX: Final = 2.0


def backoffs() -> Iterator[float]:
    """Yield the seconds to wait before each further try."""
    wait = _SECONDS
    while True:
        # The wait has jitter, so that many clients do not come back at the same moment.
        yield wait * random_float(0.5, 1.0)
        wait = min(2 * wait, _SECONDS_MAX)
