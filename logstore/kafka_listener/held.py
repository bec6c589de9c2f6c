"""A response that holds something until it is sent: room among the bytes in flight."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Held(NamedTuple):
    """A handler may return it instead of the message. ``release`` is called once, on the event loop, when the response
    is sent, or when it never will be.
    """

    message: Any
    release: Callable[[], None]
