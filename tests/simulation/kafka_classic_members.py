"""Members of groups by Kafka's classic protocol in the simulated world: they give all partitions up for each rebalance,
and one of them assigns. Beside a member of the ``consumer`` protocol they are in a group of both.
"""

import asyncio
import itertools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from logstore.errors import (
    IllegalGenerationError,
    LogStoreError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from logstore.kafka_protocol import messages
from tests.simulation.clients import _AGAIN_S as AGAIN_S
from tests.simulation.kafka_clients import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, Link, require
from tests.simulation.kafka_members import SESSION_S, KafkaMember
from tests.simulation.node import ConnectionLostError, NoConnectionError
from tests.simulation.site import Log

_BEAT_S = 1.0
_REBALANCE_TIMEOUT_MS = 30_000
_PROTOCOL = "range"
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")


class ClassicMember(KafkaMember):
    """``_epoch`` is its generation; it has none while it is to join."""

    def _begin_to_join(self) -> None:
        self._member_id, self._epoch, self._due_s = "", -1, 0.0

    async def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        try:
            if self._epoch < 0:
                target = await self.site.call(self._join, self._place)
                self.heard_s = sent_s
                await self._reconcile(target)
            else:
                await self.site.call(self._beat, self._place)
                self.heard_s = sent_s
            self._due_s = loop.time() + _BEAT_S
        except RebalanceInProgressError:
            await self._commit_positions(list(self.owned))
            self._tell("revoked", list(self.owned))
            self._epoch, self._due_s = -1, 0.0
        except (UnknownMemberIdError, IllegalGenerationError):
            self._tell("lost", list(self.owned))
            self._begin_to_join()
        except (LogStoreError, NoConnectionError, ConnectionLostError):
            self._due_s = loop.time() + AGAIN_S

    async def _join(self, link: Link) -> list[Log]:
        kinds = messages.JoinGroupRequest
        topic = self._group.topic.name
        if topic not in self.site.topic_ids:
            await link.leader_ports(topic)
        told = await link.ask(
            JOIN_GROUP,
            kinds(
                group_id=self._group.name,
                member_id=self._member_id,
                session_timeout_ms=int(SESSION_S * 1000),
                rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
                protocol_type="consumer",
                protocols=[kinds.JoinGroupRequestProtocol(name=_PROTOCOL, metadata=_subscription(topic))],
            ),
        )
        if told.error_code == MemberIdRequiredError.kafka_code:
            self._member_id = told.member_id
            return await self._join(link)
        require(told.error_code)
        self._member_id = told.member_id
        members = [one.member_id for one in told.members] if told.leader == told.member_id else []
        shares = _shares(members, topic, self._group.topic.partitions)
        sync = messages.SyncGroupRequest
        answer = await link.ask(
            SYNC_GROUP,
            sync(
                group_id=self._group.name,
                generation_id=told.generation_id,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name=told.protocol_name,
                assignments=[
                    sync.SyncGroupRequestAssignment(member_id=name, assignment=share) for name, share in shares.items()
                ],
            ),
        )
        require(answer.error_code)
        self._epoch = told.generation_id
        return _assigned(bytes(answer.assignment))

    async def _beat(self, link: Link) -> Any:
        beat = messages.HeartbeatRequest(
            group_id=self._group.name, generation_id=self._epoch, member_id=self._member_id
        )
        require((await link.ask(HEARTBEAT, beat)).error_code)

    async def _leave(self) -> None:
        await self._commit_positions(list(self.owned))
        self._tell("revoked", list(self.owned))
        kinds = messages.LeaveGroupRequest
        leave = kinds(group_id=self._group.name, members=[kinds.MemberIdentity(member_id=self._member_id)])
        await self._send(self._place, lambda link: link.ask(LEAVE_GROUP, leave))  # type: ignore[attr-defined]


# ---- the consumers' part of the protocol (ConsumerProtocolSubscription, ConsumerProtocolAssignment; version 0) ------


def _text(text: str) -> bytes:
    return _SHORT.pack(len(text)) + text.encode()


def _subscription(topic: str) -> bytes:
    return _SHORT.pack(0) + _INT.pack(1) + _text(topic) + _INT.pack(-1)


def _shares(members: Sequence[str], topic: str, partitions: int) -> Mapping[str, bytes]:
    """By member, in turns."""
    shares = {}
    for at, name in enumerate(sorted(members)):
        numbers = list(itertools.islice(range(partitions), at, None, len(members)))
        topics = _INT.pack(1) + _text(topic) + _INT.pack(len(numbers)) + b"".join(map(_INT.pack, numbers))
        shares[name] = _SHORT.pack(0) + (topics if numbers else _INT.pack(0)) + _INT.pack(-1)
    return shares


def _assigned(data: bytes) -> list[Log]:
    if not data:
        return []
    found, at = [], _SHORT.size + _INT.size
    for _ in range(_INT.unpack_from(data, _SHORT.size)[0]):
        (length,) = _SHORT.unpack_from(data, at)
        at += _SHORT.size
        topic = data[at : at + length].decode()
        at += length
        (count,) = _INT.unpack_from(data, at)
        at += _INT.size
        found += [Log(topic, number) for (number,) in _INT.iter_unpack(data[at : at + count * _INT.size])]
        at += count * _INT.size
    return found
