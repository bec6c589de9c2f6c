import pytest
from starlette.datastructures import Headers

from ingest_api.content_types import (
    KAFKA_BINARY_V2,
    KAFKA_JSON_V2,
    MediaRange,
    parse_media_ranges,
    request_coding,
    request_media_type,
    response_media_type,
)
from ingest_api.errors import NotAcceptableError, UnsupportedMediaTypeError

JSON, TEXT, ARROW = "application/json", "text/plain", "application/vnd.apache.arrow.stream"


def headers(*pairs: tuple[str, str]) -> Headers:
    return Headers(raw=[(name.encode(), value.encode("latin-1")) for name, value in pairs])


def test_media_ranges_have_lower_case_kinds_and_unquoted_parameters():
    assert parse_media_ranges('Text/HTML ; Charset="a;b\\"" ;q=0.5 , */*') == [
        MediaRange("text/html", {"charset": 'a;b"'}, 0.5),
        MediaRange("*/*", {}),
    ]


@pytest.mark.parametrize(
    "header",
    [
        "text",
        "/",
        "a/",
        "/b",
        "a/b;q=2",
        "a/b;q=-1",
        "a/b;q=0.1234",
        "a/b;q=x",
        "a/b c/d",
        "a/b,",
        ",a/b",
        "*/b",
        'a/b;c="',
        "a/b;;=",
        "a b/c",
        "a/b\x00",
        "a/b;q",
    ],
)
def test_malformed_media_ranges_are_refused(header):
    with pytest.raises(ValueError, match=r"^"):
        parse_media_ranges(header)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("text/*", TEXT),
        ("text/plain;q=0.9, application/json;q=0.1", TEXT),
        ("*/*;q=0.1, text/plain", TEXT),
        ("application/json;q=0, */*", TEXT),
        ("*/*, application/json;q=0", TEXT),
        ("APPLICATION/JSON", JSON),
        ("text/plain;q=0.5, text/*;q=1, application/json;q=0.8", JSON),
        (",".join(f"x/y{n}" for n in range(200)) + ", text/plain", TEXT),
    ],
)
def test_the_best_type_is_answered(accept, expected):
    assert response_media_type(headers(("accept", accept)), (JSON, TEXT)) == expected


def test_without_accept_the_first_type_is_answered():
    assert response_media_type(headers(), (JSON, TEXT)) == JSON


def test_several_accept_lines_are_one_list():
    assert response_media_type(headers(("accept", "x/y"), ("accept", TEXT)), (JSON, TEXT)) == TEXT


@pytest.mark.parametrize("accept", ["x/y", "application/json;q=0", "*/*;q=0", "nonsense", "application/json;q=2"])
def test_an_unacceptable_accept_is_refused_naming_the_types_on_offer(accept):
    with pytest.raises(NotAcceptableError, match=f"Ask for one of {JSON}, {TEXT}"):
        response_media_type(headers(("accept", accept)), (JSON, TEXT))


@pytest.mark.parametrize(
    "given",
    [KAFKA_JSON_V2, KAFKA_JSON_V2.upper(), f"{KAFKA_JSON_V2}; charset=UTF-8", f' {KAFKA_JSON_V2};charset="utf-8";x=y'],
)
def test_the_media_type_of_a_request(given):
    assert request_media_type(headers(("content-type", given)), (KAFKA_JSON_V2, KAFKA_BINARY_V2)) == KAFKA_JSON_V2


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("",),
        (" ",),
        ("*/*",),
        ("application/*",),
        (f"{JSON}, {JSON}",),
        (JSON, JSON),
        ("text",),
        (TEXT,),
        ("application/vnd.kafka.json.v3+json",),
        (f"{JSON};charset=utf-16",),
        (f"{JSON};charset=latin1",),
        ("application/x-www-form-urlencoded",),
        ("a" * 10000,),
    ],
)
def test_other_media_types_are_refused_naming_those_that_are_taken(given):
    with pytest.raises(UnsupportedMediaTypeError, match=r"Send one of application/json\.|send UTF-8") as caught:
        request_media_type(headers(*(("content-type", value) for value in given)), (JSON,))
    assert len(str(caught.value)) < 400


def test_schema_registry_formats_are_refused_by_name():
    with pytest.raises(UnsupportedMediaTypeError, match="no schema registry"):
        request_media_type(headers(("content-type", "application/vnd.kafka.avro.v2+json")), (JSON,))


@pytest.mark.parametrize(
    ("given", "coding"),
    [((), None), (("",), None), (("identity",), None), (("GZIP",), "gzip"), (("x-gzip",), "gzip"), (("zstd",), "zstd")],
)
def test_content_codings(given, coding):
    assert request_coding(headers(*(("content-encoding", value) for value in given))) == coding


@pytest.mark.parametrize("given", [("br",), ("deflate",), ("gzip, gzip",), ("gzip", "zstd"), ("*",), ("gzip;q=1",)])
def test_other_content_codings_are_refused(given):
    with pytest.raises(UnsupportedMediaTypeError, match="gzip, zstd"):
        request_coding(headers(*(("content-encoding", value) for value in given)))
