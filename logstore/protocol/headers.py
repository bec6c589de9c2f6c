"""Headers of HTTP that more than one listener or client knows by name, in lower case."""

from typing import Final

#: The context of a relayed request (``RequestContext.encode``), which is believed between brokers only.
RELAYED_CONTEXT: Final = b"logstore-relayed-context"
