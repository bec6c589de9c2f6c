"""Routes with models refuse requests before FastAPI is asked, and FastAPI's own refusals get the same form."""

from collections.abc import AsyncIterator
from typing import Annotated

import httpx
import pytest
from fastapi import Query
from msgspec import Meta

from ingest_api.app import create_app
from ingest_api.model_routes import AdministrationRoute, model_router
from ingest_api.routers import ROUTERS
from ingest_api.routes import open_to_all
from logstore.broker.authorizer import Authorizer
from logstore.broker.quotas import Quotas
from logstore.protocol.messages.base import Query as Parameters
from logstore.protocol.messages.base import Request, Response
from logstore.settings import Settings
from tests.api.api_client import ApiClient, assert_error, running_api

pytestmark = pytest.mark.anyio


class Asked(Parameters):
    word: Annotated[str, Meta(max_length=3)] = ""
    other: str | None = None


class Wanted(Request):
    count: int


class Told(Response):
    count: int


done: list[object] = []
router = model_router(AdministrationRoute, tags=["test"])


@router.get("/words")
@open_to_all
async def words(query: Annotated[Asked, Query()]) -> Told:
    return Told(count=len(query.word))


@router.post("/counts")
@open_to_all
async def counts(wanted: Wanted) -> Told:
    done.append(wanted)
    return Told(count=wanted.count)


@router.post("/perhaps")
@open_to_all
async def perhaps(wanted: Wanted | None = None) -> Told:
    done.append(wanted)
    return Told(count=0 if wanted is None else wanted.count)


@router.get("/wrong")
@open_to_all
async def wrong() -> Told:
    return {"count": "many"}


@router.delete("/nothing", status_code=204)
@open_to_all
async def nothing() -> None:
    """Answer without a body."""


@pytest.fixture
async def api(tmp_path, monkeypatch, anyio_backend) -> AsyncIterator[ApiClient]:
    done.clear()
    monkeypatch.setattr("ingest_api.app.ROUTERS", (*ROUTERS, router))
    async with running_api(tmp_path / "data") as client:
        yield client


async def test_refusals_of_a_query_model_have_the_form_of_every_refusal(api):
    assert (await api.get("/words?word=abc")).json() == {"count": 3}
    message = assert_error(await api.get("/words?word=abcd"), 422, 422)
    assert message == "query.word: String should have at most 3 characters."


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("wrod=abc", "did you mean word?"),
        ("x=1", "what it takes is word, other."),
        ("word=a&word=b", "given twice"),
        ("word=", "has no value"),
    ],
)
async def test_parameters_that_a_model_would_not_see(api, query, says):
    assert says in assert_error(await api.get(f"/words?{query}"), 422, 422)


@pytest.mark.parametrize("path", ["/counts", "/perhaps"])
@pytest.mark.parametrize(
    "body",
    [b"null", b"0", b'"1"', b"[]", b"{}", b'{"count":"1"}', b'{"count":1,"count":1}', b'{"count":1,"x":1}', b"{"],
)
async def test_a_body_that_is_not_the_model_reaches_no_endpoint(api, path, body):
    answer = await api.post(path, content=body, headers={"Content-Type": "application/json"})
    assert assert_error(answer, 422, 42206).startswith("The request body is not acceptable. ")
    assert done == []


@pytest.mark.parametrize("path", ["/counts", "/perhaps"])
async def test_a_body_that_is_not_called_json_or_is_too_large_reaches_no_endpoint(api, path):
    assert_error(await api.post(path, content=b'{"count":1}'), 415, 415)
    assert_error(await api.post(path, content=b'{"count":1}', headers={"Content-Type": "text/plain"}), 415, 415)
    large = b" " * (1 << 20) + b'{"count":1}'
    assert_error(await api.post(path, content=large, headers={"Content-Type": "application/json"}), 413, 41301)
    assert_error(await api.post(path, json={"count": 1}, headers={"Accept": "text/html"}), 406, 406)
    assert done == []
    assert api.app.state.api.requests.reserved == 0


async def test_a_body_that_may_be_left_out(api):
    assert "empty" in assert_error(await api.post("/counts"), 422, 42206)
    assert (await api.post("/perhaps")).json() == {"count": 0}
    assert (await api.post("/perhaps", json={"count": 2})).json() == {"count": 2}
    assert done == [None, Wanted(count=2)]


async def test_an_answer_that_is_not_its_model_is_reported_as_a_bug(api):
    assert "Internal error" in assert_error(await api.get("/wrong"), 500, 500)


async def test_an_answer_without_a_body_has_no_type_and_asks_for_none(api):
    answer = await api.delete("/nothing", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert "Content-Type" not in answer.headers


async def test_while_the_store_starts_a_body_is_not_read(tmp_path):
    app = create_app(Settings(data=tmp_path / "data"), Authorizer(), Quotas())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
        assert_error(await http.post("/groups/g/offsets", content=b"{"), 503, 50301)
        assert_error(await http.get("/topics"), 503, 50301)
