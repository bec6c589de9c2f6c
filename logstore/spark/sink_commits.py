"""A commit of ours in a Delta sink, as its ``userMetadata`` has it: whose it is, which one, and what it holds. Pure.

Invariant: ``app_id`` and ``txn_version`` are Delta's transaction, which a table takes once. The rest tells apart two
commits that were to be the same transaction, so that a batch that was left out is known from one that is there.
"""

from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from logstore.errors import LogStoreError


class SinkOffsetsUnknownError(LogStoreError):
    """The sink has a commit of ours, and what it holds can no longer be found out."""


class SinkCommit(Protocol):
    """What a commit says of itself; ``writer`` is unique to the run or the attempt that made it."""

    #: The key of ``app_id`` in the JSON.
    APP_ID_KEY: ClassVar[str]
    #: For a message: the way on when the commit is no longer to be found.
    WAY_ON: ClassVar[str]

    @property
    def app_id(self) -> str: ...
    @property
    def txn_version(self) -> int: ...
    @property
    def writer(self) -> str: ...


C = TypeVar("C", bound=SinkCommit)


class _UserMetadata(msgspec.Struct, Generic[C], frozen=True):
    """The form of ``userMetadata``: others may have keys of their own beside ours."""

    logstore: C


def user_metadata(commit: SinkCommit) -> str:
    return msgspec.json.encode(_UserMetadata(commit)).decode()


def parse_user_metadata(text: str, kind: type[C]) -> C:
    """What ``user_metadata`` made of a commit of this kind. Raises SinkOffsetsUnknownError."""
    try:
        return msgspec.json.decode(text, type=_UserMetadata[kind]).logstore  # type: ignore[valid-type]
    except msgspec.MsgspecError as error:
        raise SinkOffsetsUnknownError(f"userMetadata of a commit cannot be read: {text[:200]} ({error})") from None
