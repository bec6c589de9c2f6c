"""Erasures, which remove records for good, and their reports."""

from typing import Annotated, Literal

from msgspec import Meta

from logstore.limits import ERASED_KEYS_MAX
from logstore.protocol.messages.base import Int32, Int64, Request, Response


class ErasureRequest(Request, frozen=True):
    """An erasure of the records of these keys, or of those that `where` selects. Records that come later stay."""

    keys: Annotated[
        tuple[str, ...], Meta(max_length=ERASED_KEYS_MAX, description="Keys of the records, as `key_format` says.")
    ] = ()
    where: Annotated[str | None, Meta(description="An expression, as in `GET .../records`, instead of `keys`.")] = None
    key_format: Annotated[
        Literal["string", "json", "binary"] | None,
        Meta(
            description="`string`: the key is the UTF-8 bytes of the text; `json`: its JSON text, with the "
            "quotes, as JSON requests store it where `key.format` is `json`; `binary`: the text is "
            "base64. If absent, keys of the first two forms are erased."
        ),
    ] = None
    dry_run: Annotated[bool, Meta(description="Count the records, and erase nothing.")] = False


class ErasureProgress(Response, frozen=True):
    """The progress of the broker that works on the erasure; empty if none does now."""

    step: Annotated[str, Meta(description="`rolling`, `looking`, `rewriting`, `journals`, `deleting`, or empty.")]
    files: int
    files_done: int


class ErasedBroker(Response, frozen=True):
    broker: Int32
    erased_ms: Annotated[
        Int64, Meta(description="The time since which no file of the broker's journal has the records.")
    ]
    journal_files: Annotated[int, Meta(description="The number of journal files that were removed for it.")]


class ErasureRepeat(Response, frozen=True):
    version: int
    records: int
    erased_ms: Int64


class ErasureReport(Response, frozen=True):
    """Times are in milliseconds since 1970. A key is named by its hash with `salt`: the 32-bit murmur2 of the key, with
    the first 8 digits of the salt as its seed, and the BLAKE2b of 16 bytes of the key, with the salt as its key.
    """

    erasure: Annotated[str, Meta(description="Id of the erasure.")]
    state: Annotated[
        Literal["counting", "counted", "failed", "started", "pending", "erased"],
        Meta(
            description="`started`: the records may still be read. `pending`: no reader sees them, and copies may "
            "be on a disk. `erased`: no file of the store has them. A dry run is `counting`, then "
            "`counted` or `failed`. An erasure with `where` is `counting` first; if the broker stops "
            "before it is `started`, it is over."
        ),
    ]
    topic: str
    topic_id: str
    dry_run: bool
    requested_ms: Int64
    erased_ms: Annotated[Int64 | None, Meta(description="When the last byte was deleted.")]
    salt: str
    keys: tuple[str, ...]
    where: Annotated[str | None, Meta(description="The expression, without the values in it.")]
    records: Annotated[
        int, Meta(description="The number of records that left the table; in a dry run, that would leave it.")
    ]
    versions: Annotated[tuple[int, ...], Meta(description="The versions of the Delta table that removed them.")]
    rewritten_files: int
    deleted_files: Annotated[tuple[str, ...], Meta(description="The first 1,000 files that were deleted.")]
    deleted_files_count: int
    brokers: tuple[ErasedBroker, ...]
    pending: Annotated[
        tuple[Int32, ...],
        Meta(description="Brokers that are not running. Each erases the records before it serves again."),
    ]
    waiting: Annotated[str | None, Meta(description="The reason why the erasure waits.")]
    progress: ErasureProgress
    repeats: Annotated[
        tuple[ErasureRepeat, ...], Meta(description="Erasures of records that came back with a RESTORE or a backup.")
    ]
    not_reached: Annotated[tuple[str, ...], Meta(description="Copies that the store cannot reach.")]

    @property
    def is_over(self) -> bool:
        """True if nothing more happens: the records are erased, or the dry run has ended."""
        return self.state in ("erased", "counted", "failed")


class ErasureReports(Response, frozen=True):
    erasures: tuple[ErasureReport, ...]


class ErasuresTopic(Response, frozen=True):
    """The topic of erasures, which exists."""

    topic_id: str
