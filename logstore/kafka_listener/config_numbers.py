"""Kafka's numbers for resources that have a configuration, for the sources of values, and for their types."""

from collections.abc import Mapping
from typing import Final

from logstore.broker.topics.configs import ConfigSource
from logstore.topic_config import ConfigKind

#: ``ConfigResource.Type``.
TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32

#: ``DescribeConfigsResponse.ConfigSource``.
SOURCES: Final[Mapping[ConfigSource, int]] = {
    "DYNAMIC_TOPIC_CONFIG": 1,
    "STATIC_BROKER_CONFIG": 4,
    "DEFAULT_CONFIG": 5,
}
#: ``DescribeConfigsResponse.ConfigType``.
TYPES: Final[Mapping[ConfigKind, int]] = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "long": 5,
    "double": 6,
    "list": 7,
    "password": 9,
}
