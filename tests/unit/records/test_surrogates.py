r"""Lone surrogates are found among all other escapes, in the bytes that were sent."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.records import surrogates


class _Record(msgspec.Struct):
    a: msgspec.Raw
    b: msgspec.Raw


_RECORDS = msgspec.json.Decoder(list[_Record])
_PIECES = (r"\ud800", r"\uDC00", r"\ud83d\ude00", r"\\", r"\"", "x", "é", r"\u0041", r"\\ud800", r"\ufffd", "\\n")
texts = st.lists(st.sampled_from(_PIECES), max_size=6).map(lambda pieces: '"' + "".join(pieces) + '"')


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
def test_texts_are_those_that_were_sent(pairs: list[tuple[str, str]]) -> None:
    sent = [(a, f"{{{b}:[{a}, {b}]}}") for a, b in pairs]
    body = ("[" + ", ".join(f'{{"b":{b}, "a":{a}}}' for a, b in sent) + "]").encode()
    records, decoded = surrogates.decode(_RECORDS, body)
    raws = surrogates.as_sent([raw for record in records for raw in (record.a, record.b)], decoded, body)
    assert [bytes(raw).decode() for raw in raws] == [text for record in sent for text in record]


@given(texts)
def test_lone_surrogates_are_counted_as_python_sees_them(text: str) -> None:
    lone = sum("\ud800" <= character <= "\udfff" for character in json.loads(text))
    assert surrogates.count(text.encode()) == lone
    assert (surrogates.masked(text.encode()) is None) == (lone == 0)


@pytest.mark.parametrize("text", [rb'"\ud800', rb'"\ud8"', rb'"\ud800\"', b'"\\ud800\\', rb'["\ud800",]'])
def test_invalid_json_stays_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        surrogates.decode(msgspec.json.Decoder(msgspec.Raw), text)
