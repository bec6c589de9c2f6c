"""Erasures, which remove records for good, and their reports."""

from typing import Literal

from pydantic import Field

from ingest_api.schemas.base import Answer, Int32, Int64, Request
from logstore.limits import ERASED_KEYS_MAX


class ErasureRequest(Request):
    """Erase the records of these keys, or those that `where` selects. Records that come later are new, and stay."""

    keys: list[str] = Field([], max_length=ERASED_KEYS_MAX, description="Keys of the records, as `key_format` says.")
    where: str | None = Field(None, description="An expression, as of `GET .../records`, in the place of `keys`.")
    key_format: Literal["string", "json", "binary"] | None = Field(
        None,
        description="`string`: the key is the UTF-8 bytes of the text; `json`: its JSON text, with the quotes, as JSON "
        "requests store it where `key.format` is `json`; `binary`: the text is base64. If absent, both of the first.",
    )
    dry_run: bool = Field(False, description="Count the records, and erase nothing.")


class ErasureProgress(Answer):
    """How far the broker is that works on it; empty if none does now."""

    step: str = Field(description="`rolling`, `looking`, `rewriting`, `journals`, `deleting`, or empty.")
    files: int
    files_done: int


class ErasedBroker(Answer):
    broker: Int32
    erased_ms: Int64 = Field(description="Since then no file of the broker's journal has the records.")
    journal_files: int = Field(description="Files that were removed for that.")


class ErasureRepeat(Answer):
    version: int
    records: int
    erased_ms: Int64


class ErasureReport(Answer):
    """Times are in milliseconds since 1970. A key is named by its hash with `salt`: the 32-bit murmur2 of the key, with
    the first 8 digits of the salt as its seed, and the BLAKE2b of 16 bytes of the key, with the salt as its key.
    """

    erasure: str = Field(description="Id of the erasure.")
    state: Literal["counting", "counted", "failed", "started", "pending", "erased"] = Field(
        description="`started`: the records may still be read. `pending`: no reader sees them, and copies may be on a "
        "disk. `erased`: no file of the store has them. A dry run is `counting`, then `counted` or `failed`; with "
        "`where` an erasure is `counting` first, and ends with the broker until it is `started`."
    )
    topic: str
    topic_id: str
    dry_run: bool
    requested_ms: Int64
    erased_ms: Int64 | None = Field(description="When the last byte went.")
    salt: str
    keys: list[str]
    where: str | None = Field(description="The expression, without the values in it.")
    records: int = Field(description="Records that left the table; of a dry run, that would.")
    versions: list[int] = Field(description="Versions of the Delta table from which on they are not in it.")
    rewritten_files: int
    deleted_files: list[str] = Field(description="Files that were deleted, the first 1,000 of them.")
    deleted_files_count: int
    brokers: list[ErasedBroker]
    pending: list[Int32] = Field(description="Brokers that are not there: each erases before it serves again.")
    waiting: str | None = Field(description="What the erasure waits for.")
    progress: ErasureProgress
    repeats: list[ErasureRepeat] = Field(description="Records came back with a RESTORE or a backup, and went again.")
    not_reached: list[str] = Field(description="What the store cannot reach.")


class ErasureReports(Answer):
    erasures: list[ErasureReport]


class ErasuresTopic(Answer):
    """The topic of erasures is there."""

    topic_id: str
