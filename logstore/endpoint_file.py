"""``brokers/<id>/endpoint.json``: the addresses at which a broker listens, for tools on its machine.

The file exists while the broker is ready. A broker that was killed leaves it behind.
"""

from pathlib import Path
from typing import Final

import msgspec

ENDPOINT_FILE: Final = "endpoint.json"


class Endpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The addresses of a broker. ``kafka``: host:port for Kafka's clients; None without a listener for them."""

    url: str
    pid: int
    kafka: str | None = None


def read_endpoint(home: Path) -> Endpoint | None:
    """Return the addresses of the broker with the directory ``home``; None if its file does not exist or is damaged."""
    try:
        return msgspec.json.decode((home / ENDPOINT_FILE).read_bytes(), type=Endpoint)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
