"""Erasures, which remove records for good, and their reports."""

from typing import Annotated, Literal

from msgspec import Meta

from logstore.limits import ERASED_KEYS_MAX
from logstore.protocol.messages.base import Int32, Int64, Request, Response


class ErasureRequest(Request, frozen=True):
    """Erase the records of these keys, or those that `where` selects. Records that come later are new, and stay."""

    keys: Annotated[
        tuple[str, ...], Meta(max_length=ERASED_KEYS_MAX, description="Keys of the records, as `key_format` says.")
    ] = ()
    where: Annotated[
        str | None, Meta(description="An expression, as of `GET .../records`, in the place of `keys`.")
    ] = None
    key_format: Annotated[
        Literal["string", "json", "binary"] | None,
        Meta(
            description="`string`: the key is the UTF-8 bytes of the text; `json`: its JSON text, with the quotes, as "
            "JSON "
            "requests store it where `key.format` is `json`; `binary`: the text is base64. If absent, both of the "
            "first."
        ),
    ] = None
    dry_run: Annotated[bool, Meta(description="Count the records, and erase nothing.")] = False


class ErasureProgress(Response, frozen=True):
    """How far the broker is that works on it; empty if none does now."""

    step: Annotated[str, Meta(description="`rolling`, `looking`, `rewriting`, `journals`, `deleting`, or empty.")]
    files: int
    files_done: int


class ErasedBroker(Response, frozen=True):
    broker: Int32
    erased_ms: Annotated[Int64, Meta(description="Since then no file of the broker's journal has the records.")]
    journal_files: Annotated[int, Meta(description="Files that were removed for that.")]


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
            description="`started`: the records may still be read. `pending`: no reader sees them, and copies may be "
            "on a "
            "disk. `erased`: no file of the store has them. A dry run is `counting`, then `counted` or `failed`; with "
            "`where` an erasure is `counting` first, and ends with the broker until it is `started`."
        ),
    ]
    topic: str
    topic_id: str
    dry_run: bool
    requested_ms: Int64
    erased_ms: Annotated[Int64 | None, Meta(description="When the last byte went.")]
    salt: str
    keys: tuple[str, ...]
    where: Annotated[str | None, Meta(description="The expression, without the values in it.")]
    records: Annotated[int, Meta(description="Records that left the table; of a dry run, that would.")]
    versions: Annotated[
        tuple[int, ...], Meta(description="Versions of the Delta table from which on they are not in it.")
    ]
    rewritten_files: int
    deleted_files: Annotated[tuple[str, ...], Meta(description="Files that were deleted, the first 1,000 of them.")]
    deleted_files_count: int
    brokers: tuple[ErasedBroker, ...]
    pending: Annotated[
        tuple[Int32, ...], Meta(description="Brokers that are not there: each erases before it serves again.")
    ]
    waiting: Annotated[str | None, Meta(description="What the erasure waits for.")]
    progress: ErasureProgress
    repeats: Annotated[
        tuple[ErasureRepeat, ...], Meta(description="Records came back with a RESTORE or a backup, and went again.")
    ]
    not_reached: Annotated[tuple[str, ...], Meta(description="What the store cannot reach.")]

    @property
    def is_over(self) -> bool:
        """True if nothing more happens: the records are erased, or the dry run has ended."""
        return self.state in ("erased", "counted", "failed")


class ErasureReports(Response, frozen=True):
    erasures: tuple[ErasureReport, ...]


class ErasuresTopic(Response, frozen=True):
    """The topic of erasures is there."""

    topic_id: str
