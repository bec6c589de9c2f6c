"""Our commit in a Delta sink, in its ``userMetadata``: whose it is, which one, and what it holds. Pure.

Invariant: ``app_id`` and ``txn_version`` are Delta's transaction, which a table accepts once. The rest distinguishes
two commits for the same transaction, so that a batch that was left out is not mistaken for one in the table.
"""

from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from logstore.errors import LogStoreError


class SinkOffsetsUnknownError(LogStoreError):
    """Raised if the sink has a commit of ours whose content can no longer be found out."""


class SinkCommit(Protocol):
    """The description in a commit; ``writer`` is unique to the run or the attempt that made it."""

    #: The key of ``app_id`` in the JSON.
    APP_ID_KEY: ClassVar[str]
    #: The part of a message that says how to continue when the commit can no longer be found.
    WAY_ON: ClassVar[str]

    @property
    def app_id(self) -> str: ...
    @property
    def txn_version(self) -> int: ...
    @property
    def writer(self) -> str: ...


C = TypeVar("C", bound=SinkCommit)


class _UserMetadata(msgspec.Struct, Generic[C], frozen=True):
    """The form of ``userMetadata``; other programs may have their keys beside ours."""

    logstore: C


def user_metadata(commit: SinkCommit) -> str:
    return msgspec.json.encode(_UserMetadata(commit)).decode()


def parse_user_metadata(text: str, kind: type[C]) -> C:
    """Parse the text that ``user_metadata`` made of a commit of this kind. Raises SinkOffsetsUnknownError."""
    try:
        return msgspec.json.decode(text, type=_UserMetadata[kind]).logstore  # type: ignore[valid-type]
    except msgspec.MsgspecError as error:
        raise SinkOffsetsUnknownError(f"userMetadata of a commit cannot be read: {text[:200]} ({error})") from None
