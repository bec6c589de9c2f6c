"""``GET /`` answers with a page for people."""

import pytest

from ingest_api.app import create_app
from ingest_api.routers import home
from logstore import __version__
from logstore.broker.authorizer import Authorizer
from logstore.broker.quotas import Quotas
from logstore.settings import Settings
from tests.api.api_client import assert_error
from tests.api.test_docs_page import References
from tests.support.authorizer_views import Denied, Nothing

pytestmark = pytest.mark.anyio

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


async def page_of(api, accept: str = BROWSER) -> str:
    answer = await api.get("/", headers={"Accept": accept})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script" not in policy + answer.text
    return answer.text


async def test_a_browser_gets_the_topics_and_links_that_lead_somewhere(api):
    empty = await page_of(api)
    assert "logstore topic create" in empty
    await api.create_topic("clicks", partitions=3)
    await api.produce("clicks", [1, 2])
    page = await page_of(api)
    assert f"logstore {__version__}" in page
    assert '<tr><td><a href="/topics/clicks">clicks</a></td><td>3</td><td>2</td>' in page
    assert "__consumer_offsets" not in page
    for path in References(page).named:
        assert path.startswith("/")
        answer = await api.get(path)
        # The machine may be in a state in which the store is not ready; the page comes all the same.
        assert answer.status_code == 200, path


async def test_the_policy_lets_the_style_of_the_page_pass(api):
    page = await page_of(api)
    assert page.partition("<style>")[2].partition("</style>")[0] == home._STYLE


@pytest.mark.parametrize("accept", ["*/*", "text/html", "text/*", BROWSER, "application/json;q=0.5, text/html"])
async def test_people_get_the_page(shared_api, accept):
    await page_of(shared_api, accept)


@pytest.mark.parametrize(
    "accept", ["application/json", "application/json, */*", "application/vnd.kafka.v2+json", "image/png"]
)
async def test_programs_get_what_they_got(shared_api, accept):
    message = assert_error(await shared_api.get("/", headers={"Accept": accept}), 404, 404)
    assert message == "No resource at '/'; GET /openapi.json lists what there is."


async def test_topics_that_the_reader_may_not_describe_are_left_out(api):
    await api.create_topic("public")
    await api.create_topic("secret")
    api.broker.authorizer.replace(Denied({"secret"}))
    page = await page_of(api)
    assert "public" in page
    assert "secret" not in page
    api.broker.authorizer.replace(Nothing(version=2))
    assert "<table>" not in await page_of(api)


async def test_many_topics_are_cut_off_and_counted(api, monkeypatch):
    monkeypatch.setattr(home, "_TOPICS_MAX", 2)
    for name in ("a", "b", "c"):
        await api.create_topic(name)
    page = await page_of(api)
    assert page.count("<td><a") == 2
    assert "And 1 more" in page


async def test_while_the_store_starts_the_page_says_so(tmp_path, monkeypatch):
    import httpx

    app = create_app(Settings(data=tmp_path), Authorizer(), Quotas())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
        answer = await http.get("/", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    assert "start" in answer.text
