"""An answer with something that it holds until it has gone out: room among the bytes in flight."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Held(NamedTuple):
    """A handler may return it instead of the message. ``release`` is called once, on the event loop: when the answer
    has gone out, or when it never will.
    """

    message: Any
    release: Callable[[], None]
