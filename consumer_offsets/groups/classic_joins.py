"""Checks of a classic group that a JoinGroup must pass."""

from consumer_offsets.groups.classic_members import ClassicMembers, ClassicState
from consumer_offsets.groups.events import UNKNOWN_MEMBER_ID, JoinGroup
from consumer_offsets.groups.group_config import GroupConfig
from logstore.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    RecordTooLargeError,
)
from logstore.limits import GROUP_BYTES_MAX, GROUP_MEMBER_BYTES_MAX


def require_session_timeout(config: GroupConfig, session_timeout_ms: int) -> None:
    """Raise InvalidSessionTimeoutError if the timeout is out of range."""
    low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not low <= session_timeout_ms <= high:
        raise InvalidSessionTimeoutError(
            f"The session timeout is {session_timeout_ms} ms: choose from {low} to {high} "
            "(group.min.session.timeout.ms and group.max.session.timeout.ms)."
        )


def has_room(size_max: int, state: ClassicState, members: ClassicMembers, event: JoinGroup) -> bool:
    """Return whether ``group.max.size`` leaves room. During a rebalance only members that have joined it count, so that
    the last ones to come are refused.
    """
    member = members.by_id.get(event.member_id)
    replaces = event.member_id == UNKNOWN_MEMBER_ID and event.group_instance_id in members.static
    is_new = event.member_id == UNKNOWN_MEMBER_ID and event.group_instance_id is None
    if is_new and len(members.pending_join) >= size_max:
        # Ids that were given out and never used are bounded as well.
        return False
    if state == ClassicState.EMPTY:
        return True
    if state == ClassicState.PREPARING_REBALANCE:
        return (member is not None and member.parked_join is not None) or members.num_awaiting_join() < size_max
    return member is not None or replaces or len(members) < size_max


def require_small(group: str, what: str, num_bytes: int) -> None:
    """Raise RecordTooLargeError if a member brings too many bytes into the group's record."""
    if num_bytes > GROUP_MEMBER_BYTES_MAX:
        raise RecordTooLargeError(
            f"The {what} of group {group} has {num_bytes} bytes: {GROUP_MEMBER_BYTES_MAX} are the most."
        )


def require_room_for_bytes(group: str, num_bytes: int, before: int) -> None:
    """Raise GroupMaxSizeReachedError if all members would bring ``num_bytes`` into the group's record, and this is both
    too much and more than they brought ``before``.
    """
    if num_bytes > max(before, GROUP_BYTES_MAX):
        raise GroupMaxSizeReachedError(
            f"The members of group {group} bring {num_bytes} bytes into its record: {GROUP_BYTES_MAX} are the most."
        )


def require_common_protocol(group: str, protocol_type: str | None, members: ClassicMembers, event: JoinGroup) -> None:
    """Raise InconsistentGroupProtocolError if the member shares no protocol with the others."""
    names = {each.name for each in event.protocols}
    if not event.protocol_type or not names:
        raise InconsistentGroupProtocolError("A member has a protocol type and at least one protocol: send both.")
    if not members:
        return
    common = members.common_protocols()
    if event.protocol_type != protocol_type or not names & common:
        raise InconsistentGroupProtocolError(
            f"The members of group {group} share {protocol_type} protocols {sorted(common)}: "
            f"support one of them, not only {event.protocol_type} {sorted(names)}."
        )
