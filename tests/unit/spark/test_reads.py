"""``read_offsets`` checks its arguments before it asks a store."""

import pytest

from logstore.errors import InvalidRequestError
from logstore.spark import read_offsets


@pytest.mark.parametrize(
    ("topic", "offsets", "says"),
    [
        ([], "earliest", "give the name of a topic, or a list of names"),
        ("", "earliest", "give the name of a topic"),
        (None, "earliest", "give the name of a topic"),
        (["a", 1], "earliest", "give the name of a topic"),
        ({"a": 1}, "earliest", "give the name of a topic"),
        (["a", "a"], "earliest", "name each one once"),
        (["a", "b"], {0: 1}, "a mapping that names each of them"),
        (["a", "b"], {"a": "latest"}, "a mapping that names each of them"),
        (["a"], {"a": "latest", "c": "latest"}, "a mapping that names each of them"),
        (["a"], {"a": "first"}, "'first' is not an offset"),
        ("a", {"a": "latest"}, "'a' is not a partition number"),
    ],
)
@pytest.mark.parametrize("argument", ["starting_offsets", "ending_offsets"])
def test_says_what_is_wrong_with_topics_and_offsets(topic, offsets, says, argument):
    if isinstance(offsets, str) and argument == "ending_offsets":
        return
    with pytest.raises(InvalidRequestError, match=says):
        read_offsets(None, topic, **{argument: offsets}, bootstrap="127.0.0.1:1")
