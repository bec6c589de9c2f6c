"""The groups that other brokers coordinate, for requests about several groups: each broker is asked for its own."""

import asyncio
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.nobody import Elsewhere
from logstore.errors import CoordinatorNotAvailableError, LogStoreError, PeerUnavailableError
from logstore.protocol.error_codes import error_of
from logstore.protocol.messages.base import ErrorBody
from logstore.protocol.messages.groups import DeletedGroups, DeleteGroupsRequest, GroupListings

T = TypeVar("T")

_OK: Final = 200


class GroupsElsewhere:
    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere

    async def names(self, context: RequestContext) -> list[str]:
        """Return the names of all groups that the principal may describe. Raises CoordinatorNotAvailableError."""
        found = await self._ask_all(context, "/groups", list[str])
        return [name for names in found for name in names]

    async def listings(
        self, context: RequestContext, *, after: str | None, limit: int, states: Iterable[str] | None
    ) -> Sequence[GroupListings]:
        """Return a page of each broker. Raises CoordinatorNotAvailableError."""
        query = {"limit": str(limit)} | ({} if after is None else {"after": after})
        if states is not None:
            query["states"] = ",".join(states)
        return await self._ask_all(context, f"/group-listings?{urllib.parse.urlencode(query)}", GroupListings)

    async def delete(self, context: RequestContext, groups: Sequence[str]) -> Mapping[str, LogStoreError | None]:
        """Delete those of ``groups`` that other brokers coordinate. Return the error of each name, or None."""
        outcomes: dict[str, LogStoreError | None] = {}
        by_broker: dict[int, list[str]] = {}
        for group in groups:
            try:
                coordinator = self._elsewhere.router.group_coordinator(group)
            except CoordinatorNotAvailableError as error:
                outcomes[group] = error
                continue
            if coordinator is not None and coordinator != self._elsewhere.router.broker_id:
                by_broker.setdefault(coordinator, []).append(group)

        async def ask(broker_id: int, names: Sequence[str]) -> None:
            body = msgspec.json.encode(DeleteGroupsRequest(tuple(names)))
            try:
                answer = await self._ask(context, broker_id, "POST", "/delete-groups", DeletedGroups, body)
            except LogStoreError as error:
                outcomes.update(dict.fromkeys(names, error))
                return
            for one in answer.groups:
                outcomes[one.group] = None if one.error_code is None else error_of(one.error_code, one.message or "")

        await asyncio.gather(*(ask(broker_id, names) for broker_id, names in by_broker.items()))
        return outcomes

    async def _ask_all(self, context: RequestContext, target: str, kind: type[T]) -> list[T]:
        brokers = self._elsewhere.router.other_brokers
        return await asyncio.gather(*(self._ask(context, one, "GET", target, kind) for one in brokers))

    async def _ask(
        self, context: RequestContext, broker_id: int, method: str, target: str, kind: type[T], body: bytes = b""
    ) -> T:
        try:
            answer = await self._elsewhere.ask(broker_id, method, target, context, body)
        except PeerUnavailableError as error:
            raise CoordinatorNotAvailableError(
                f"Broker {broker_id} coordinates groups, and does not answer: {error.message}. Try again soon."
            ) from error
        whole = b"".join(answer.body)
        if answer.status != _OK:
            refusal = msgspec.json.decode(whole, type=ErrorBody)
            raise error_of(refusal.error_code, refusal.message)
        return msgspec.json.decode(whole, type=kind)
