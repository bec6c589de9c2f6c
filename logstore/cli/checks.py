"""The findings of ``doctor``, one line each."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``advice`` is the remedy, empty if none is needed."""

    name: str
    status: Status
    found: str
    advice: str = ""
