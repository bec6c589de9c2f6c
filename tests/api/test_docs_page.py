"""``/docs``, the page that shows the description of the interface, loads nothing from elsewhere."""

from html.parser import HTMLParser

import pytest

from ingest_api.app import create_app
from logstore.broker.authorizer import Authorizer
from logstore.broker.quotas import Quotas
from logstore.settings import Settings
from tests.api.api_client import assert_error

pytestmark = pytest.mark.anyio

KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".png": "image/png"}


class References(HTMLParser):
    """The resources that a browser loads for a page, and the texts of the scripts in the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.named: list[str] = []
        self.scripts_within: list[str] = []
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        self.named += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.scripts_within.append(data)


async def test_all_that_the_page_names_is_here_and_of_the_right_kind(shared_api):
    page = await shared_api.get("/docs")
    assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    found = References(page.text)
    assert len(found.named) == 4
    for path in found.named:
        assert path.startswith("/docs/"), "from elsewhere"
        answer = await shared_api.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["Content-Type"] == KINDS[path[path.rindex(".") :]]
        assert int(answer.headers["Content-Length"]) == len(answer.content) > 50


async def test_the_browser_asks_no_other_site(shared_api):
    page = await shared_api.get("/docs")
    assert References(page.text).scripts_within == [], "the policy would stop them"
    policy = dict(part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["connect-src"]) == ("'self'", "'self'")
    assert {word for words in policy.values() for word in words.split()} == {"'none'", "'self'", "data:"}
    script = (await shared_api.get("/docs/start.js")).text
    assert "validatorUrl: null" in script
    assert 'url: "/openapi.json"' in script
    assert "//" not in script


async def test_a_page_of_elsewhere_does_not_get_the_page_by_another_name(shared_api):
    assert_error(await shared_api.get("/docs", headers={"Host": "elsewhere"}), 421, 42101)
    assert_error(await shared_api.get("/docs?url=http://elsewhere/openapi.json"), 422, 422)
    assert_error(await shared_api.post("/docs"), 405, 405)
    for path in ("/docs/nothing", "/docs/..%2f__init__.py", "/docs/redoc.js"):
        assert_error(await shared_api.get(path), 404, 404)


async def test_the_page_is_there_while_the_store_starts(tmp_path):
    import httpx

    app = create_app(Settings(data=tmp_path / "data"), Authorizer(), Quotas())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
        for path in ("/docs", "/docs/start.js", "/openapi.json"):
            assert (await http.get(path)).status_code == 200
