"""The schedule of faults, made from a seed alone before anything runs: one seed always gives the same schedule.

Invariants: the requested kinds come in rounds, each once a round, in an order that differs from round to round; a
quarter of the time is free of faults, more if a restart takes long.
"""

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Faults that are over in a moment; the first ones may also strike in the middle of a fault that lasts.
ABRUPT: Final = ("kill", "terminate", "power_cut", "pause", "overwrite", "job_kill")
LASTING: Final = ("fsync_error", "call_error", "read_error", "disk_full", "slow_fsync", "block", "clock", "descriptors")
#: Faults by another program beside the store.
MEDDLING: Final = ("copy", "recreate", "lock", "journal", "restore", "rewrite", "strange", "statement", "erase")
KINDS: Final = (*ABRUPT, *LASTING, *MEDDLING)
#: Faults of the members of consumer groups, for runs that have some.
GROUPED: Final = (
    "member_kill",
    "member_pause",
    "member_fence",
    "member_restart",
    "member_add",
    "member_close",
    "grow",
    "kill_when_settled",
)
#: Faults for runs that also have streaming queries of Spark on the tables. They leave out commits of other writers that
#: a stream over a table cannot bear (docs/your-topic-as-a-table.md).
STREAMED: Final = (
    "stream_kill",
    *(kind for kind in KINDS if kind not in {"overwrite", "restore", "strange", "statement", "erase"}),
)

HOUR_MS: Final = 3_600_000
_IN_THE_MIDDLE: Final = ("kill", "power_cut", "pause", "overwrite")
_IN_THE_MIDDLE_ODDS: Final = 0.25
#: Calls through the seam by kind of file, and their possible outcomes.
_CALLS: Final = (
    "journal.write_at",
    "journal.fdatasync",
    "journal.fsync",
    "journal.allocate",
    "journal.create",
    "journal.unlink",
    "journal.truncate",
    "journal.sync_directory",
    "journal.read_at",
    "segment.create",
    "segment.write_at",
    "segment.fdatasync",
    "segment.sync_directory",
    "segment.unlink",
    "delta.sync_file",
    "delta.sync_directory",
    "delta.link",
)
#: Calls that read tables.
_READS: Final = (
    "segment.open_read",
    "segment.read_into",
    "segment.stat",
    "segment.names",
    "delta.open_read",
    "delta.read_into",
    "delta.stat",
    "delta.names",
)


