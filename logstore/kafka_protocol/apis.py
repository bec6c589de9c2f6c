"""The APIs of Kafka's protocol that the store serves, with their versions: each from the first to the last stable one
of the definitions.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Api(NamedTuple):
    """Versions are inclusive."""

    key: int
    name: str
    version_min: int
    version_max: int
    #: The first version in ApiVersions, if it is another one.
    told_min: int | None = None

    @property
    def advertised_min(self) -> int:
        return self.version_min if self.told_min is None else self.told_min


APIS: Final[Mapping[int, Api]] = {
    api.key: api
    for api in (
        # librdkafka does not compress for a broker that does not advertise version 0 (KAFKA-18659); it sends none of
        # these versions. Kafka also advertises and refuses them.
        Api(0, "Produce", 3, 13, told_min=0),
        Api(1, "Fetch", 4, 18),
        Api(2, "ListOffsets", 1, 10),
        Api(3, "Metadata", 0, 13),
        Api(8, "OffsetCommit", 2, 9),
        Api(9, "OffsetFetch", 1, 9),
        Api(10, "FindCoordinator", 0, 6),
        Api(11, "JoinGroup", 0, 9),
        Api(12, "Heartbeat", 0, 4),
        Api(13, "LeaveGroup", 0, 5),
        Api(14, "SyncGroup", 0, 5),
        Api(15, "DescribeGroups", 0, 6),
        Api(16, "ListGroups", 0, 5),
        Api(18, "ApiVersions", 0, 4),
        Api(19, "CreateTopics", 2, 7),
        Api(20, "DeleteTopics", 1, 6),
        Api(21, "DeleteRecords", 0, 2),
        Api(22, "InitProducerId", 0, 5),
        Api(23, "OffsetForLeaderEpoch", 2, 4),
        Api(32, "DescribeConfigs", 1, 4),
        Api(33, "AlterConfigs", 0, 2),
        Api(35, "DescribeLogDirs", 1, 4),
        Api(37, "CreatePartitions", 0, 3),
        Api(42, "DeleteGroups", 0, 2),
        Api(44, "IncrementalAlterConfigs", 0, 1),
        Api(47, "OffsetDelete", 0, 0),
        Api(60, "DescribeCluster", 0, 2),
        Api(68, "ConsumerGroupHeartbeat", 0, 1),
        Api(69, "ConsumerGroupDescribe", 0, 1),
        Api(75, "DescribeTopicPartitions", 0, 0),
    )
}
API_VERSIONS: Final = 18
