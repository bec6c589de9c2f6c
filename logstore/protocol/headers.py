"""Names of HTTP headers that several listeners or clients share, in lower case."""

from typing import Final

#: The context of a relayed request (``RequestContext.encode``), which is accepted only between brokers.
RELAYED_CONTEXT: Final = b"logstore-relayed-context"
