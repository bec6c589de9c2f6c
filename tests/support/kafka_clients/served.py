"""What is served: the address for Kafka's clients, and the one for HTTP."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Served:
    """``url`` and ``data`` are None of a real Kafka, which the same tests can be held against."""

    bootstrap: str
    url: str | None = None
    data: Path | None = None

    @property
    def is_kafka(self) -> bool:
        return self.url is None
