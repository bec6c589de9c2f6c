"""The options ``subscribe``, ``subscribePattern`` and ``assign``, which select topics and partitions."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from logstore.errors import InvalidRequestError, InvalidTopicError
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.names import is_legal_name
from logstore.spark.option_values import OptionValues
from logstore.spark.source.offset_json import read_partitions

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics of a read. Exactly one is set: names, a regular expression for whole names, or partitions by topic."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] | None = None


def read_subscription(values: OptionValues) -> Subscription:
    given = [name for name in SUBSCRIPTIONS if name in values]
    if len(given) != 1:
        how_many = "Only one of the following options can" if given else "One of the following options must"
        raise InvalidRequestError(f"{how_many} be specified for the source: {', '.join(SUBSCRIPTIONS)}")
    name, text = given[0], values.text(given[0])
    if name == "subscribePattern":
        return Subscription(pattern=_pattern(text))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise InvalidRequestError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'"
            )
        _check_topics(name, topics)
        return Subscription(topics=topics)
    assigned = values.parsed(name, read_partitions) if text.startswith("{") else {}
    if not assigned:
        raise InvalidRequestError(
            f"No topicpartitions to assign as specified value for option 'assign' is '{text}': "
            'give e.g. {"topicA":[0,1],"topicB":[2,4]}'
        )
    _check_topics(name, assigned)
    return Subscription(assigned=assigned)


def _check_topics(name: str, topics: Iterable[str]) -> None:
    for topic in topics:
        if not is_legal_name(topic, TOPIC_NAME_LENGTH_MAX):
            raise InvalidTopicError(
                f"option {name}: {topic!r} cannot be a topic's name: 1 to 249 of A-Z a-z 0-9 . _ -, not . or .."
            )


def _pattern(text: str) -> str:
    if not text:
        raise InvalidRequestError(
            "Pattern to subscribe is empty as specified value for option 'subscribePattern' is ''"
        )
    try:
        with warnings.catch_warnings():
            # Python accepts [a-z&&[^b]] with a warning, but with another meaning than Java.
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise InvalidRequestError(
            f"subscribePattern: '{text}' is not a regular expression that Python can read: {error}. Give one for "
            "the whole names of topics, without what only Java knows: \\p{...}, \\Q...\\E, [a-z&&[^b]]"
        ) from None
    return text
