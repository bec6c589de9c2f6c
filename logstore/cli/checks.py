"""What ``doctor`` finds: one line each."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """``advice`` is what to do; empty where nothing is."""

    name: str
    status: Status
    found: str
    advice: str = ""
