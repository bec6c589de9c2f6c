"""The settings of groups, with Kafka's names and defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Times are in ms. ``group_max_size`` bounds the members of a group, and separately the ids of members that have
    not joined yet; Kafka's default is no bound.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 1_000
    #: A new member waits this long in its first JoinGroup; then it is considered dead.
    group_new_member_join_timeout_ms: int = 300_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    #: Kafka's ConsumerGroupMigrationPolicy: disabled, downgrade, upgrade or bidirectional.
    group_consumer_migration_policy: str = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """True if a classic group with members becomes a consumer group when a member of that protocol joins."""
        return self.group_consumer_migration_policy in ("upgrade", "bidirectional")

    @property
    def downgrades(self) -> bool:
        """True if a consumer group that has only classic members left becomes a classic group."""
        return self.group_consumer_migration_policy in ("downgrade", "bidirectional")