#: Steps of an erasure between its first record and its last one.
ERASING: Final = (
    "erase.rolled",
    "erase.written",
    "erase.committed",
    "erase.pending",
    "erase.journal",
    "erase.deleted",
    "erase.swept",
)
#: These points lie before a group of the journal is written, and before it is synced.
_IN_A_WRITE: Final = ("journal.write_at", "journal.written")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: begins after ``quiet`` seconds without one and lasts ``seconds``; ``inside`` strikes in the middle."""

    kind: str
    seconds: float
    quiet: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    inside: "Fault | None" = None


def faults(seed: int, kinds: Collection[str] = KINDS, *, pace: float = 1.0) -> Iterator[Fault]:
    """Yield faults without an end; at a ``pace`` below 1 they are shorter and come faster."""
    chance = random.Random(f"schedule {seed}")
    known = [kind for kind in (*KINDS, *STREAMED[:1], *GROUPED) if kind in kinds]
    while known:
        for kind in chance.sample(known, len(known)):
            inside = None
            if kind in LASTING and kind != "fsync_error" and chance.random() < _IN_THE_MIDDLE_ODDS:
                among = [k for k in _IN_THE_MIDDLE if k in known]
                inside = _fault(chance, chance.choice(among), pace) if among else None
            yield _fault(chance, kind, pace, inside)


def _fault(chance: random.Random, kind: str, pace: float, inside: Fault | None = None) -> Fault:
    seconds = pace * chance.uniform(0.5, 4.0) if kind in LASTING or kind in {"pause", "member_pause"} else 0.0
    if kind in MEDDLING:
        # The store needs further time to notice.
        seconds = pace * chance.uniform(0.2, 1.5)
    # A restart takes about a second.
    quiet = pace * chance.uniform(0.5, 1.5) + seconds / 3
    return Fault(kind, round(seconds, 2), round(quiet, 2), _settings(chance, kind), inside)


def _settings(chance: random.Random, kind: str) -> dict[str, Any]:
    match kind:
        case "power_cut":
            return {"seed": chance.randrange(2**31), "strict": chance.random() < 0.4}
        case "fsync_error":
            return {"nth": chance.randint(1, 20), "restart": chance.choice(["kill", "terminate", "power_cut"])}
        case "call_error":
            return {
                "call": chance.choice(_CALLS),
                "error": chance.choice(["EIO", "ENOSPC"]),
                "nth": chance.randint(1, 3),
                "times": chance.randint(1, 3),
                "written": chance.choice([0, 0, 7, 700]),
            }
        case "read_error":
            call = chance.choice(_READS)
            return {
                "call": call,
                "error": chance.choice(["EIO", "SHORT"]) if call.endswith("read_into") else "EIO",
                "nth": chance.randint(1, 3),
                "times": chance.choice([1, 3, 1_000_000]),
            }
        case "disk_full":
            return {"free_bytes": chance.choice([0, 1_000, 100_000, 1_000_000])}
        case "slow_fsync":
            return {"seconds": round(chance.uniform(0.1, 1.0), 2)}
        case "stream_kill":
            return {"and_then": round(chance.uniform(0, 1), 2)}
        case "clock":
            return {"offset_ms": chance.choice([-HOUR_MS, HOUR_MS])}
        case "descriptors":
            return {"spare": chance.randint(0, 3)}
        case "overwrite":
            return {"which": chance.random()}
        case _ if kind in MEDDLING:
            return _meddling(chance, kind)
        case _ if kind in GROUPED:
            return {"which": chance.random()}
        case _:
            return {}


def _meddling(chance: random.Random, kind: str) -> dict[str, Any]:
    # The way in which the store is restarted meanwhile, or None.
    restart = chance.choice([None, None, "kill", "terminate"])
    match kind:
        case "copy":
            names = chance.choice(["{}.bak", "a.{}"])
            return {"which": chance.random(), "how": chance.choice(["copy", "link"]), "name": names}
        case "recreate":
            return {"restart": restart}
        case "lock":
            end, then = (chance.choice(["kill", "terminate"]) for _ in range(2))
            locks, stop_at = chance.choice(["both", "both", "data"]), chance.choice([None, *_IN_A_WRITE])
            return {"locks": locks, "stop_at": stop_at, "end": end, "then": then}
        case "journal":
            how = chance.choice(["lost", "unmounted", "older", "replaced", "cut", "removed", "removed"])
            end, then = chance.choice(["kill", "terminate"]), chance.choice(["put back", "new journal"])
            return {"how": how, "end": end, "then": then}
        case "restore":
            how = chance.choice(["restore", "restore", "overwrite"])
            return {"which": chance.random(), "how": how, "back": chance.randint(1, 4), "restart": restart}
        case "rewrite":
            return {"which": chance.random(), "how": chance.choice(["optimize", "z-order"]), "restart": restart}
        case "statement":
            # A statement changes one record in ``every`` of one file: with 1 a DELETE removes the whole file.
            how, every = chance.choice(["delete", "delete", "update", "merge"]), chance.choice([1, 3, 20])
            at = {"which": chance.random(), "partition": chance.random(), "file": chance.random()}
            return {**at, "how": how, "every": every, "undone": chance.random() < 0.25, "restart": restart}
        case "erase":
            at = {"which": chance.random(), "partition": chance.random()}
            return {**at, "restart": restart, "point": chance.choice([None, *ERASING])}
        case _:
            # A row over the store's rows, one that the next roll meets, one far beyond; or an invalid number of
            # partitions.
            what = chance.choice([-1, 0, 1_000, "abc", "1000", ""])
            at = {"which": chance.random(), "partition": chance.random()}
            return {**at, "what": what, "restart": restart}
